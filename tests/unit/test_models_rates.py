"""Rates: measured once, interpolated between batch sizes."""

import math
from pathlib import Path

import pytest

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
