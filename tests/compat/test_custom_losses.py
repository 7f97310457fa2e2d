"""A loss of ones own through the real SDK: what the server makes of it is what the SDK would."""

import pytest
from sdk_support import NEWEST, PROGRAMS, Run
from serving import Served

from plait.service.tinker_api import clients

pytestmark = pytest.mark.slow
CASES = ("ppo", "preference", "distillation", "smooth")


@pytest.mark.parametrize("chunk", [1024, 2], ids=["whole", "in chunks"])
def test_both_ways_are_one(
    chunk: int, run_sdk: Run, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(clients.FLAGS, "fwdbwd_max_chunk_len", chunk)
    told = {"url": served.url, "key": served.new_key_now("losses"), "model": served.base_model}
    found = run_sdk(NEWEST, PROGRAMS / "losses.py", **told)
    for case in CASES:
        ours, theirs = found[case]["server"], found[case]["client"]
        assert ours["shapes"] == theirs["shapes"]
        for mine, yours in zip(ours["logprobs"], theirs["logprobs"], strict=True):
            assert mine == pytest.approx(yours, abs=1e-5)
        assert ours["metrics"] == pytest.approx(theirs["metrics"], rel=1e-5, abs=1e-5), case
        assert ours["norm"] == pytest.approx(theirs["norm"], rel=1e-5)
        assert ours["norm"] > 0
        assert ours["after"] == pytest.approx(theirs["after"], rel=1e-4), case
    said = found["said"]
    assert "'torch.cumprod', which is not on this server's list" in said["unlisted"]
    assert "operator.getitem" in said["out of range"]
    assert said["then"] == "ok"
