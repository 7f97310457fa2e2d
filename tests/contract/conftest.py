"""Runs the engine contract against every kit of ``engines.KITS``, and the store's against every
database of ``DATABASES``."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from drive import adapter
from engines import KITS, EngineKit

from plait.core.ids import LOCAL_TENANT, RunId
from plait.store.database import sqlite_url
from plait.store.store import Store

DATABASES = ("sqlite", "postgresql")


@pytest.fixture(params=DATABASES)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty database."""
    if request.param == "sqlite":
        return sqlite_url(tmp_path / "store.db")
    return str(request.getfixturevalue("postgres").empty())


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    """An open store that knows run-1 and run-2."""
    with Store(url) as store:
        for name in ("run-1", "run-2"):
            store.runs.create(
                RunId(name), tenant_id=LOCAL_TENANT, name=name, spec={"rank": 8}, now=1.0
            )
        yield store


@pytest.fixture(scope="session", params=sorted(KITS))
def kit(request: pytest.FixtureRequest) -> EngineKit:
    return KITS[request.param]()


@pytest.fixture(scope="module")
def adapters(kit: EngineKit, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    root = tmp_path_factory.mktemp("adapters")
    return (
        adapter(kit, root / "a", b"zzzzzzzzzzzz", rank=4),
        adapter(kit, root / "b", b"qAqAqAqAqAqA", seed=3, rank=8),
    )
