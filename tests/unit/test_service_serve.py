"""Serve: what the process does to itself before it answers."""

import gc
from collections.abc import Iterator
from typing import Any

import pytest

from plait.service.serve import calm_collector


@pytest.fixture
def collections() -> Iterator[list[int]]:
    """Generations that are collected; the collector is afterwards as it was."""
    seen: list[int] = []

    def look(phase: str, info: dict[str, Any]) -> None:
        if phase == "start":
            seen.append(info["generation"])

    before = gc.get_threshold()
    gc.callbacks.append(look)
    yield seen
    gc.callbacks.remove(look)
    gc.set_threshold(*before)
    gc.unfreeze()


def park() -> list[list[int]]:
    """As many objects as 10,000 parked requests are made of, and more."""
    return [[i] for i in range(1_000_000)]


def test_parked_requests_bring_no_full_collection(collections: list[int]) -> None:
    calm_collector()
    assert gc.get_freeze_count() > 10_000, "nobody looks at what was there from the start"
    collections.clear()
    parked = park()
    assert len(parked) == 1_000_000
    assert 0 in collections
    assert 2 not in collections
