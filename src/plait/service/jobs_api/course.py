"""Course: what a job goes through, from its place among its tenant's runs to its end in a launch.

A job with code of its owner's waits while the server runs none. A launch may be left under a job
(the house closes, its workers are gone for good): then it waits for the next one and goes on at its
last committed step.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress

from plait.core.errors import CLOSED, ConfigError, PlaitError, RunEnded, StoreError
from plait.core.ids import RunId
from plait.core.text import told
from plait.jobs.launch import Launch
from plait.jobs.spec import JobSpec
from plait.service.jobs_api.environments import source_of
from plait.service.jobs_api.led import Led
from plait.service.ports import House, Waiting
from plait.store.jobs import JobRow, JobStatus

PLACE_S = 1.0
"""How often a job that waits for a place among its tenant's runs looks again."""
AGAIN_S = 5.0
"""When to ask again for a launch that could not be started."""


class Course:
    """The course of all jobs of a house."""

    def __init__(
        self,
        house: House,
        *,
        forbids: Callable[[JobSpec], str | None],
        wall: Callable[[], float],
    ) -> None:
        """``forbids``: why a job may not run here now, if it may not."""
        self._house, self._forbids, self._wall = house, forbids, wall

    async def follow(self, led: Led) -> tuple[JobStatus | None, str]:
        """How it ended; no status if the house was closed around it."""
        if not await self._place(led):
            return JobStatus.CANCELLED, led.doom or ""
        while True:
            try:
                if (why := self._forbids(led.spec)) is not None:
                    raise ConfigError(why)
                launch = await self._house.launch(led.spec.model)
            except PlaitError as error:  # NotFound too: it may be served again in another life
                if str(error) == CLOSED:
                    return None, ""
                if not await self._pause(led, told(error)):
                    return JobStatus.CANCELLED, led.doom or ""
                continue
            try:
                ended = await self._begin(led, launch)
            except (StoreError, RunEnded) as error:  # no room on the disk; the launch was left
                if not await self._pause(led, told(error)):
                    return JobStatus.CANCELLED, led.doom or ""
                continue
            ended = ended or await self._stay(led, launch)
            if ended is not None:
                return ended
            led.launch, led.waits = None, Waiting(reason="its launch is starting again")

    async def ended(self, led: Led, status: JobStatus, reason: str) -> None:
        """Write down how it ended, however often that takes."""
        while True:
            try:
                await self.note(led, status, reason)
                return
            except StoreError as error:  # a full disk, say
                led.waits = Waiting(reason=told(error))
                await asyncio.sleep(AGAIN_S)

    async def _pause(self, led: Led, why: str) -> bool:
        """Wait for another try, or for its owner to change the job; False once it is cancelled."""
        led.waits = Waiting(reason=why)
        led.changed.clear()
        if led.doom is None:
            with suppress(TimeoutError):
                async with asyncio.timeout(AGAIN_S):
                    await led.changed.wait()
        return led.doom is None

    async def _begin(self, led: Led, launch: Launch) -> tuple[JobStatus, str] | None:
        """Let it join a launch; how it ended if it had before. StoreError or RunEnded if it has not
        joined: nothing is lost by trying again."""
        job_id, spec = led.row.job_id, self._placed(led)
        before = await asyncio.to_thread(self._house.store.runs.find, RunId(job_id))
        if before is not None and before.status.ended:
            return JobStatus(before.status.value), before.reason
        if not led.paused and led.doom is None:
            await self.note(led, JobStatus.RUNNING, "")
        log = launch.recorder.layout.job(spec.name).environment_log
        source = await asyncio.to_thread(source_of, spec, launch.tokenizer, log)
        try:
            launch.add_job(spec, source, tenant_id=led.row.tenant_id)
        except (StoreError, RunEnded):
            await source.aclose()
            raise
        led.launch, led.waits = launch, Waiting()
        if led.paused:
            led.hold()
        return None

    async def _stay(self, led: Led, launch: Launch) -> tuple[JobStatus, str] | None:
        """How it ended in this launch; None if the launch was left before."""
        if led.doom is not None:
            await launch.cancel(led.row.job_id, led.doom)
        try:
            outcome = await launch.wait(led.row.job_id)
        except RunEnded as error:
            if str(error) != CLOSED:
                raise
            return None
        return JobStatus(outcome.stage.value), outcome.reason

    async def _place(self, led: Led) -> bool:
        """Wait for a place among the tenant's runs; False if it was cancelled before."""
        limits, tenant_id = self._house.access.limits, led.row.tenant_id
        while led.doom is None:
            if led.paused:
                led.waits = Waiting(reason="paused by its owner")
                await led.changed.wait()
            elif (hold := limits.take_run(tenant_id, led.row.job_id)) is None:
                led.placed, led.waits = True, Waiting(reason="its launch is starting")
                return True
            else:
                led.waits = Waiting(reason=hold.reason, position=hold.position)
                with suppress(TimeoutError):
                    async with asyncio.timeout(PLACE_S):
                        await led.changed.wait()
            led.changed.clear()
        return False

    def _placed(self, led: Led) -> JobSpec:
        """The job as the launch knows it: by its id, with its tenant's weight and priority."""
        tenant = self._house.access.tenant(led.row.tenant_id)
        return led.spec.model_copy(
            update={
                "name": str(led.row.job_id),
                "weight": led.spec.weight * tenant.weight,
                "priority": min(led.spec.priority, tenant.priority),
            }
        )

    async def note(self, led: Led, status: JobStatus, reason: str) -> None:
        """Write down how a job stands."""
        led.row = await self.stands(led.row, status, reason)

    async def stands(self, row: JobRow, status: JobStatus, reason: str) -> JobRow:
        """The same of one that nobody leads; its row."""
        changed = await self._house.writer.write(
            self._house.store.jobs.set_status,
            row.job_id,
            status,
            reason=reason,
            run_id=RunId(row.job_id),
            now=self._wall(),
        )
        await self._house.writer.write(
            self._house.store.events.add,
            f"job_{status.value}",
            tenant_id=row.tenant_id,
            job_id=row.job_id,
            detail={"name": row.name, "reason": reason},
            now=self._wall(),
        )
        return changed
