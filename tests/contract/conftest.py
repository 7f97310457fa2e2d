"""Runs the engine contract against every kit of ``engines.KITS``."""

import pytest
from drive import adapter
from engines import KITS, EngineKit


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
