"""The event heap: order, cancelling, and the same run as simpy's."""

import random

import pytest
import simpy

from plait.sim.heap import Heap, churn


def test_events_run_in_order_of_time_then_of_entry():
    heap, seen = Heap(), []
    for name, at_s in (("late", 2.0), ("first", 1.0), ("second", 1.0)):
        heap.at(at_s, seen.append, name)
    heap.run()
    assert seen == ["first", "second", "late"]
    assert heap.now == 2.0
    assert heap.n_events == 3


def test_what_is_entered_for_now_runs_within_the_same_step():
    heap, seen = Heap(), []
    heap.at(1.0, lambda _: heap.after(0.0, seen.append, "now"))
    heap.at(2.0, seen.append, "later")
    assert heap.step()
    assert seen == ["now"]


def test_a_cancelled_event_never_runs_and_a_past_time_is_now():
    heap, seen = Heap(), []
    event = heap.at(1.0, seen.append, "cancelled")
    heap.at(2.0, lambda _: heap.at(1.0, seen.append, "past"))
    heap.cancel(event)
    heap.cancel(event)
    heap.run()
    assert seen == ["past"]
    assert heap.now == 2.0
    assert not heap.step()


def test_cancelling_most_of_many_events_keeps_the_rest_in_order():
    heap, seen, rng = Heap(), [], random.Random(1)
    events = [(rng.random(), i) for i in range(10_000)]
    entered = [heap.at(at_s, seen.append, (at_s, i)) for at_s, i in events]
    kept = set(rng.sample(range(10_000), 500))
    for i, event in enumerate(entered):
        if i not in kept:
            heap.cancel(event)
    heap.run()
    assert seen == sorted(events[i] for i in kept)


def test_churn_runs_what_it_says():
    assert churn(10_000) >= 10_000


@pytest.mark.parametrize("seed", range(5))
def test_a_queue_is_served_as_in_simpy(seed):
    """Customers of one server, first come, first served: the same times of service."""
    rng = random.Random(seed)
    customers = [(rng.choice([0.5, 1.0, rng.random()]) * i, rng.random()) for i in range(200)]

    theirs = []
    env = simpy.Environment()
    server = simpy.Resource(env)

    def customer(i, at_s, takes_s):
        yield env.timeout(at_s)
        with server.request() as turn:
            yield turn
            yield env.timeout(takes_s)
            theirs.append((i, env.now))

    for i, (at_s, takes_s) in enumerate(customers):
        env.process(customer(i, at_s, takes_s))
    env.run()

    ours, queue, heap = [], [], Heap()
    busy = [False]

    def arrive(i):
        queue.append(i)
        serve()

    def serve():
        if queue and not busy[0]:
            busy[0] = True
            i = queue.pop(0)
            heap.after(customers[i][1], leave, i)

    def leave(i):
        busy[0] = False
        ours.append((i, heap.now))
        serve()

    for i, (at_s, _) in enumerate(customers):
        heap.at(at_s, arrive, i)
    heap.run()
    assert [i for i, _ in ours] == [i for i, _ in theirs]
    assert [t for _, t in ours] == pytest.approx([t for _, t in theirs])
