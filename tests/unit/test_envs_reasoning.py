"""plait.envs.reasoning: any reasoning-gym dataset by name, scored where it can be killed."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from plait.core.errors import ConfigError, EnvironmentFailure
from plait.envs.gym_data import score
from plait.envs.reasoning import ReasoningGym
from plait.envs.registry import make_source
from plait.models.tokenizer import Tokenizer

pytest.importorskip("reasoning_gym")

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture(scope="module")
def tokenizer(byte_model: Path) -> Tokenizer:
    return Tokenizer(byte_model)


def source(tokenizer: Tokenizer, dataset: str, seed: int = 0, **config: Any) -> ReasoningGym:
    made = make_source("reasoning-gym", {"dataset": dataset, **config}, tokenizer, seed)
    assert isinstance(made, ReasoningGym)
    return made


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def chain_sum(tokenizer: Tokenizer) -> AsyncIterator[ReasoningGym]:
    made = source(tokenizer, "chain_sum", params={"max_terms": 2, "max_digits": 1, "min_digits": 1})
    yield made
    await made.aclose()


async def reward(made: ReasoningGym, reply: str, index: int = 0) -> float | None:
    env = made.make(index, "train")
    await env.start()
    return (await env.step(made.tokenizer.encode(reply.format(**env.columns())))).reward


async def test_right_wrong_and_nothing(chain_sum: ReasoningGym) -> None:
    assert await reward(chain_sum, "Thinking.\nAnswer: {answer}") == 1.0
    assert await reward(chain_sum, "<answer>{answer}</answer> I hope") == 1.0
    assert await reward(chain_sum, "z") == 0.0
    assert await reward(chain_sum, "") == 0.0


async def test_parameters_and_template(tokenizer: Tokenizer) -> None:
    made = source(
        tokenizer, "basic_arithmetic", params={"max_terms": 2}, template="Q: {question}\nA:"
    )
    env = made.make(0, "eval")
    text = tokenizer.decode(await env.start())
    assert text == f"Q: {env.columns()['question']}\nA:"
    assert made.name == "reasoning-gym/basic_arithmetic"


@pytest.mark.parametrize(
    "dataset", ["basic_arithmetic", "letter_counting", "spell_backward", "countdown", "mini_sudoku"]
)
async def test_items_depend_on_seed_split_and_index_alone(
    tokenizer: Tokenizer, dataset: str
) -> None:
    one, two = source(tokenizer, dataset), source(tokenizer, dataset)
    order = [300, 7, 0]
    backwards = [(await two.load(i, "eval")).data for i in reversed(order)]
    assert [(await one.load(i, "eval")).data for i in order] == backwards[::-1]
    other = source(tokenizer, dataset, seed=1)
    assert [other.problem(i, "eval").data for i in order] != backwards[::-1]


async def test_held_out_items_occur_in_train_under_no_seed(
    tokenizer: Tokenizer, chain_sum: ReasoningGym
) -> None:
    """One-digit sums: a few hundred questions, so that a plain seed per split would collide."""
    params = chain_sum.config.params
    sides: dict[str, set[str]] = {"train": set(), "eval": set()}
    for made in (chain_sum, source(tokenizer, "chain_sum", seed=1, params=params)):
        for split, questions in sides.items():
            questions.update(made.problem(i, split).prompt for i in range(400))
    assert not sides["train"] & sides["eval"]
    assert min(map(len, sides.values())) > 20


async def test_a_group_shares_one_problem(chain_sum: ReasoningGym) -> None:
    envs = [chain_sum.make(5, "train") for _ in range(8)]
    prompts = await asyncio.gather(*(env.start() for env in envs))
    assert len(set(prompts)) == 1
    assert all(env.problem is envs[0].problem for env in envs)


async def test_a_scorer_that_raises_or_hangs_is_no_reward_of_0(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    made = source(tokenizer, "prime_factorization")
    with pytest.raises(EnvironmentFailure, match="ValueError"):
        await reward(made, "foo bar")
    await made.aclose()
    (tmp_path / "stuck_scorer.py").write_text("def score(*args):\n    while True: pass\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    monkeypatch.setattr("plait.envs.reasoning.SCORE", "stuck_scorer:score")
    stuck = source(tokenizer, "chain_sum", score_deadline_s=0.3)
    with pytest.raises(EnvironmentFailure, match=r"longer than 0\.3 s and was killed"):
        await reward(stuck, "1")
    await stuck.aclose()


async def test_composite(tokenizer: Tokenizer) -> None:
    specs = [{"name": "chain_sum", "weight": 2}, {"name": "letter_counting"}]
    made = source(tokenizer, "composite", params={"datasets": specs})
    problem = await made.load(0, "train")
    params_json = json.dumps(made.config.params)
    assert score("composite", params_json, problem.data, problem.answer) == 1.0
    assert score("composite", params_json, problem.data, "no") == 0.0


@pytest.mark.parametrize(
    ("dataset", "config", "says"),
    [
        ("chain_sums", {}, "no dataset chain_sums: did you mean chain_sum"),
        ("chain_sum", {"params": {"max_term": 2}}, "no parameter max_term: did you mean max_terms"),
        ("chain_sum", {"params": {"min_terms": 9}}, "chain_sum refused its parameters"),
        ("chain_sum", {"param": {}}, "no key param: did you mean params"),
        ("chain_sum", {"template": "solve it"}, "must contain {question}"),
        ("chain_sum", {"answer": "last"}, "answer input should be 'auto'"),
    ],
)
async def test_bad_configuration(
    tokenizer: Tokenizer, dataset: str, config: dict[str, Any], says: str
) -> None:
    with pytest.raises(ConfigError, match=says):
        source(tokenizer, dataset, **config)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # some datasets leave files open, another's numpy complains
async def test_every_dataset(tokenizer: Tokenizer) -> None:
    """Each makes a train and a held-out item and gives its own answer a reward."""
    from reasoning_gym.factory import DATASETS

    for dataset in sorted(set(DATASETS) - {"composite"}):
        made = source(tokenizer, dataset)
        for split in ("train", "eval"):
            assert (await made.load(0, split)).prompt, dataset
        problem = await made.load(0, "train")
        if problem.answer is not None and "{" not in problem.answer:
            assert 0 < score(dataset, "{}", problem.data, problem.answer) <= 1, dataset
        await made.aclose()
