"""Plays a co-location policy to the end of a graph, keeping to the rules that a worker has."""

from dataclasses import replace

from plait.core.colocation import ColocationView, WorkerFacts
from plait.core.ids import RunId, WorkerId
from plait.core.substages import Kind, Substage
from plait.profiles.slowdown import Analytic

ROOM = 100


def substage(key, kind, work_s, *, after=(), wants=30, least=None, worker="w0", tokens=None):
    """One of run ``key.split("/")[0]``."""
    if tokens is None:
        tokens = {Kind.DECODE: 32, Kind.BATCH: 512}.get(kind, 4096)
    return Substage(
        key=key,
        run_id=RunId(key.split("/")[0]),
        worker=WorkerId(worker),
        kind=kind,
        work_s=work_s,
        memory_bytes=wants,
        least_bytes=wants if least is None else least,
        tokens=tokens,
        after=tuple(after),
    )


def view(substages, workers=("w0",), **more):
    """The graph before anything has begun."""
    facts = tuple(WorkerFacts(worker_id=WorkerId(w), memory_bytes=ROOM) for w in workers)
    return ColocationView(workers=facts, substages=tuple(substages), **more)


def play(policy, start, slowdown=None):
    """(end of each sub-stage by key, decisions); AssertionError where a plan breaks a rule."""
    slowdown = slowdown or Analytic()
    room = {w.worker_id: w.memory_bytes for w in start.workers}
    todo = {s.key: s for s in start.substages}
    state, now, running, ends, n_decisions = {}, 0.0, {}, {}, 0
    while todo:
        view_ = ColocationView(
            workers=start.workers,
            substages=tuple(
                replace(s, after=tuple(k for k in s.after if k in todo)) for s in todo.values()
            ),
            running=tuple(running),
            held_bytes=dict(running),
        )
        plan, state = policy.decide(view_, state, now)
        n_decisions += 1
        assert n_decisions < 10_000
        ready = {s.key for s in view_.substages if not s.after and s.kind.on_device}
        shares = {s.key: s for s in plan.shares}
        assert set(running) <= set(shares) <= ready, "what runs goes on; only what is ready begins"
        for worker, n_bytes in room.items():
            here = [s for key, s in shares.items() if todo[key].worker == worker]
            assert sum(s.compute for s in here) <= 1.0 + 1e-9
            assert sum(s.memory_bytes for s in here) <= n_bytes
            assert here or not any(todo[k].worker == worker for k in ready), "nobody idles"
        for key, share in shares.items():
            assert share.memory_bytes >= todo[key].least_bytes
            assert running.get(key, share.memory_bytes) == share.memory_bytes
        unserved = {todo[k].run_id for k in ready - set(shares)}
        assert {w.run_id for w in plan.waits} == unserved
        assert all(w.detail for w in plan.waits)
        speeds = {s.key: 1.0 for s in view_.substages if not s.after and not s.kind.on_device}
        for key, share in shares.items():
            own = todo[key]
            beside = [k for k in shares if k != key and todo[k].worker == own.worker]
            memory = min(1.0, share.memory_bytes / own.memory_bytes) if own.memory_bytes else 1.0
            other = todo[beside[0]] if beside else None
            speeds[key] = 1.0 / slowdown(own, other, share.compute, memory)
        step_s = min(todo[k].work_s / speed for k, speed in speeds.items())
        now += step_s
        running = {k: s.memory_bytes for k, s in shares.items()}
        for key, speed in speeds.items():
            left_s = todo[key].work_s - step_s * speed
            if left_s <= 1e-9:
                ends[key] = now
                del todo[key]
                running.pop(key, None)
            else:
                todo[key] = replace(todo[key], work_s=left_s)
    return ends, n_decisions
