"""JobSpec: one job as its file describes it, checked, with every default filled in.

The only way from configuration to core types. What spans sections is checked here; what one section
can check, it checks (``sections``). Reading files is ``load``'s, the trainer's behaviour nobody's
here.
"""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from plait.algos.schedules import learning_rate_at
from plait.core.ids import RUN_NAME
from plait.core.operations import AdamParams, SamplingParams
from plait.core.runs import MAX_SEED, LoraSpec
from plait.jobs.sections import (
    DEFAULT_TARGET_WINDOW,
    PYTHON_PATH,
    AdapterSection,
    AlgorithmSection,
    CheckpointSection,
    Count,
    EnvironmentSection,
    EvaluationSection,
    Float,
    Int,
    LimitsSection,
    OptimizerSection,
    RewardSection,
    SamplingSection,
    Section,
)

MAX_SAMPLES = 10**6
"""Of one step or evaluation, all of which are held at once."""
MAX_WINDOW = 10_000
"""Rewards that are written down with each step."""
MAX_PRIORITY = 10**6
MAX_WEIGHT, MIN_WEIGHT = 1e6, 1e-6
"""A share of the machine beyond these is all of it or none."""
MAX_STALENESS = 64
"""Beyond it a bounded-staleness run is a run with the wrong number of groups."""


class JobSpec(Section):
    """One job."""

    name: Annotated[str, Field(pattern=RUN_NAME)]
    model: Annotated[str, Field(min_length=1)] = "tiny"
    adapter: AdapterSection = AdapterSection()
    environment: EnvironmentSection
    rewards: tuple[RewardSection, ...] = ()
    algorithm: AlgorithmSection = AlgorithmSection()
    groups: Count = 8
    """Prompts per step."""
    samples: Count = 8
    """Samples per prompt."""
    limits: LimitsSection = LimitsSection()
    sampling: SamplingSection = SamplingSection()
    optimizer: OptimizerSection = OptimizerSection()
    staleness: Annotated[Int, Field(ge=0, le=MAX_STALENESS)] = 0
    """Versions that a trajectory may lag behind; 0 is strictly on-policy."""
    steps: Count | None = None
    target_reward: Float | None = None
    target_window: Annotated[Int, Field(ge=1, le=MAX_WINDOW)] | None = None
    evaluation: EvaluationSection | None = None
    checkpoint: CheckpointSection = CheckpointSection()
    seed: Annotated[Int, Field(ge=0, le=MAX_SEED)] = 0
    priority: Annotated[Int, Field(ge=-MAX_PRIORITY, le=MAX_PRIORITY)] = 0
    weight: Annotated[Float, Field(ge=MIN_WEIGHT, le=MAX_WEIGHT)] = 1.0
    controller: Annotated[str, Field(pattern=PYTHON_PATH)] | None = None
    trackers: tuple[Literal["wandb", "trackio"], ...] = ()
    base_dir: str = ""
    """Directory of the job file, filled in on loading: modules and paths start there."""

    @model_validator(mode="before")
    @classmethod
    def _fill_window(cls, data: object) -> object:
        if isinstance(data, dict) and data.get("target_reward") is not None:
            return {"target_window": DEFAULT_TARGET_WINDOW} | data
        return data

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.steps is None and self.target_reward is None:
            raise ValueError("give `steps`, `target_reward` or both: the job would never end")
        if self.target_window is not None and self.target_reward is None:
            raise ValueError("`target_window` would do nothing without `target_reward`")
        if self.steps is None and self.optimizer.schedule != "constant":
            raise ValueError(
                f"`optimizer.schedule: {self.optimizer.schedule}` needs `steps` to know its end"
            )
        if self.steps is not None and self.optimizer.warmup_steps > self.steps:
            raise ValueError("`optimizer.warmup_steps` is more than `steps`")
        if self.groups * self.samples > MAX_SAMPLES:
            raise ValueError(
                f"`groups` × `samples` is more than {MAX_SAMPLES} samples per step: lower one"
            )
        e = self.evaluation
        if e is not None and e.items * e.samples > MAX_SAMPLES:
            raise ValueError(
                f"`evaluation.items` × `evaluation.samples` is more than {MAX_SAMPLES} samples: "
                "lower one"
            )
        if self.samples < 2 and self.algorithm.name != "reinforce++":
            raise ValueError(
                f"`samples: 1` gives `{self.algorithm.name}` nothing to compare: use at least 2"
            )
        return self

    def lora(self) -> LoraSpec:
        """The adapter to create."""
        a = self.adapter
        seed = self.seed if a.seed is None else a.seed
        return LoraSpec(rank=a.rank, alpha=a.alpha, targets=a.targets, seed=seed)

    def sampling_params(self, seed: int, *, stop: tuple[str, ...] = ()) -> SamplingParams:
        """How a training turn is drawn. ``stop`` are the environment's strings, the job's own are
        added; the model's end tokens are the engine's to know."""
        s = self.sampling
        return SamplingParams(
            max_tokens=self.limits.max_tokens,
            temperature=s.temperature,
            top_k=s.top_k,
            top_p=s.top_p,
            stop=tuple(dict.fromkeys((*s.stop, *stop))),
            ignore_eos=s.ignore_eos,
            seed=seed,
        )

    def evaluation_params(self, seed: int, *, stop: tuple[str, ...] = ()) -> SamplingParams:
        """How a held-out turn is drawn: the evaluation's temperature, nothing cut off; answers as
        long as in training, for their length is part of the task."""
        return SamplingParams(
            max_tokens=self.limits.max_tokens,
            temperature=(self.evaluation or EvaluationSection()).temperature,
            stop=tuple(dict.fromkeys((*self.sampling.stop, *stop))),
            ignore_eos=self.sampling.ignore_eos,
            seed=seed,
        )

    def adam(self, step: int) -> AdamParams:
        """Optimizer parameters of ``step`` (from 1)."""
        o = self.optimizer
        return AdamParams(
            learning_rate=learning_rate_at(
                step,
                peak=o.learning_rate,
                warmup_steps=o.warmup_steps,
                schedule=o.schedule,
                total_steps=self.steps,
            ),
            beta1=o.beta1,
            beta2=o.beta2,
            eps=o.eps,
            weight_decay=o.weight_decay,
            grad_clip_norm=o.grad_clip_norm,
        )

    def turns(self, environment_turns: int) -> int:
        """Turns that a sample may take in an environment that allows ``environment_turns``."""
        own = self.limits.max_turns
        return environment_turns if own is None else min(own, environment_turns)
