import time
from pathlib import Path

import pytest

from plait.core.errors import ConfigError
from plait.envs.protocol import TaskFactory, Turn
from plait.envs.tiny import lookup_factory, sort_factory, sum_factory
from plait.envs.tiny_problems import draw, lookup_problem, sort_problem, split_of, sum_problem
from plait.models.tiny import write_tokenizer
from plait.models.tokenizer import Tokenizer

FACTORIES = {"tiny-sum": sum_factory, "tiny-sort": sort_factory, "tiny-lookup": lookup_factory}
MAKERS = {"tiny-sum": sum_problem, "tiny-sort": sort_problem, "tiny-lookup": lookup_problem}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    out: Path = tmp_path_factory.mktemp("tokenizer")
    write_tokenizer(out)
    return Tokenizer(out)


class Player:
    """One environment driven by text."""

    def __init__(self, factory: TaskFactory, tokenizer: Tokenizer, **config: object) -> None:
        self.tokenizer = tokenizer
        self.source = factory(config, tokenizer, 0)
        self.env = self.source.make(0, "train")
        self.answer = self.env.columns()["answer"]

    async def says(self, text: str) -> Turn:
        return await self.env.step(self.tokenizer.encode(text))

    async def prompt(self) -> str:
        return self.tokenizer.decode(await self.env.start())


@pytest.mark.parametrize("name", FACTORIES)
def test_no_problem_of_eval_is_ever_asked_in_train(name: str) -> None:
    make = MAKERS[name]
    keys = {
        split: {draw(make, name, seed, split, i).key for i in range(300) for seed in (0, 1)}
        for split in ("train", "eval")
    }
    assert not keys["train"] & keys["eval"]
    assert len(keys["eval"]) > 50
    assert all(split_of(key) == split for split, found in keys.items() for key in found)


@pytest.mark.parametrize("name", FACTORIES)
async def test_problem_depends_on_seed_split_and_index_only(
    name: str, tokenizer: Tokenizer
) -> None:
    async def prompts(seed: int, split: str) -> list[tuple[int, ...]]:
        source = FACTORIES[name]({}, tokenizer, seed)
        return [await source.make(i, split).start() for i in range(20)]

    first = await prompts(0, "train")
    assert first == await prompts(0, "train")
    assert first != await prompts(1, "train")
    assert first != await prompts(0, "eval")
    assert len(set(first)) > 15
    assert all(8 <= len(prompt) <= 24 for prompt in first)


def test_unknown_split_is_refused(tokenizer: Tokenizer) -> None:
    with pytest.raises(ValueError, match="test"):
        sum_factory({}, tokenizer, 0).make(0, "test")


async def test_sum_is_right_or_not(tokenizer: Tokenizer) -> None:
    player = Player(sum_factory, tokenizer)
    a, b = (await player.prompt()).removeprefix("sum ").removesuffix("=").split("+")
    assert int(player.answer) == int(a) + int(b)
    assert (await player.says(f"{player.answer};")).reward == 1.0
    assert (await Player(sum_factory, tokenizer).says("1000;")).reward == 0.0


async def test_text_after_the_stop_and_end_tokens_do_not_count(tokenizer: Tokenizer) -> None:
    player = Player(sum_factory, tokenizer)
    assert (await player.says(f"{player.answer};12<|end|>")).reward == 1.0
    assert (await Player(sum_factory, tokenizer).says(f"{player.answer}<|end|>")).reward == 1.0


async def test_each_retry_of_sort_keeps_a_quarter(tokenizer: Tokenizer) -> None:
    player = Player(sort_factory, tokenizer)
    for _ in range(2):
        turn = await player.says("no idea;")
        assert not turn.done
        assert turn.reward is None
        assert tokenizer.decode(turn.tokens) == "no="
    turn = await player.says(f"{player.answer};")
    assert turn.done
    assert turn.reward == 0.25**2
    assert turn.info["turns"] == 3


async def test_sort_ends_when_the_tries_are_used_up(tokenizer: Tokenizer) -> None:
    player = Player(sort_factory, tokenizer, max_turns=2)
    assert player.source.max_turns == 2
    assert not (await player.says("x;")).done
    last = await player.says("x;")
    assert last.done
    assert last.reward == 0.0


async def test_sort_asks_for_the_length_it_is_told(tokenizer: Tokenizer) -> None:
    player = Player(sort_factory, tokenizer, length=5)
    asked = (await player.prompt()).removeprefix("sort ").removesuffix("=")
    assert len(asked) == 5
    assert player.answer == "".join(sorted(asked)) != asked


async def test_lookup_opens_the_table_to_the_right_query_only(tokenizer: Tokenizer) -> None:
    player = Player(lookup_factory, tokenizer)
    name = (await player.prompt()).removeprefix("get ").removesuffix("=")
    wrong = await player.says("?xyz;")
    assert tokenizer.decode(wrong.tokens) == "none="
    right = await player.says(f"?{name};")
    assert not right.done
    assert tokenizer.decode(right.tokens) == f"{player.answer}="
    end = await player.says(f"{player.answer};")
    assert (end.done, end.reward, end.info["tool_calls"]) == (True, 1.0, 2)


async def test_lookup_without_a_query_earns_nothing(tokenizer: Tokenizer) -> None:
    player = Player(lookup_factory, tokenizer)
    assert (await player.says(f"{player.answer};")).reward == 0.0


async def test_lookup_answers_no_more_queries_than_allowed(tokenizer: Tokenizer) -> None:
    player = Player(lookup_factory, tokenizer, tool_calls=1)
    assert player.source.max_turns == 2
    assert not (await player.says("?xyz;")).done
    end = await player.says("?xyz;")
    assert (end.done, end.reward, end.info["tool_calls"]) == (True, 0.0, 1)


@pytest.mark.parametrize(
    ("name", "text"), [("tiny-sum", "1;"), ("tiny-sort", "a;"), ("tiny-lookup", "?a;")]
)
async def test_latency_is_waited_at_each_check(name: str, text: str, tokenizer: Tokenizer) -> None:
    player = Player(FACTORIES[name], tokenizer, latency_s=0.05)
    began = time.perf_counter()
    await player.says(text)
    assert time.perf_counter() - began >= 0.049


async def test_an_answer_costs_no_lookup_latency(tokenizer: Tokenizer) -> None:
    player = Player(lookup_factory, tokenizer, latency_s=5)
    began = time.perf_counter()
    await player.says("12;")
    assert time.perf_counter() - began < 1


def test_unknown_key_is_refused_with_the_nearest(tokenizer: Tokenizer) -> None:
    with pytest.raises(ConfigError, match="did you mean latency_s"):
        sum_factory({"latency": 1}, tokenizer, 0)


@pytest.mark.parametrize("config", [{"latency_s": -1}, {"length": 9}, {"max_turns": "many"}])
def test_value_out_of_range_is_refused(config: dict[str, object], tokenizer: Tokenizer) -> None:
    with pytest.raises(ConfigError, match=next(iter(config))):
        sort_factory(config, tokenizer, 0)
