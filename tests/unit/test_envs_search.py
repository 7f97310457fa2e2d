"""plait.envs.search: whole searches against the real tool process, over a small corpus."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from search_support import N_SMALL, own_cache

from plait.core.errors import ConfigError, EnvironmentFailure
from plait.envs.protocol import Turn
from plait.envs.registry import make_source
from plait.envs.search.calls import RETRIEVER
from plait.envs.search.environment import SearchEnv
from plait.envs.search.source import SearchSource
from plait.envs.tools import process as process_module
from plait.envs.tools.shared import lease
from plait.models.tokenizer import Tokenizer

Make = Callable[..., SearchSource]

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture(scope="module", autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with own_cache(tmp_path_factory.getbasetemp() / "search"):
        yield


@pytest.fixture
def tokenizer(byte_model: Path) -> Tokenizer:
    return Tokenizer(byte_model)


@pytest_asyncio.fixture(scope="module", loop_scope="module", autouse=True)
async def _tool(_cache: None) -> AsyncIterator[None]:
    """Hold the tool through the module: it starts once, not for every test."""
    held = lease(RETRIEVER, {"passages": N_SMALL}, name="search")
    await held.tool.ready()
    yield
    await held.aclose()


@pytest_asyncio.fixture(loop_scope="module")
async def make(tokenizer: Tokenizer) -> AsyncIterator[Make]:
    made: list[SearchSource] = []

    def one(seed: int = 0, **config: Any) -> SearchSource:
        section = {"passages": N_SMALL, "result_tokens": [100, 600], **config}
        source = make_source("search", section, tokenizer, seed)
        assert isinstance(source, SearchSource)
        made.append(source)
        return source

    yield one
    for source in made:
        await source.aclose()


def tool_of(source: SearchSource) -> process_module.ToolProcess:
    return source._switchboard._tool().tool


async def say(env: SearchEnv, tokenizer: Tokenizer, text: str) -> Turn:
    return await env.step(tokenizer.encode(text))


async def search(env: SearchEnv, tokenizer: Tokenizer, name: str) -> Turn:
    return await say(env, tokenizer, f"<search>{name}</search>")


def two_hop(source: SearchSource) -> tuple[SearchEnv, str, str]:
    """An environment that asks about a city's currency, and what to search for."""
    for index in range(100):
        env = source.make(index, "train")
        if env.item.kind == "currency":
            facts = {c.code: c for c in source._items._countries.values()}
            city = env.item.question.removesuffix(" lies?").rpartition("the city ")[2]
            return env, f"city {city}", f"country {facts[env.item.hops[1][8:]].name}"
    raise AssertionError("no question about a currency")


async def test_a_search_that_looks_up_both_passages_earns_all(
    make: Make, tokenizer: Tokenizer
) -> None:
    env, city, country = two_hop(make(result_tokens=[600, 600]))
    prompt = tokenizer.decode(await env.start())
    assert prompt.endswith(f"Question: {env.item.question}\n")
    first = await search(env, tokenizer, city)
    assert (first.done, first.reward) == (False, None)
    text = tokenizer.decode(first.tokens)
    assert text.startswith("\n<result>")
    assert text.endswith("</result>\n")
    second = await search(env, tokenizer, country)
    assert env.item.answers[0] in tokenizer.decode(second.tokens)
    last = await say(env, tokenizer, f"<answer>{env.item.answers[0]}</answer>")
    assert last.done
    assert last.reward == pytest.approx(1.0)
    assert last.info["exact"]
    assert last.info["calls"] == 2


async def test_a_wrong_answer_and_no_answer_are_rewards_with_a_reason(
    make: Make, tokenizer: Tokenizer
) -> None:
    source = make()
    wrong = await say(source.make(0, "train"), tokenizer, "<answer>blue</answer>")
    assert (wrong.done, wrong.reward) == (True, 0.0)
    silent = await say(source.make(0, "train"), tokenizer, "I do not know")
    assert (silent.done, silent.reward) == (True, 0.0)
    assert "gave no answer" in silent.info["why"]


async def test_after_the_last_call_only_the_answer_is_left(
    make: Make, tokenizer: Tokenizer
) -> None:
    source = make(max_calls=2)
    assert source.max_turns == 3
    env = source.make(0, "train")
    assert not tokenizer.decode((await search(env, tokenizer, "x")).tokens).endswith("<answer>")
    assert tokenizer.decode((await search(env, tokenizer, "y")).tokens).endswith("<answer>")
    last = await say(env, tokenizer, f"{env.item.answers[0]}</answer>")
    assert last.done
    assert last.info["exact"]
    again = source.make(0, "train")
    for _ in range(2):
        await search(again, tokenizer, "x")
    refused = await search(again, tokenizer, "one more")
    assert refused.done
    assert refused.info["calls"] == 2


async def test_results_vary_in_length_within_the_budget_and_repeat_exactly(
    make: Make, tokenizer: Tokenizer
) -> None:
    source = make(result_tokens=[100, 400])
    around = len(tokenizer.encode("\n<result></result>\n"))
    lengths = []
    for index in range(8):
        turn = await search(source.make(index, "train"), tokenizer, "city Tokyo")
        assert (await search(source.make(index, "train"), tokenizer, "city Tokyo")) == turn
        lengths.append(len(turn.tokens) - around)
        assert len(turn.tokens) <= source.max_observation_tokens
    assert 100 <= min(lengths) < 0.7 * max(lengths)
    assert max(lengths) <= 400


async def test_fixed_calls_fix_calls_and_lengths_whatever_is_sampled(
    make: Make, tokenizer: Tokenizer
) -> None:
    source = make(fixed_calls=3)
    assert source.max_turns == 4

    async def play(chunk: str) -> tuple[list[int], float]:
        env = source.make(5, "train")
        assert env.stop == ()
        lengths: list[int] = []
        while not (turn := await say(env, tokenizer, chunk)).done:
            lengths.append(len(turn.tokens))
        assert turn.reward is not None
        return lengths, turn.reward

    one, two = await play("<answer>stop now</answer>"), await play("")
    assert one[0] == two[0]
    assert len(one[0]) == 3
    assert len(set(one[0])) > 1
    assert one[1] != two[1]
    assert all(0 <= reward <= 1 for _, reward in (one, two))


async def test_blocked_calls_are_one_batch_although_a_sample_ends_early(
    make: Make, tokenizer: Tokenizer
) -> None:
    source = make(calls="step")
    await source.ready()
    before = tool_of(source).batches
    envs = [source.make(i % 2, "train") for i in range(4)]
    asked = [asyncio.create_task(search(env, tokenizer, "Tokyo")) for env in envs[:2]]
    await asyncio.sleep(0.1)
    assert not any(t.done() for t in asked)
    assert (await say(envs[2], tokenizer, "no idea")).done
    await asyncio.sleep(0.1)
    assert not any(t.done() for t in asked)
    envs[3].close()
    assert [t.done for t in await asyncio.wait_for(asyncio.gather(*asked), 10)] == [False, False]
    assert tool_of(source).batches == before + 1


async def test_a_blocked_sample_that_is_forgotten_is_not_waited_for(
    make: Make, tokenizer: Tokenizer
) -> None:
    source = make(calls="group")
    await source.ready()
    env, forgotten = source.make(0, "train"), source.make(0, "train")
    source.make(1, "train")  # of another group: nothing to wait for
    asked = asyncio.create_task(search(env, tokenizer, "Tokyo"))
    await asyncio.sleep(0.1)
    assert not asked.done()
    del forgotten
    assert not (await asyncio.wait_for(asked, 10)).done


async def test_latency_is_added_to_each_call_and_calls_overlap(
    make: Make, tokenizer: Tokenizer
) -> None:
    source = make(latency_s=0.3)
    await source.ready()
    clock = asyncio.get_running_loop().time
    started = clock()
    await asyncio.gather(*(search(source.make(i, "train"), tokenizer, "x") for i in range(6)))
    assert 0.3 <= clock() - started < 1.2


async def test_a_killed_tool_is_restarted_and_a_stopped_one_is_an_error_not_a_reward(
    make: Make, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_module, "ABANDONED_S", 0.1)
    source = make(deadline_s=0.5)
    await source.ready()
    tool = tool_of(source)
    starts = tool.starts
    assert tool.pid is not None
    os.kill(tool.pid, signal.SIGKILL)
    await asyncio.sleep(0.2)
    await source.make(0, "train").start()
    assert not (await search(source.make(0, "train"), tokenizer, "Tokyo")).done
    assert tool.starts == starts + 1
    os.kill(tool.pid, signal.SIGSTOP)
    with pytest.raises(EnvironmentFailure, match="did not answer within"):
        await search(source.make(0, "train"), tokenizer, "Tokyo")


async def test_sources_with_one_corpus_share_one_tool(make: Make) -> None:
    one, two = make(), make(seed=3, latency_s=1.0, calls="step")
    assert tool_of(one) is tool_of(two)


async def test_wrong_settings_are_refused(make: Make) -> None:
    for config, message in (
        ({"top_kk": 3}, "did you mean top_k"),
        ({"result_tokens": [90, 60]}, "least, most"),
        ({"calls": "never"}, "calls"),
        ({"prompt": "chat"}, "no chat template"),
        ({"passages": 10}, "passages"),
    ):
        with pytest.raises(ConfigError, match=message):
            make(**config)
    with pytest.raises(ConfigError, match="no split test"):
        make().make(0, "test")
