"""Samples in flight: sent together, loaded again, never lost with their worker."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from plait.core.errors import RunEnded, WorkerLost
from plait.core.ids import LOCAL_TENANT, OpId, RunId, WorkerId
from plait.core.operations import Done, Sample, SampleResult, SamplingParams
from plait.core.runs import RunSpec
from plait.engines.moved import Moved, MovedSample
from plait.engines.protocol import ModelShape
from plait.runtime import messages as m
from plait.runtime.facts import Roster
from plait.runtime.handle import WorkerHandle
from plait.runtime.samples import Samples

RUN = RunId("one")
FIRST, SECOND = WorkerId("rollout-0"), WorkerId("rollout-1")
SHAPE = ModelShape(
    name="tiny",
    vocab_size=256,
    max_context=64,
    n_layers=1,
    n_kv_heads=1,
    head_dim=4,
    hidden_size=4,
    n_params=100,
    kv_bytes_per_token=32,
)


class Worker:
    """A worker that remembers what it is sent."""

    def __init__(self, name: str = "rollout-0") -> None:
        self.worker_id = WorkerId(name)
        self.sent: list[Any] = []

    def send(self, command: m.Command) -> None:
        self.sent.append(command)

    def ops(self) -> list[list[str]]:
        return [[op.op_id for op in c.ops] for c in self.sent if isinstance(c, m.AddSamples)]


@pytest.fixture
def samples(tmp_path: Path) -> Samples:
    roster = Roster()
    roster.add(RunSpec(run_id=RUN, tenant_id=LOCAL_TENANT, base_model="tiny"), 0.0)
    return Samples(roster)


def attach(samples: Samples, name: str = "rollout-0") -> Worker:
    worker = Worker(name)
    samples.attach(cast(WorkerHandle, worker))
    return worker


def op(name: str, prompt: tuple[int, ...] = (1,)) -> Sample:
    params = SamplingParams(max_tokens=1, seed=0)
    return Sample(op_id=OpId(name), run_id=RUN, version=0, prompt=prompt, n=1, params=params)


async def test_what_is_asked_for_at_once_is_sent_at_once_and_in_order(samples: Samples) -> None:
    worker = attach(samples)
    asked = [asyncio.create_task(samples.sample((op(name),))) for name in "abc"]
    await asyncio.sleep(0)
    gone = asyncio.create_task(samples.sample((op("d"),)))
    await asyncio.sleep(0)
    gone.cancel()
    await asyncio.sleep(0.01)
    assert worker.ops() == [["a", "b", "c"], ["d"]] or worker.ops() == [["a", "b", "c"]]
    for name in "abc":
        samples.finished(FIRST, OpId(name), SampleResult(samples=()))
    await asyncio.gather(*asked)


async def test_a_new_worker_gets_what_waits_in_the_outbox_only_once(samples: Samples) -> None:
    attach(samples)
    asked = asyncio.create_task(samples.sample((op("a"),)))
    samples.lost(FIRST)
    await asyncio.sleep(0)
    worker = attach(samples)
    await asyncio.sleep(0.01)
    assert worker.ops() == [["a"]]
    samples.finished(FIRST, OpId("a"), SampleResult(samples=()))
    await asked


async def test_a_load_is_repeated_on_the_next_worker(samples: Samples) -> None:
    attach(samples)
    loading = asyncio.create_task(samples.load(RUN, 1, "path", OpId("load")))
    await asyncio.sleep(0)
    samples.lost(FIRST)
    worker = attach(samples)
    assert [c.op_id for c in worker.sent if isinstance(c, m.LoadAdapter)] == ["load"]
    samples.finished(FIRST, OpId("load"), Done())
    await loading


async def test_a_load_that_kills_its_worker_twice_fails(samples: Samples) -> None:
    attach(samples)
    loading = asyncio.create_task(samples.load(RUN, 1, "path", OpId("load")))
    await asyncio.sleep(0)
    samples.lost(FIRST)
    attach(samples)
    samples.lost(FIRST)
    with pytest.raises(WorkerLost, match="twice during a publish"):
        await loading


async def test_the_end_of_its_run_ends_a_load(samples: Samples) -> None:
    loading = asyncio.create_task(samples.load(RUN, 1, "path", OpId("load")))
    await asyncio.sleep(0)
    samples.drop(RUN, RunEnded("cancelled"))
    with pytest.raises(RunEnded):
        await asyncio.wait_for(loading, 1)


async def test_two_workers_share_the_groups_and_none_is_split(samples: Samples) -> None:
    workers = [attach(samples, FIRST), attach(samples, SECOND)]
    ops = [op(f"{group}{i}", (group,) * 20) for group in range(4) for i in range(4)]
    asked = [asyncio.create_task(samples.sample((o,))) for o in ops]
    await asyncio.sleep(0.01)
    groups = [{name[0] for batch in w.ops() for name in batch} for w in workers]
    assert len(groups[0]) == len(groups[1]) == 2
    assert not groups[0] & groups[1]
    for o in ops:
        samples.finished(FIRST, o.op_id, SampleResult(samples=()))
    await asyncio.gather(*asked)


async def test_what_a_lost_worker_had_goes_to_the_other(samples: Samples) -> None:
    first, second = attach(samples, FIRST), attach(samples, SECOND)
    asked = [asyncio.create_task(samples.sample((op(n, (ord(n),) * 20),))) for n in "ab"]
    await asyncio.sleep(0.01)
    assert (first.ops(), second.ops()) == ([["a"]], [["b"]])
    samples.lost(FIRST)
    await asyncio.sleep(0.01)
    assert second.ops() == [["b"], ["a"]]
    for name in "ab":
        samples.finished(SECOND, OpId(name), SampleResult(samples=()))
    await asyncio.gather(*asked)


async def test_a_load_is_over_when_every_worker_has_it_or_is_gone(samples: Samples) -> None:
    attach(samples, FIRST)
    attach(samples, SECOND)
    one = asyncio.create_task(samples.load(RUN, 1, "path", OpId("one")))
    two = asyncio.create_task(samples.load(RUN, 2, "path", OpId("two")))
    await asyncio.sleep(0)
    samples.finished(FIRST, OpId("one"), Done())
    samples.finished(FIRST, OpId("two"), Done())
    await asyncio.sleep(0)
    assert not one.done()
    samples.finished(SECOND, OpId("one"), Done())
    await one
    assert not two.done()
    samples.lost(SECOND)
    await two


async def test_an_abort_goes_where_the_sample_is(samples: Samples) -> None:
    first, second = attach(samples, FIRST), attach(samples, SECOND)
    asked = [asyncio.create_task(samples.sample((op(n, (ord(n),) * 20),))) for n in "ab"]
    await asyncio.sleep(0.01)
    asked[1].cancel()
    await asyncio.gather(asked[1], return_exceptions=True)
    assert [c.op_ids for c in second.sent if isinstance(c, m.AbortSamples)] == [("b",)]
    assert not [c for c in first.sent if isinstance(c, m.AbortSamples)]
    samples.finished(FIRST, OpId("a"), SampleResult(samples=()))
    await asked[0]


class Moving:
    """Two samples on the first of two workers; the second moves ``a`` on."""

    def __init__(self, samples: Samples, *, version: int = 0) -> None:
        self.samples, self.version = samples, version
        self.first, self.second = attach(samples, FIRST), attach(samples, SECOND)

    async def ask(self) -> None:
        prompt = (1,) * 20
        self.ops = [replace(op(n, prompt), version=self.version) for n in "ab"]
        self.asked = [asyncio.create_task(self.samples.sample((o,))) for o in self.ops]
        await asyncio.sleep(0.01)
        assert self.first.ops() == [["a", "b"]]
        self.samples.stepped(FIRST, 3)
        self.samples.move([OpId("a")], FIRST, SECOND, kv=True)

    def exported(self) -> None:
        sample = MovedSample(tokens=(5, 6), logprobs=(0.0, 0.0), topk=(), stop_reason=None)
        self.samples.moved(Moved(op=self.ops[0], shape=SHAPE, samples=(sample,)))

    def imported(self, worker: Worker) -> list[str]:
        return [c.moved.op.op_id for c in worker.sent if isinstance(c, m.ImportSample)]

    def dropped(self) -> list[list[int]]:
        workers = (self.first, self.second)
        return [[c.version for c in w.sent if isinstance(c, m.DropAdapter)] for w in workers]

    async def end(self, worker_id: WorkerId = SECOND) -> None:
        answer = SampleResult(samples=())
        self.samples.finished(worker_id, OpId("a"), answer)
        self.samples.finished(FIRST, OpId("b"), answer)
        assert await asyncio.gather(*self.asked) == [(answer,), (answer,)]


@pytest.fixture
async def moving(samples: Samples) -> Moving:
    moving = Moving(samples)
    await moving.ask()
    return moving


async def test_a_sample_that_moves_counts_where_it_goes_and_goes_on_there(moving: Moving) -> None:
    assert moving.samples.loads() == {FIRST: 1, SECOND: 1}
    (command,) = [c for c in moving.first.sent if isinstance(c, m.ExportSamples)]
    assert (command.op_ids, command.kv) == (("a",), True)
    assert [s.op_id for s in moving.samples.movable()] == ["b"], "one move at a time"
    moving.exported()
    assert moving.imported(moving.second) == ["a"]
    known = {s.op_id: (s.worker_id, s.tokens_known) for s in moving.samples.movable()}
    assert known == {"a": (SECOND, 21), "b": (FIRST, 21)}, "a limit of one token"
    await moving.end()


async def test_what_ends_before_it_is_given_up_is_answered_once(moving: Moving) -> None:
    await moving.end(FIRST)
    moving.exported()
    assert moving.imported(moving.second) == []


async def test_what_is_given_up_by_its_owner_meanwhile_goes_nowhere(moving: Moving) -> None:
    moving.asked[0].cancel()
    await asyncio.gather(moving.asked[0], return_exceptions=True)
    moving.exported()
    assert moving.imported(moving.second) == []
    moving.samples.finished(FIRST, OpId("b"), SampleResult(samples=()))
    await moving.asked[1]


async def test_a_source_that_dies_first_leaves_the_sample_to_be_drawn_again(
    moving: Moving,
) -> None:
    moving.samples.lost(FIRST)
    await asyncio.sleep(0.01)
    assert moving.second.ops() == [["a", "b"]]
    await moving.end()


async def test_a_source_that_dies_afterwards_has_nothing_to_do_with_it(moving: Moving) -> None:
    moving.exported()
    moving.samples.lost(FIRST)
    await asyncio.sleep(0.01)
    assert moving.second.ops() == [["b"]]
    await moving.end()


async def test_a_target_that_dies_first_leaves_the_sample_where_it_was(moving: Moving) -> None:
    moving.samples.lost(SECOND)
    moving.second = attach(moving.samples, SECOND)
    moving.exported()
    assert moving.imported(moving.first) == ["a"], "the new one may lack its version"
    assert moving.imported(moving.second) == []
    await moving.end(FIRST)


async def test_a_target_that_dies_afterwards_leaves_the_sample_to_be_drawn_again(
    moving: Moving,
) -> None:
    moving.exported()
    moving.samples.lost(SECOND)
    await asyncio.sleep(0.01)
    assert moving.first.ops() == [["a", "b"], ["a"]]
    await moving.end(FIRST)


async def test_a_version_is_forgotten_when_nobody_can_be_asked_to_draw_from_it(
    moving: Moving,
) -> None:
    moving.samples.drop_version(RUN, 1)
    moving.samples.drop_version(RUN, 0)
    assert moving.dropped() == [[1], [1]]
    moving.exported()
    assert moving.dropped() == [[1], [1]]
    await moving.end()
    assert moving.dropped() == [[1, 0], [1, 0]]


async def test_a_new_worker_can_draw_from_a_version_that_is_about_to_go(moving: Moving) -> None:
    moving.samples._roster[RUN].version = 2
    moving.samples.drop_version(RUN, 0)
    moving.samples.lost(SECOND)
    again = attach(moving.samples, SECOND)
    assert [c.version for c in again.sent if isinstance(c, m.LoadAdapter)] == [0]
    await moving.end(FIRST)


async def test_nothing_moves_of_a_paused_run_or_while_a_death_is_looked_into(
    samples: Samples,
) -> None:
    attach(samples, FIRST)
    attach(samples, SECOND)
    asked = asyncio.create_task(samples.sample((op("a"),)))
    await asyncio.sleep(0.01)
    assert len(samples.movable()) == 1
    samples._roster[RUN].paused = True
    assert samples.movable() == ()
    samples._roster[RUN].paused = False
    samples.lost(FIRST)
    await asyncio.sleep(0.01)
    assert samples.movable() == ()
    samples.finished(SECOND, OpId("a"), SampleResult(samples=()))
    await asked
