"""Rates: measured once, interpolated between batch sizes."""

import json
import math
import subprocess
from pathlib import Path

import pytest

from plait.core.errors import EngineError
from plait.models.rates import Rates, measured_rates
from plait.models.registry import TINY_DIR

RATES = Rates(decode={1: 10.0, 8: 80.0, 32: 200.0}, prefill=500.0, train=100.0)


@pytest.mark.parametrize(
    ("batch", "rate"), [(1, 10.0), (8, 80.0), (20, 140.0), (32, 200.0), (64, 200.0), (0.5, 10.0)]
)
def test_linear_between_what_was_measured_and_flat_beyond(batch: float, rate: float) -> None:
    assert RATES.decode_at(batch) == pytest.approx(rate)


@pytest.mark.slow
def test_a_model_is_measured_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLAIT_CACHE", str(tmp_path))
    rates = measured_rates(TINY_DIR, 1, {"OMP_NUM_THREADS": "1"})
    numbers = [*rates.decode.values(), rates.prefill, rates.train]
    assert all(math.isfinite(n) and n > 0 for n in numbers)
    assert rates.decode[32] > rates.decode[1]
    monkeypatch.setattr("subprocess.run", None)  # a second measurement would call it
    assert measured_rates(TINY_DIR, 1, {}) == rates


def test_each_device_and_dtype_is_measured_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PLAIT_CACHE", str(tmp_path))
    asked = []

    def measured(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        asked.append(command[-2:])
        rates = {"decode": {"1": 1.0}, "prefill": 1.0, "train": float(len(asked))}
        return subprocess.CompletedProcess(command, 0, json.dumps(rates))

    monkeypatch.setattr(subprocess, "run", measured)
    places = [("cpu", "fp32"), ("cpu", "bf16"), ("cuda:0", "bf16")]
    for _ in range(2):
        found = [measured_rates(TINY_DIR, 1, {}, device=d, dtype=t).train for d, t in places]
        assert found == [1.0, 2.0, 3.0]
    assert asked == [list(place) for place in places]


@pytest.mark.parametrize(
    "torn", ["", "{", "[]", '{"decode": {"1": 1.0}, "prefill": 0, "train": 1}']
)
def test_rates_that_were_torn_are_measured_again(
    torn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PLAIT_CACHE", str(tmp_path))
    said = [json.dumps({"decode": {"1": 1.0}, "prefill": 2.0, "train": 3.0})]

    def measured(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(command, 0, said[0])

    monkeypatch.setattr(subprocess, "run", measured)
    measured_rates(TINY_DIR, 1, {})
    (file,) = (tmp_path / "rates").iterdir()
    file.write_text(torn)
    assert measured_rates(TINY_DIR, 1, {}).train == 3.0
    file.unlink()
    said[0] = torn
    with pytest.raises(EngineError, match="gave no rates: run it again"):
        measured_rates(TINY_DIR, 1, {})
