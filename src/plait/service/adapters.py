"""Adapters: the adapters of outside samplers on one base model's rollout workers, from files that
stay as long as they are loaded.

Which are loaded is ``slots``'; whose turn it is, ``sample_lane``'s.
"""

import asyncio
from pathlib import Path

from plait.core.ids import OpId
from plait.policies.routing import Policy
from plait.runtime.samples import Samples
from plait.runtime.whole import whole
from plait.service.slots import Slots
from plait.service.snapshots import Snapshots


class Adapters:
    """``pins``: a directory for the files of what is loaded, by the number of its load."""

    def __init__(self, samples: Samples, pins: Snapshots, n: int) -> None:
        self._samples, self._pins = samples, pins
        self._n_pins = 0
        self._pin_of: dict[Policy, str] = {}
        self.slots = Slots(n, load=self._load, drop=self._drop)

    async def _load(self, policy: Policy, path: str) -> None:
        run_id, version = policy
        self._n_pins += 1
        name = f"{self._n_pins}"
        try:
            pinned = await whole(
                asyncio.to_thread(self._pins.take, name, Path(path), durable=False)
            )
        except BaseException:
            self._pins.drop(name)
            raise
        self._pin_of[policy] = name
        op_id = OpId(f"guest/{name}")
        await self._samples.load(run_id, version or 0, str(pinned), op_id)

    def _drop(self, policy: Policy) -> None:
        run_id, version = policy
        self._samples.drop_version(run_id, version or 0)
        if (name := self._pin_of.pop(policy, None)) is not None:
            self._pins.drop(name)
