"""The policy of a launch, options included, stands in its files: enough to decide again."""

from pathlib import Path

import pytest
from launches import EvenSource, info, job, launch

from plait.core.view import ToolWaitView
from plait.obs.jsonl import read_jsonl
from plait.policies.registry import make

pytestmark = pytest.mark.e2e


async def test_a_policy_can_be_made_again_from_the_files(byte_model: Path, tmp_path: Path) -> None:
    options = {"max_active": 1, "dispatch": "fifo"}
    async with launch(tmp_path, byte_model, policy=make("marlaas", **options)) as running:
        running.add_job(job("a", byte_model, steps=1), EvenSource())
        await running.wait_all()
    assert (info(tmp_path)["policy"], info(tmp_path)["policy_options"]) == ("plait", options)
    decisions = list(read_jsonl(tmp_path / "decisions.jsonl"))
    assert decisions
    assert all(row["options"] == options for row in decisions)


async def test_every_wait_that_another_turn_may_follow_is_decided(
    byte_model: Path, tmp_path: Path
) -> None:
    async with launch(tmp_path, byte_model) as running:
        spec = job("a", byte_model, steps=1)
        running.add_job(spec, EvenSource(turns=2))
        await running.wait_all()
    rows = [r for r in read_jsonl(tmp_path / "decisions.jsonl") if r["kind"] == "residency"]
    assert len(rows) == spec.groups * spec.samples
    for row in rows:
        view = ToolWaitView(**row["view"])
        plan, _ = make("plait").residency.decide(view, row["state"], row["now"])
        assert row["plan"] == {"keep": plan.keep, "reason": plan.reason}


async def test_seats_are_decided_by_what_steps_take(byte_model: Path, tmp_path: Path) -> None:
    """Three jobs share by seats: one at first, and each is told why it waits."""
    policy = make("plait", admission="adaptive", stretch=3.5)
    async with launch(tmp_path, byte_model, policy=policy) as running:
        for name in ("a", "b", "c"):
            running.add_job(job(name, byte_model, steps=4), EvenSource())
        await running.wait_all()
    rows = [r for r in read_jsonl(tmp_path / "decisions.jsonl") if r["kind"] == "admission"]
    assert rows[0]["state"] == {}
    assert max(len(row["plan"]["admit"]) for row in rows[:3]) == 1
    assert {w["reason"] for row in rows for w in row["plan"]["waits"]} == {"stretch"}
    assert any(run["alone_s"] > 0.0 for run in rows[-1]["view"]["runs"])
    assert rows[-1]["state"]["control"]["epoch"] >= 1
