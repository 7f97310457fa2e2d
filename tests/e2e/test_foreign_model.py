"""Jobs on a model that plait has no forward of its own for, through worker processes."""

from pathlib import Path

import pytest
from foreign_models import foreign_model
from launches import EvenSource, job, rows

from plait.core.runs import Stage
from plait.jobs.launch import Launch
from plait.runtime.settings import Settings

pytestmark = pytest.mark.e2e

SETTINGS = Settings(engine="torch", kv_blocks=256, cores=2)


async def test_two_jobs_learn_at_once(tmp_path: Path) -> None:
    model = foreign_model(tmp_path / "model", "gemma2")
    adapters = {"a": {"rank": 4}, "b": {"rank": 8, "targets": ["q_proj", "down_proj"]}}
    async with Launch(tmp_path / "run", model=str(model), settings=SETTINGS) as running:
        for name, adapter in adapters.items():
            spec = job(name, model, steps=2, adapter=adapter, trackers=[])
            running.add_job(spec, EvenSource())
        outcomes = await running.wait_all()
    assert {o.stage for o in outcomes.values()} == {Stage.DONE}, outcomes
    for name in adapters:
        assert [row["step"] for row in rows(tmp_path / "run", name)] == [1, 2]
