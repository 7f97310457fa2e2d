"""Nothing is lost or done twice, whoever is killed when. ``make chaos`` kills far more often."""

import os
from pathlib import Path

import chaos
import pytest

pytestmark = pytest.mark.e2e

SEED = int(os.environ.get("PLAIT_CHAOS_SEED", "7"))


def _same(tmp_path: Path, model: str, *arguments: str, n_steps: int, kills: int) -> None:
    calm, _ = chaos.run(tmp_path / "calm", model, *arguments, n_steps=n_steps, kills=0, seed=SEED)
    wild, done = chaos.run(
        tmp_path / "wild", model, *arguments, n_steps=n_steps, kills=kills, seed=SEED
    )
    print(f"killed: {done}")
    assert sum(done.values()) == kills
    assert len(calm) == len(wild) == chaos.N_CLIENTS
    for undisturbed, disturbed in zip(calm, wild, strict=True):
        assert disturbed.files == undisturbed.files
        assert disturbed.answers == undisturbed.answers


def test_six_kills_change_nothing(tmp_path: Path, byte_model: Path) -> None:
    _same(tmp_path, str(byte_model), "--engine", "scripted", n_steps=6, kills=6)


@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.skipif("PLAIT_CHAOS_KILLS" not in os.environ, reason="run by make chaos")
def test_many_kills_change_nothing(tmp_path: Path, byte_model: Path) -> None:
    kills = int(os.environ["PLAIT_CHAOS_KILLS"])
    engine = os.environ.get("PLAIT_CHAOS_ENGINE", "scripted")
    model = str(byte_model) if engine == "scripted" else "tiny"
    _same(tmp_path, model, "--engine", engine, n_steps=kills // 2, kills=kills)
