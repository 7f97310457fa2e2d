"""Messages between the head and a worker process: frozen values, pickled over a socket pair.

The head sends commands, the worker answers and reports. Times are ``time.monotonic()`` seconds,
which all processes of one machine share.
"""

from dataclasses import dataclass, field

from plait.core.ids import OpId, RunId, WorkerId
from plait.core.operations import ForwardBackward, Result, Sample, Sampled, TrainOp
from plait.core.plan import Keep
from plait.engines.moved import Moved
from plait.engines.protocol import ModelShape


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerConfig:
    """Everything a worker process needs to start."""

    worker_id: WorkerId
    slot: int
    """The worker's place in the table of shares."""
    rollout: bool
    train: bool
    engine: str
    """``torch``, ``scripted`` or ``module:factory``."""
    model_dir: str
    cores: int
    kv_blocks: int
    block_size: int
    max_seqs: int
    train_memory_bytes: int
    elastic: bool
    step_limit_s: float
    device: str = "cpu"
    dtype: str = "fp32"
    options: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadAdapter:
    op_id: OpId
    run_id: RunId
    version: int
    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DropAdapter:
    run_id: RunId
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AddSamples:
    ops: tuple[Sample, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AbortSamples:
    op_ids: tuple[OpId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportSamples:
    """Send on samples, as far as they have got; of those that have ended the end is on its way."""

    op_ids: tuple[OpId, ...]
    kv: bool
    """Their keys and values too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportSample:
    """Go on with a sample that another worker has begun."""

    moved: Moved


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkPrefix:
    """How soon what is cached of a waiting sample's tokens may be given up."""

    run_id: RunId
    version: int | None
    tokens: tuple[int, ...]
    keep: Keep


@dataclass(frozen=True, slots=True, kw_only=True)
class SetPaused:
    run_id: RunId
    paused: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Train:
    """Carry out ``op``, after ``before`` (what brings the run's state back) if any.

    ``save_to``: where an ``OptimStep`` or ``Create`` leaves the new version, durably, before it
    answers.
    """

    op: TrainOp
    before: tuple[TrainOp, ...] = ()
    save_to: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainTogether:
    """Carry out gradients of several runs, which are all here, in one pass. Each is answered."""

    ops: tuple[ForwardBackward, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DropRun:
    run_id: RunId


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    pass


Command = (
    LoadAdapter
    | DropAdapter
    | AddSamples
    | AbortSamples
    | ExportSamples
    | ImportSample
    | MarkPrefix
    | SetPaused
    | Train
    | TrainTogether
    | DropRun
    | Stop
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    worker_id: WorkerId
    pid: int
    shape: ModelShape
    peak_flops: float
    """Dense matrix-product rate of this machine with all cores, FLOP/s; 0 where unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """An operation's result; ``seconds`` is its service time on the worker."""

    op_id: OpId
    result: Result
    seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """An operation's error: ``code`` of the PlaitError class, and its message."""

    op_id: OpId
    code: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A stretch of one worker's time spent on one kind of work for one set of runs."""

    kind: str
    """``rollout``, ``forward``, ``train``, ``optim``, ``load``."""
    t0: float
    t1: float
    threads: float
    """On average: a worker's share of the cores changes as others come and go."""
    tokens: int
    steps: int
    tokens_by_run: dict[RunId, int]
    n_running: int = 0
    n_waiting: int = 0
    n_preempted: int = 0
    kv_blocks_used: int = 0
    kv_block_s_by_run: dict[RunId, float] = field(default_factory=dict)
    """Block-seconds held: the integral of the run's cache blocks over the span."""
    short_of_blocks: frozenset[RunId] = frozenset()
    """Runs whose samples queued or gave way for want of cache blocks."""
    kv_blocks_idle: int = 0
    n_evicted: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    spans: tuple[Span, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """A sample that was asked to be sent on. The worker has it no more."""

    moved: Moved


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """What a watched sample has drawn since the last word of it: per continuation the tokens from
    number ``first`` on."""

    op_id: OpId
    first: tuple[int, ...]
    samples: tuple[Sampled, ...]


Answer = Ready | Finished | Failed | Report | Exported | Drawn
