"""Samples in flight: sent together, loaded again, never lost with their worker."""

import asyncio
from pathlib import Path
from typing import Any, cast

import pytest

from plait.core.errors import RunEnded, WorkerLost
from plait.core.ids import LOCAL_TENANT, OpId, RunId
from plait.core.operations import Done, Sample, SampleResult, SamplingParams
from plait.core.runs import RunSpec
from plait.runtime import messages as m
from plait.runtime.facts import Roster
from plait.runtime.handle import WorkerHandle
from plait.runtime.samples import Samples

RUN = RunId("one")


class Worker:
    """A worker that remembers what it is sent."""

    def __init__(self) -> None:
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


def attach(samples: Samples) -> Worker:
    worker = Worker()
    samples.attach(cast(WorkerHandle, worker))
    return worker


def op(name: str) -> Sample:
    params = SamplingParams(max_tokens=1, seed=0)
    return Sample(op_id=OpId(name), run_id=RUN, version=0, prompt=(1,), n=1, params=params)


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
        samples.finished(OpId(name), SampleResult(samples=()))
    await asyncio.gather(*asked)


async def test_a_new_worker_gets_what_waits_in_the_outbox_only_once(samples: Samples) -> None:
    attach(samples)
    asked = asyncio.create_task(samples.sample((op("a"),)))
    samples.lost()
    await asyncio.sleep(0)
    worker = attach(samples)
    await asyncio.sleep(0.01)
    assert worker.ops() == [["a"]]
    samples.finished(OpId("a"), SampleResult(samples=()))
    await asked


async def test_a_load_is_repeated_on_the_next_worker(samples: Samples) -> None:
    attach(samples)
    loading = asyncio.create_task(samples.load(RUN, 1, "path", OpId("load")))
    await asyncio.sleep(0)
    samples.lost()
    worker = attach(samples)
    assert [c.op_id for c in worker.sent if isinstance(c, m.LoadAdapter)] == ["load"]
    samples.finished(OpId("load"), Done())
    await loading


async def test_a_load_that_kills_its_worker_twice_fails(samples: Samples) -> None:
    attach(samples)
    loading = asyncio.create_task(samples.load(RUN, 1, "path", OpId("load")))
    await asyncio.sleep(0)
    samples.lost()
    attach(samples)
    samples.lost()
    with pytest.raises(WorkerLost, match="twice during a publish"):
        await loading


async def test_the_end_of_its_run_ends_a_load(samples: Samples) -> None:
    loading = asyncio.create_task(samples.load(RUN, 1, "path", OpId("load")))
    await asyncio.sleep(0)
    samples.drop(RUN, RunEnded("cancelled"))
    with pytest.raises(RunEnded):
        await asyncio.wait_for(loading, 1)
