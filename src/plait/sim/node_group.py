"""Node group: its devices, who is bound to it, and what its runs share."""

from dataclasses import dataclass, field

from plait.core.ids import RunId
from plait.core.placement import GroupFacts, GroupId, PlacedRun
from plait.sim.mux import MuxGroup
from plait.sim.spec import DeviceGroup
from plait.sim.trainer import Trainer


@dataclass(slots=True, kw_only=True, eq=False)
class NodeGroup:
    """One node group's state."""

    spec: DeviceGroup
    free: list[int]
    """Devices without an owner, lowest last."""
    bound: dict[RunId, PlacedRun] = field(default_factory=dict)
    trainer: Trainer | None = None
    pool: list[int] = field(default_factory=list)
    """Devices of the shared trainer."""
    mux: MuxGroup | None = None
    facts: GroupFacts | None = None
    """As last told; ``None`` after a change."""

    @property
    def group_id(self) -> GroupId:
        return GroupId(self.spec.name)


def empty(group: DeviceGroup) -> NodeGroup:
    """With all its devices free."""
    return NodeGroup(spec=group, free=list(range(group.n_devices - 1, -1, -1)))
