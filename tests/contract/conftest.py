"""Runs the engine contract against every kit of ``engines.KITS``."""

import pytest
from engines import KITS, EngineKit


@pytest.fixture(scope="session", params=sorted(KITS))
def kit(request: pytest.FixtureRequest) -> EngineKit:
    return KITS[request.param]()
