"""Shared tools: one process for all who ask for the same tool with the same config.

Counted leases per event loop: the last to release ends the process. Nothing here starts one.
"""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from plait.envs.tools.process import ToolProcess


@dataclass(slots=True, kw_only=True)
class _Shared:
    tool: ToolProcess
    n_users: int = 0


_by_loop: "WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, _Shared]]" = WeakKeyDictionary()
# Keyed by the loop because sources are made apart from each other and share nothing but the loop
# they run in: it stands for the launch, and what is left when it goes is forgotten with it.


@dataclass(slots=True, kw_only=True)
class Lease:
    """The right to use a shared tool until ``aclose``."""

    tool: ToolProcess
    _key: str
    _released: bool = False

    async def aclose(self) -> None:
        """Give it back; ends the process if nobody else holds it. Again: no effect."""
        if self._released:
            return
        self._released = True
        tools = _by_loop[asyncio.get_running_loop()]
        tools[self._key].n_users -= 1
        if not tools[self._key].n_users:
            await tools.pop(self._key).tool.aclose()


def lease(target: str, config: Mapping[str, Any], *, name: str) -> Lease:
    """A lease on the tool ``target`` with ``config``; call it inside the event loop."""
    tools = _by_loop.setdefault(asyncio.get_running_loop(), {})
    key = json.dumps([target, dict(config)], sort_keys=True)
    shared = tools.setdefault(
        key, _Shared(tool=ToolProcess(target=target, config=config, name=name))
    )
    shared.n_users += 1
    return Lease(tool=shared.tool, _key=key)
