"""Sections of a job file: small, typed, each value with its range.

Every key here is read by the controller, the engine or the tracker; a combination in which a key
would do nothing is refused. Values are finite numbers. Names of models, environments and rewards
are resolved by their own registries, which refuse what they do not know.
"""

from difflib import get_close_matches
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationInfo,
    field_validator,
    model_validator,
)

from plait.core.losses import LOSSES
from plait.core.runs import ALL_LINEAR, MAX_RANK, MAX_SEED, MIN_SEED, TARGETS
from plait.jobs.plain import not_plain
from plait.rewards.names import JUDGE

MAX_COUNT = 10**9
"""No job counts further, and what is computed from counts stays a number."""
MAX_SECONDS = 10**6
"""Eleven days: clocks of the operating system overflow not far above."""

# Strict numbers: `true` is no 1 and "5" is no 5.
Int = Annotated[int, Field(strict=True)]
Float = Annotated[float, Field(strict=True)]
Count = Annotated[Int, Field(ge=1, le=MAX_COUNT)]
CountOrNone = Annotated[Int, Field(ge=0, le=MAX_COUNT)]
"""0 turns off what is counted."""
Seconds = Annotated[Float, Field(gt=0, le=MAX_SECONDS)]
Positive = Annotated[Float, Field(gt=0)]
NotNegative = Annotated[Float, Field(ge=0)]

PYTHON_PATH = r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$"
"""``module:name``."""

CLIPPED = tuple(name for name, loss in LOSSES.items() if "clip_low_threshold" in loss.options)
"""Losses that bound the ratio."""
DEFAULT_TARGET_WINDOW = 5
"""Steps over which the training reward is averaged before it is held against the target."""


class Section(BaseModel):
    """Frozen, and no key that is not declared."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class AdapterSection(Section):
    """The LoRA adapter that is trained. ``seed`` is the job's where none is given."""

    rank: Annotated[Int, Field(ge=1, le=MAX_RANK)] = 8
    alpha: Positive = 16.0
    targets: Annotated[tuple[str, ...], Field(min_length=1)] = ALL_LINEAR
    seed: Annotated[Int, Field(ge=MIN_SEED, le=MAX_SEED)] | None = None

    @field_validator("targets")
    @classmethod
    def _exist(cls, targets: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        """The context is the names of the model's linear layers: none before a download, a Llama's
        where there is no context. The default targets mean all in the blocks."""
        known = TARGETS if info.context is None else info.context
        is_default = set(targets) == set(ALL_LINEAR)
        for name in targets if known and not is_default else ():
            if name not in known:
                near = get_close_matches(name, known, n=1)
                hint = f"did you mean `{near[0]}`?" if near else f"known: {', '.join(known)}"
                raise ValueError(f"`{name}` matches no linear layer: {hint}")
        return targets


class OpenSection(BaseModel):
    """Keys beside the declared ones belong to what the section names. Frozen, and plain values
    alone: what a job file can say, so that the resolved configuration says the same."""

    model_config = ConfigDict(extra="allow", frozen=True, allow_inf_nan=False)

    @property
    def config(self) -> dict[str, Any]:
        """The keys that are not the section's own; whose they are refuses what he does not know."""
        return dict(self.__pydantic_extra__ or {})

    @model_validator(mode="after")
    def _plain(self) -> Self:
        for key, value in self.config.items():
            if (why := not_plain(value)) is not None:
                raise ValueError(f"`{key}` {why}")
        return self


class EnvironmentSection(OpenSection):
    """``name`` and whatever keys that environment takes; it refuses those it does not know."""

    name: Annotated[str, Field(min_length=1)]


class RewardSection(OpenSection):
    """A built-in verifier by ``name`` (a judge has further keys of its own) or a ``function``."""

    name: Annotated[str, Field(min_length=1)] | None = None
    function: Annotated[str, Field(pattern=PYTHON_PATH)] | None = None
    weight: Float = 1.0
    deadline_s: Seconds = 10.0

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        if (self.name is None) == (self.function is None):
            raise ValueError("give either `name` (a built-in) or `function: module:name`")
        if self.name != JUDGE and self.config:
            key = next(iter(self.config))
            near = get_close_matches(key, type(self).model_fields, n=1)
            hint = f": did you mean `{near[0]}`?" if near else ": leave it out"
            raise ValueError(f"`{self.name or self.function}` takes no key `{key}`{hint}")
        return self


class AlgorithmSection(Section):
    """How rewards become a gradient. ``kl_coef`` 0: no reference; above: KL to the base model.

    ``clip_low`` and ``clip_high`` bound the ratio of new to old probability (the losses of
    ``CLIPPED`` only); ``beta`` is ``dro``'s. ``kl_by_ratio`` multiplies each token's KL by that
    ratio (only with a KL).
    """

    name: Literal["grpo", "dr-grpo", "rloo", "reinforce++"] = "grpo"
    loss: Literal["ppo", "importance_sampling", "cispo", "dro", "gspo"] = "ppo"
    clip_low: Annotated[Float, Field(ge=0, le=1)] | None = None
    clip_high: Annotated[Float, Field(ge=1)] | None = None
    beta: NotNegative | None = None
    kl_coef: NotNegative = 0.0
    kl_by_ratio: Annotated[bool, Field(strict=True)] | None = None

    @model_validator(mode="before")
    @classmethod
    def _fill(cls, data: Any) -> Any:
        """Defaults of the keys that the others give a meaning."""
        if not isinstance(data, dict):
            return data
        if data.get("loss", "ppo") in CLIPPED:
            bounds = LOSSES["ppo"].options
            low, high = bounds["clip_low_threshold"], bounds["clip_high_threshold"]
            data = {"clip_low": low, "clip_high": high} | data
        if data.get("kl_coef"):
            data = {"kl_by_ratio": True} | data
        return data

    @model_validator(mode="after")
    def _all_are_used(self) -> Self:
        if self.kl_by_ratio is not None and self.kl_coef == 0:
            raise ValueError("`kl_by_ratio` would do nothing: it needs `kl_coef` above 0")
        clips = self.clip_low is not None or self.clip_high is not None
        if clips and self.loss not in CLIPPED:
            losses = ", ".join(CLIPPED)
            raise ValueError(
                f"`clip_low` and `clip_high` would do nothing: they need a `loss` of {losses}"
            )
        if self.beta is not None and self.loss != "dro":
            raise ValueError("`beta` would do nothing: it needs `loss: dro`")
        if self.beta is None and self.loss == "dro":
            raise ValueError("`loss: dro` needs `beta`: the weight of its penalty, such as 0.05")
        return self

    @property
    def loss_config(self) -> dict[str, float]:
        """What goes with the loss to the training engine."""
        config = {"kl_coef": self.kl_coef}
        if self.kl_by_ratio is not None:
            config["kl_by_ratio"] = float(self.kl_by_ratio)
        if self.clip_low is not None and self.clip_high is not None:
            config |= {"clip_low_threshold": self.clip_low, "clip_high_threshold": self.clip_high}
        if self.beta is not None:
            config["beta"] = self.beta
        return config


class LimitsSection(Section):
    """What one sample may use. ``max_turns`` caps the environment's own number of turns."""

    max_prompt_tokens: Count = 1024
    max_tokens: Count = 256
    """New tokens per turn."""
    max_turns: Count | None = None
    rollout_deadline_s: Seconds = 600.0
    """One budget for everything in a rollout: generation, tools and rewards."""


class SamplingSection(Section):
    """How training samples are drawn; ``top_k: 0`` and ``top_p: 1`` are off."""

    temperature: Positive = 1.0
    top_k: CountOrNone = 0
    top_p: Annotated[Float, Field(gt=0, le=1)] = 1.0
    stop: tuple[Annotated[str, Field(min_length=1)], ...] = ()
    ignore_eos: Annotated[bool, Field(strict=True)] = False
    """Go on after the model's end token, to the turn's limit (benchmarks of fixed length)."""


class OptimizerSection(Section):
    """AdamW. The rate rises over ``warmup_steps``, then follows ``schedule`` to the last step."""

    learning_rate: Positive = 1e-4
    beta1: Annotated[Float, Field(ge=0, lt=1)] = 0.9
    beta2: Annotated[Float, Field(ge=0, lt=1)] = 0.95
    eps: Positive = 1e-8
    weight_decay: NotNegative = 0.0
    grad_clip_norm: NotNegative = 1.0
    warmup_steps: CountOrNone = 0
    schedule: Literal["constant", "linear", "cosine"] = "constant"


class EvaluationSection(Section):
    """Held-out evaluation before the first step (unless ``at_start`` is false), after the last, and
    every ``every`` steps between (0: not between). ``temperature`` 1 measures the policy that is
    trained, 0 its best guess."""

    at_start: Annotated[bool, Field(strict=True)] = True
    every: CountOrNone = 0
    items: Count = 32
    samples: Count = 1
    temperature: NotNegative = 1.0


class CheckpointSection(Section):
    """A checkpoint (adapter, moments, counters) every ``every`` steps; the ``keep_last`` newest
    stay, and the ``keep_best`` with the highest mean reward."""

    every: Count = 10
    keep_last: Count = 2
    keep_best: CountOrNone = 0
