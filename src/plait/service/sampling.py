"""Sampling: what the house asks of whoever samples for outside clients."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from plait.core.ids import TenantId
from plait.service.ports import Who
from plait.service.sample_lane import SampleLane
from plait.service.sample_requests import SampleRequests


class Sampling(Protocol):
    """Samplers, what they pin, and their requests."""

    @property
    def samples(self) -> SampleRequests:
        """Their requests, which whoever has some goes to straight away."""

    async def recover(self) -> None:
        """Go on with the samplers of an earlier life of the house."""

    async def close(self) -> None:
        """Refuse what is under way: it is asked for again."""

    async def lane(self, base_model: str) -> SampleLane:
        """The lane of a base model, whose launch is started if need be; NotFound."""

    async def open(
        self, who: Who, session_id: str, seq: int, *, base_model: str | None, path: str | None
    ) -> str:
        """A sampler of a base model or of a ``tinker://`` path; asked again, the same."""

    async def info(self, who: Who, sampler_id: str) -> Mapping[str, Any]:
        """One sampler, as ``ports.Clients.sampler``."""

    async def join(self, who: Who, sampler_id: str) -> int:
        """A number for a new copy of a sampling client."""

    async def snapshot(
        self,
        *,
        tenant_id: TenantId,
        session_id: str,
        seq: int,
        model_id: str,
        version: int,
        directory: Path,
        inflight: bool,
    ) -> str:
        """An ephemeral sampler of a committed version; asked again, the same."""

    async def advanced(self, model_id: str, version: int, directory: Path) -> None:
        """A model has a new version: samplers that follow it go on with that."""

    async def end_session(self, session_id: str) -> None:
        """Cancel a session's samples and free what its samplers pin."""
