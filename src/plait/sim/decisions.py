"""Decisions: a recorded launch's decisions computed again, line by line.

Each line of ``decisions.jsonl`` holds all that a policy was told and what it answered. The policy
named there, made anew with its options, must give the same plan from the same view and state: if
not, the policy has changed since, or it depended on something that is no input of it.

Left to others: writing the lines (``obs.recorder``; a simulation's trace has the same form).
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from plait.core.errors import ConfigError, PlaitError
from plait.core.view import AdmissionView, DispatchView, HomeView, MovesView, ToolWaitView
from plait.obs.jsonl import read_jsonl
from plait.obs.layout import LaunchLayout
from plait.obs.records import DECISIONS_VERSION, plain
from plait.policies import registry
from plait.policies.protocol import Sharing
from plait.sim.rebuild import rebuild

Make = Callable[..., Sharing]
"""``policies.registry.make``: name and options to policies."""

VIEWS: Mapping[str, type] = {
    "admission": AdmissionView,
    "dispatch": DispatchView,
    "residency": ToolWaitView,
    "home": HomeView,
    "moves": MovesView,
}
"""What each kind of decision is told; the names are those of ``Sharing``'s fields."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One decision that is not what it was."""

    line: int
    """From 1."""
    t: float
    kind: str
    recorded: Any
    now: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """What became of a trace's decisions."""

    policy: str
    n_decisions: Mapping[str, int]
    """By kind."""
    differences: tuple[Difference, ...] = ()
    """The first ``MAX_SHOWN`` of them."""
    n_different: int = 0

    @property
    def same(self) -> bool:
        """Every plan is exactly what it was."""
        return self.n_different == 0


UNREADABLE = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)
"""What a policy may raise over a view or state that no launch of this version has written."""

MAX_SHOWN = 10
"""Differences that are kept: the first ones tell what has changed."""


def check_launch(launch_dir: str | Path, *, make: Make = registry.make) -> Checked:
    """Decide again what a launch decided; ConfigError if it is none, or of another version."""
    layout = LaunchLayout(Path(launch_dir))
    if not layout.info.is_file():
        raise ConfigError(
            f"{launch_dir} is no launch directory (it has no launch.json): "
            "give the directory that plait run printed"
        )
    if not layout.decisions.is_file():
        raise ConfigError(f"{launch_dir} has no decisions.jsonl: it cannot be checked")
    return check_decisions(read_jsonl(layout.decisions), where=str(layout.decisions), make=make)


def check_decisions(
    rows: Iterable[Mapping[str, Any]], *, where: str = "trace", make: Make = registry.make
) -> Checked:
    """Decide again what ``rows`` say was decided. ConfigError for a row of another version, of an
    unknown kind or policy, or that lacks something."""
    made: dict[str, Sharing] = {}
    counts: Counter[str] = Counter()
    differences: list[Difference] = []
    n_different, policy = 0, ""
    for line, row in enumerate(rows, start=1):
        at = f"{where}:{line}"
        _check_version(at, row)
        try:
            kind, policy = row["kind"], row["policy"]
            key = repr((policy, sorted(dict(row["options"]).items())))
            if key not in made:
                made[key] = make(policy, **row["options"])
            view: Any = rebuild(VIEWS[kind], row["view"])
            decider = getattr(made[key], kind)
            plan, _ = decider.decide(view, row["state"], row["now"])
            recorded, t = row["plan"], float(row.get("t", 0.0))
        except PlaitError as error:
            raise ConfigError(f"{at}: {error}") from error
        except UNREADABLE as error:
            raise ConfigError(
                f"{at} is no decision that this version can read ({type(error).__name__}: {error})"
                ": check it with the plait that recorded it"
            ) from error
        counts[kind] += 1
        answer = plain(plan)
        if answer != recorded:
            n_different += 1
            if len(differences) < MAX_SHOWN:
                differences.append(
                    Difference(
                        line=line,
                        t=t,
                        kind=kind,
                        recorded=recorded,
                        now=answer,
                    )
                )
    return Checked(
        policy=policy,
        n_decisions=dict(counts),
        differences=tuple(differences),
        n_different=n_different,
    )


def _check_version(at: str, row: Mapping[str, Any]) -> None:
    version = row.get("version")
    if version != DECISIONS_VERSION:
        raise ConfigError(
            f"{at} is of version {version!r}, not {DECISIONS_VERSION}: "
            "check it with the plait that recorded it, or record it again"
        )
