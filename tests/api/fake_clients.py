"""Clients of a house in memory: their sessions and samplers."""

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fake_rows import Session

from plait.core.errors import NotFound
from plait.core.ids import RunId
from plait.service.ports import Page, SessionInfo, Who

if TYPE_CHECKING:
    from fake_house import FakeHouse


class Clients:
    """The port."""

    def __init__(self, house: "FakeHouse") -> None:
        self.house = house

    async def open_session(self, who: Who, told: Mapping[str, Any]) -> str:
        session_id = f"s-{len(self.house.sessions_by_id):04x}"
        self.house.sessions_by_id[session_id] = Session(
            who=who,
            info=SessionInfo(
                session_id=session_id,
                created_at=self.house.wall(),
                model_ids=(),
                sampler_ids=(),
                user_metadata=told.get("user_metadata", {}),
                display_name=told.get("display_name", ""),
            ),
        )
        return session_id

    async def heartbeat(self, who: Who, session_id: str) -> None:
        self.house.alive(who, session_id)

    async def finish(self, who: Who, session_id: str, reason: str, detail: str) -> None:
        session = self.house.session(who, session_id)
        session.info = replace(session.info, ended=session.info.ended or reason)

    async def open_sampler(
        self, who: Who, session_id: str, seq: int, *, base_model: str | None, path: str | None
    ) -> str:
        house = self.house
        house.alive(who, session_id)
        version, run = None, RunId("~base")
        if path is not None:
            house.checkpoint(who, path)
            version, run = 0, RunId(f"~{session_id}.{seq}")
            house.rollout.load_adapter(run, 0, str(house.folder(path)))
        elif base_model not in (house.name, str(house.model_dir)):
            raise NotFound(f"base model {base_model} is not served")
        return house.add_sampler(
            who, session_id, seq, base_model=house.name, path=path, run=run, version=version
        )

    async def sampler(self, who: Who, sampler_id: str) -> Mapping[str, Any]:
        sampler = self.house.sampler(who, sampler_id)
        return {
            "sampler_id": sampler_id,
            "base_model": sampler.base_model,
            "model_path": sampler.path,
        }

    async def join(self, who: Who, sampler_id: str) -> int:
        sampler = self.house.sampler(who, sampler_id)
        sampler.clones += 1
        return sampler.clones

    async def session(self, who: Who, session_id: str) -> SessionInfo:
        info = self.house.session(who, session_id).info
        return replace(
            info,
            model_ids=[m for m in self.house.models_by_id if m.startswith(f"{session_id}:")],
            sampler_ids=[s for s in self.house.samplers if s.startswith(f"{session_id}:")],
        )

    async def sessions(self, who: Who, *, limit: int, offset: int) -> Page[SessionInfo]:
        own = [
            s.info
            for s in reversed(self.house.sessions_by_id.values())
            if s.who.tenant_id == who.tenant_id
        ]
        return Page(items=own[offset : offset + limit], total=len(own))

    async def flags(self, who: Who) -> Mapping[str, Any]:
        return self.house.flags_of.get(who.tenant_id, {})
