"""D6: with 10,000 samples parked, how long a free place waits for the next one: p99, and flat.

The lane as the service runs it, over an engine that ends a sample as soon as it is told to. What is
timed is a sample's end until the next one is in the engine's hands. 40 tenants of different weight
with 5 runs each; "flat": ten times as many parked take at most ``FLAT`` times as long (median).
"""

import asyncio
import tempfile
import time
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from benchmarks.figure import Measured
from benchmarks.live.launches import spread
from plait.core.ids import TenantId
from plait.core.operations import Sample, Sampled, SampleResult, SamplingParams, StopReason
from plait.service.sample_lane import SampleLane
from plait.service.snapshots import Snapshots
from plait.service.ticket import Share, Source
from plait.service.work import SampleWork

PARKED = (100, 1_000, 10_000)
TENANTS, RUNS = 40, 5
TURNS = 2_000
REPEATS = 3
P99_S, FLAT = 0.005, 2.0
ROOM = 32


class Engine:
    """Ends the sample that has been with it longest, when told to."""

    def __init__(self) -> None:
        self._flying: list[tuple[Sample, asyncio.Future[tuple[SampleResult, ...]]]] = []
        self.began: list[float] = []
        self.guests = self

    def settle(self, run_id: str) -> Any:
        return Served()

    async def sample(self, ops: tuple[Sample, ...], **_: Any) -> tuple[SampleResult, ...]:
        self.began.append(time.perf_counter())
        end = asyncio.get_running_loop().create_future()
        self._flying.append((ops[0], end))
        return await end

    def finish(self) -> float:
        """Now."""
        op, end = self._flying.pop(0)
        done = Sampled(tokens=(1,), logprobs=(0.0,), stop_reason=StopReason.LENGTH, version=None)
        end.set_result((SampleResult(samples=(done,) * op.n),))
        return time.perf_counter()


class Served:
    device_s = 0.0


def measure() -> Measured:
    """The bar over the 99th percentile at the most parked."""
    found = {n: [asyncio.run(_waits(n)) for _ in range(REPEATS)] for n in PARKED}
    p99 = {n: median(map(_p99, tries)) for n, tries in found.items()}
    middle = {n: median(map(median, tries)) for n, tries in found.items()}
    most = max(PARKED)
    growth = middle[most] / middle[most // 10]
    return Measured(
        value=P99_S / p99[most],
        ok=p99[most] <= P99_S and growth <= FLAT,
        spread=spread(map(_p99, found[most])),
        detail={
            "p99_ms": {n: s * 1e3 for n, s in p99.items()},
            "median_ms": {n: s * 1e3 for n, s in middle.items()},
            "growth_to_ten_times": growth,
        },
    )


def _p99(waits: list[float]) -> float:
    return quantiles(waits, n=100, method="inclusive")[98]


async def _waits(n_parked: int) -> list[float]:
    """Seconds from an end to the next beginning, with so many parked all the time."""
    engine = Engine()
    with tempfile.TemporaryDirectory() as folder:
        lane = SampleLane(
            engine,  # type: ignore[arg-type]
            room=ROOM,
            room_tokens=1 << 30,
            longest=1 << 20,
            pins=Snapshots(Path(folder)),
            share=lambda source: Share(weight=1.0 + int(source.tenant_id) % 3),
        )
        work = SampleWork(prompt=(1,) * 16, n=1, params=SamplingParams(max_tokens=16))
        tasks: set[asyncio.Task[Any]] = set()

        def enter(i: int) -> None:
            tenant, run = i % TENANTS, i % (TENANTS * RUNS)
            source = Source(tenant_id=TenantId(str(tenant)), base_model="m", run=f"r{run}")
            task = asyncio.ensure_future(lane.sample(source, work))
            tasks.add(task)
            task.add_done_callback(tasks.discard)

        for i in range(n_parked + ROOM):
            enter(i)
        await _until(lambda: len(engine.began) == ROOM)
        waits = []
        for i in range(TURNS):
            n_began = len(engine.began)
            ended = engine.finish()
            await _until(lambda n=n_began: len(engine.began) > n)  # type: ignore[misc]
            waits.append(engine.began[-1] - ended)
            enter(n_parked + ROOM + i)
            await asyncio.sleep(0)
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return waits


async def _until(holds: Any) -> None:
    while not holds():  # noqa: ASYNC110 (what is timed is the loop itself)
        await asyncio.sleep(0)
