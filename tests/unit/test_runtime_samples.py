"""Samples in flight: sent together, loaded again, never lost with their worker."""

import asyncio
from pathlib import Path
from typing import Any, cast

import pytest

from plait.core.errors import RunEnded, WorkerLost
from plait.core.ids import LOCAL_TENANT, OpId, RunId, WorkerId
from plait.core.operations import Done, Sample, SampleResult, SamplingParams
from plait.core.runs import RunSpec
from plait.runtime import messages as m
from plait.runtime.facts import Roster
from plait.runtime.handle import WorkerHandle
from plait.runtime.samples import Samples

RUN = RunId("one")
FIRST, SECOND = WorkerId("rollout-0"), WorkerId("rollout-1")


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
