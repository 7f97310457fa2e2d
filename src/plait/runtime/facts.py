"""Facts: what the head knows of each run, from which views are made.

Mutable, owned by the head's event loop alone. Policies never see these objects, only the frozen
``RunView`` made from them. Whoever keeps something that is made from facts is told which have
changed (``Roster.watch``): any that an attribute of was set, so what is changed in place (``kv``,
``pace``) is followed by setting one.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from plait.core.errors import CLOSED, PlaitError, RunEnded
from plait.core.ids import RunId, WorkerId
from plait.core.operations import ForwardBackward
from plait.core.plan import Wait
from plait.core.runs import RunSpec, Stage
from plait.core.view import RunView
from plait.profiles.kv import KvProfile, expected_blocks
from plait.profiles.timing import TimingProfile
from plait.runtime.journal import Journal
from plait.runtime.live_views import LiveViews
from plait.runtime.notice import Notice
from plait.runtime.pace import Pace


@dataclass(slots=True, kw_only=True)
class RunFacts:
    """One run, live."""

    watchers: Sequence[dict[RunId, None]] = ()
    """Sets of runs that have changed, to which this one adds itself. The first field, since every
    other one that is set asks for it."""
    spec: RunSpec
    order: int
    rollout: Stage | None = None
    """``WAIT_ROLLOUT``, ``ROLLOUT`` or ``REWARD`` while a batch of trajectories is being made."""
    train: Stage | None = None
    """``WAIT_TRAIN`` or ``TRAIN`` while an update is under way; a run with bounded staleness can be
    in both at once."""
    end: Stage | None = None
    since_s: float = 0.0
    step: int = 0
    served_s: float = 0.0
    tokens: int = 0
    by_kind: dict[str, tuple[float, int]] = field(default_factory=dict)
    """The same by kind of span: device-seconds and tokens."""
    prompt_tokens: int = 0
    """Of samples that it was given, however often they were computed."""
    sampled_tokens: int = 0
    paused: bool = False
    closed: bool = False
    """Its launch has been left: it takes nothing more here, and can be gone on with."""
    evaluating: bool = False
    reason: str = ""
    """Why the run ended, where it ended badly."""
    told: Notice | None = None
    """Where it stands why it was left waiting."""
    wait_reason: str = ""
    worst_blocks: int = 0
    """Cache blocks of its current or next rollout if every sample ran to its limit."""
    kv: dict[bool, KvProfile] = field(default_factory=dict)
    """Measured footprints: evaluations apart (``True``), since their batches have another shape."""
    timing: TimingProfile = field(default_factory=TimingProfile)
    pace: Pace = field(default_factory=Pace)
    rollout_since_s: float = 0.0
    """When the rollout under way was admitted; ``since_s`` moves with the training side too."""
    kv_block_s: float = 0.0
    """Block-seconds held by the rollout under way."""
    kv_held: dict[WorkerId, float] = field(default_factory=dict)
    """Blocks that its samples held of late, by worker."""
    kv_peak_blocks: int = 0
    kv_throttled: bool = False
    next_seq: int = 1
    version: int | None = None
    path: str = ""
    """Directory of the committed version."""
    published: set[int] = field(default_factory=set)
    uncommitted: list[ForwardBackward] = field(default_factory=list)
    """Redo list: gradients accumulated on the worker since the committed version."""

    def __setattr__(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)
        for changed in self.watchers:
            changed[self.spec.run_id] = None

    def version_path(self, version: int) -> str:
        """Directory of a committed version that is still kept."""
        return str(Path(self.path).parent / f"{version:06d}")

    @property
    def kv_profile(self) -> KvProfile:
        """Measured footprint of the kind of rollout now asked for or under way."""
        return self.kv.get(self.evaluating, KvProfile())

    @property
    def stage(self) -> Stage:
        """Where the run is, as one word: its end, else its rollout side, else its training side."""
        return self.end or self.rollout or self.train or Stage.IDLE

    def served(self, kind: str, device_s: float, tokens: int) -> None:
        """A worker has worked for it."""
        self.served_s += device_s
        self.tokens += tokens
        before_s, before = self.by_kind.get(kind, (0.0, 0))
        self.by_kind[kind] = (before_s + device_s, before + tokens)

    def sampled(self, prompt_tokens: int, sampled_tokens: int) -> None:
        """A sample of its own has ended."""
        self.prompt_tokens += prompt_tokens
        self.sampled_tokens += sampled_tokens

    def view(self) -> RunView:
        """The run as a policy sees it."""
        spec, pace, worst = self.spec, self.pace, self.worst_blocks
        # Samples paused in the middle of a rollout keep their blocks: the policy must count them.
        holds_cache = self.rollout is Stage.ROLLOUT
        return RunView(
            run_id=spec.run_id,
            tenant_id=spec.tenant_id,
            order=self.order,
            weight=spec.weight,
            priority=spec.priority,
            stage=Stage.PAUSED if self.paused and not holds_cache else self.stage,
            stage_since_s=self.since_s,
            step=self.step,
            served=self.served_s,
            kv_blocks=expected_blocks(self.kv_profile, worst) if self.kv else worst,
            kv_blocks_worst=worst,
            evaluating=self.evaluating,
            tpts_s=pace.tpts_s,
            alone_s=pace.alone_s,
        )

    def staged(self, now: float, journal: Journal) -> None:
        """Its stage has changed."""
        self.since_s = now
        self.pace.staged(self.stage, now)
        journal.event(self.spec.run_id, "stage", stage=self.stage.value, step=self.step)

    @property
    def wait(self) -> Wait | None:
        """Why it is not being served, as its owner is told."""
        return None if self.told is None else self.told.of(self.spec.run_id)

    def waits_for(self, notice: Notice, reason: str, journal: Journal) -> None:
        """Let its owner know why it is not being served; written down when the reason changes."""
        known = self.told is not None and self.wait_reason == reason
        if known and self.told is notice:
            return
        self.told, self.wait_reason = notice, reason
        if known or not journal.keeps("wait") or (wait := self.wait) is None:
            return
        journal.event(
            self.spec.run_id,
            "wait",
            reason=wait.reason,
            detail=wait.detail,
            position=wait.position,
        )

    def check_live(self) -> None:
        """RunEnded, with the reason, if the run takes nothing more."""
        if self.stage.ended:
            raise RunEnded(f"run {self.spec.run_id} is {self.stage}: {self.reason or 'finished'}")
        if self.closed:
            raise RunEnded(CLOSED)


class Roster:
    """All runs of the launch, in order of submission."""

    def __init__(self) -> None:
        self._runs: dict[RunId, RunFacts] = {}
        self._n_added = 0
        self._watchers: list[dict[RunId, None]] = []
        self._live = LiveViews(self.watch(), self._live_view)
        self.closed: PlaitError | None = None
        """Why nothing can run here any more, once that is so."""

    def add(self, spec: RunSpec, now: float) -> RunFacts:
        """Enter a run; its id must be new. Raises what closed the roster, if anything did."""
        self.check_open()
        if spec.run_id in self._runs:
            raise RunEnded(f"run {spec.run_id} exists already: choose another name")
        facts = RunFacts(spec=spec, order=self._n_added, since_s=now)
        self._n_added += 1
        self._runs[spec.run_id] = facts
        facts.watchers = self._watchers
        return facts

    def remove(self, run_id: RunId) -> None:
        """Forget a run; it may be entered again."""
        self._runs.pop(run_id, None)
        for changed in self._watchers:
            changed[run_id] = None

    def watch(self) -> dict[RunId, None]:
        """A set of the runs that change from now on, and of all that there are; whoever asked for
        it takes out what has been seen to."""
        changed: dict[RunId, None] = dict.fromkeys(self._runs)
        self._watchers.append(changed)
        return changed

    def check_open(self) -> None:
        """Raise what closed the roster, if anything did."""
        if self.closed is not None:
            raise self.closed

    def close(self) -> None:
        """The launch is being left: no run is entered and none takes anything more."""
        self.closed = self.closed or RunEnded(CLOSED)
        for facts in self._runs.values():
            facts.closed = True

    def __getitem__(self, run_id: RunId) -> RunFacts:
        try:
            return self._runs[run_id]
        except KeyError:
            raise RunEnded(f"there is no run {run_id} here: create it first") from None

    def get(self, run_id: RunId) -> RunFacts | None:
        return self._runs.get(run_id)

    def all(self) -> list[RunFacts]:
        """Every run, ended ones included."""
        return list(self._runs.values())

    def live_views(self) -> tuple[RunView, ...]:
        """Views of the runs that have not ended."""
        return self._live.look()

    def _live_view(self, run_id: RunId) -> RunView | None:
        facts = self._runs.get(run_id)
        if facts is None or (facts.end is not None and facts.end.ended):
            return None
        return facts.view()
