"""Assumptions: what the papers leave unsaid about their work, each with its reason.

Set before any policy was run on them, from the papers' text, the data sets and the engines'
defaults, never from the speed-ups that the papers report. Where a result hangs on one of these,
the evaluation says so.
"""

from dataclasses import dataclass, replace

from plait.sim.spec import Lengths, Tool


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What one sample of a data set does, with a base model of medium strength."""

    prompt: Lengths
    response: Lengths
    """Of one turn."""
    turns: tuple[float, ...] = (1.0,)
    tool: Tool | None = None
    reward_s: float = 0.0


FEW_TURNS = (0.45, 0.30, 0.12, 0.08, 0.05)
"""JigsawRL §3.1: most samples complete within one or two turns, a small fraction extends to four
or five. Three quarters and an eighth are taken for these words."""

SEARCH_TURNS = (0.10, 0.45, 0.25, 0.12, 0.05, 0.03)
"""Up to five tool calls (MARLaaS §5). HotpotQA's questions need two documents: nearly all ask once,
most stop after one or two answers."""

RULE_REWARD_S = 0.2
"""Comparing some hundred answers with the truth by rule: next to nothing (JigsawRL, Table 1)."""

JUDGE_S = 5.0
"""A 32B judge on devices of its own reads all samples of a step at once and writes some dozen
tokens each (MARLaaS §5 says what it is, not how long it takes)."""

RETRIEVED = Lengths(kind="uniform", least=250, most=750)
"""Three passages of MS MARCO or Wikipedia with about 170 tokens each; lengths vary by over 50 %
(JigsawRL §3.1)."""

FAISS = Tool(latency_s=2.0, jitter=0.25, result=RETRIEVED, blocked=True)
"""One batch of a worker's queries: embedding some hundred queries with a 110M encoder on CPUs takes
one to two seconds, searching 32 of 4096 lists of 8.8 million vectors ten milliseconds a query and
core. Blocked, as JigsawRL §3.1 says of retrieval."""

WIKIPEDIA = Tool(latency_s=1.0, jitter=0.5, result=RETRIEVED)
"""A search and a page from a remote API, for each sample by itself (MARLaaS §5)."""

REFINE = Tool(latency_s=0.0, result=Lengths(kind="fixed", median=64.0))
"""Between turns of self-refinement a short instruction is added, and nothing is waited for."""

LIMIT = 8192
"""JigsawRL §5.1, tokens of a response. In verl these are all turns and tool results together."""


def _task(prompt: float, median: float, sigma: float, most: int) -> Task:
    return Task(
        prompt=Lengths(kind="lognormal", median=prompt, sigma=0.3, least=32, most=2048),
        response=Lengths(kind="lognormal", median=median, sigma=sigma, least=16, most=most),
        reward_s=RULE_REWARD_S,
    )


# Log-normal, as lengths of generated texts are usually found to be; sigma 0.8 over 256 samples
# makes the longest about nine times the median, 0.6 about five times. Harder tasks are longer and
# more even, easier ones shorter and more skewed (JigsawRL §3.1 and §5.2).
TASKS = {
    "gsm8k": _task(120.0, 400.0, 0.8, LIMIT),
    # Grade-school problems of 60 tokens with a template; two to eight steps of reasoning, which
    # base models write out at some length.
    "math": _task(140.0, 900.0, 0.6, LIMIT),
    # Competition problems: solutions two to three times as long.
    "aime": replace(_task(180.0, 1600.0, 0.6, LIMIT), turns=FEW_TURNS, tool=REFINE),
    # The hardest of the three, with self-refinement in further turns (JigsawRL §5.1).
    "search": replace(_task(250.0, 120.0, 0.5, LIMIT), turns=SEARCH_TURNS, tool=FAISS),
    # A thought and a query, or a short answer, each turn (Search-R1); long instructions before.
    "amc12": _task(150.0, 1500.0, 0.6, 4096),
    # Between MATH and AIME; cut at 4096 (MARLaaS §5).
    "gsm8k-2048": _task(120.0, 400.0, 0.8, 2048),
    # As gsm8k; cut at 2048 (MARLaaS §5).
    "wiki-search": replace(
        _task(250.0, 120.0, 0.5, 1024), turns=SEARCH_TURNS, tool=WIKIPEDIA, reward_s=JUDGE_S
    ),
    # As search, by a remote API, judged by a model; cut at 1024 (MARLaaS §5).
    "long-math": _task(200.0, 10_000.0, 0.75, 32_768),
    # Reasoning at length: about 12k tokens on average, the mean that the cluster trace is given
    # with, after the cut at the usual 32k.
}
"""By name. What is not said in a paper's text is assumed here."""

WEAK_LENGTH, WEAK_BELOW = 1.3, 1e9
"""Models under a billion parameters ramble: weaker models write longer (JigsawRL §2.1)."""

INSTRUCT_LENGTH, INSTRUCT_SIGMA = 0.6, 0.2
"""Tuned models write less, but more skewed (JigsawRL §3.1): sigma grows by 0.2."""

DISTILLED_LENGTH = 2.0
"""Distilled from a reasoning model: thinks before it answers, whatever the task."""

JIGSAW_TENSOR_PARALLEL = {"qwen3-32b": 4}
"""§4.2 serves Qwen3-32B on four devices; others as their weights ask for."""

JIGSAW_PROMPTS, JIGSAW_GROUP = 64, 4
"""Global batch 64, group 4 (§5.1). verl's batch counts prompts: 256 samples a step."""

MARLAAS_GROUP = 4
"""Not given; AReaL's GRPO examples sample four answers. Its batch counts prompts too."""

PLEXRL_PROMPTS, PLEXRL_GROUP = 64, 8
"""Not given; usual for reasoning at length, where 512 samples of 12k tokens fill a step."""

PLEXRL_STALENESS = 1
"""Rollout one step ahead: the split, asynchronous pipeline that jobs use in place of a large
colocated one. Other pipelines are to be tried beside it."""

HOST_BYTES = 2_000_000_000_000
"""Memory of a node's host: 2 TB, as in a DGX H100."""

STATE_BYTES = 16
"""Per weight while training in bf16 with Adam (ZeRO, §3.1)."""

ROOM = 2.0
"""A training pool has room for its state twice: once more for activations and buffers."""

ROLLOUT_COPIES = 4
"""Copies of the model in a private rollout pool: what "small data-parallel" (PlexRL, Fig. 7c) is
taken for."""

WEIGHT_SHARE = 0.75
"""A copy takes at most so much of its devices' memory; the rest is for keys and values. With half
of it, 235B would not fit a node of eight, and tensor parallelism across nodes is to be avoided."""

TRACE_MODELS = {
    "qwen3-4b": 0.25,
    "qwen2.5-7b": 0.20,
    "qwen3-8b": 0.20,
    "qwen3-14b": 0.15,
    "qwen3-30b-a3b": 0.10,
    "qwen3-32b": 0.10,
}
"""Jobs of 3B to 32B; small models are tried more often than large ones."""

TRACE_STEPS, TRACE_STEPS_SIGMA, TRACE_STEPS_LIMITS = 60.0, 1.2, (5, 1000)
"""Log-normal: most jobs are short trials, a few train for days. Job durations in published traces
of deep-learning clusters (Philly, Helios) span four orders of magnitude; 1.2 spans two and a half
between the first and the last hundredth."""

TRACE_LENGTH_SIGMA = 0.4
"""Jobs' mean lengths differ by data set and prompt; their mean stays the task's."""

TRACE_PROMPTS = (32, 64, 128)
"""Equally often."""

TRACE_TOOLS_SHARE = 0.3
"""Part of the jobs that use tools, in as many turns as search does; the sum of a sample's turns is
as long as others' responses."""

SANDBOX = Tool(latency_s=10.0, jitter=0.8, result=RETRIEVED)
"""Building and running code in a container, for each sample by itself."""

DAILY_SWING, BUSIEST_HOUR = 0.6, 15.0
"""Arrivals swing by 60 % around their mean, with most at three in the afternoon: published cluster
traces show two to four times as many submissions by day as by night."""

TRACE_TENANTS = 40
"""The k-th submits 1/k as often as the first: few people submit most jobs."""


def response_of(task: str, model: str, n_params: float) -> Lengths:
    """A turn's length on this task by this model."""
    base = TASKS[task].response
    name, median, sigma = model.lower(), base.median, base.sigma
    if n_params < WEAK_BELOW:
        median *= WEAK_LENGTH
    if "instruct" in name:
        median, sigma = median * INSTRUCT_LENGTH, sigma + INSTRUCT_SIGMA
    if "distill" in name:
        median *= DISTILLED_LENGTH
    return replace(base, median=median, sigma=sigma)
