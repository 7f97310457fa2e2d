"""The GPU figures run: here on the CPU and a small model, where their numbers mean nothing."""

import pytest

from benchmarks.gpu.decode import decode
from benchmarks.gpu.models import SMALL
from benchmarks.gpu.training import train


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("figure", [decode, train])
def test_a_figure_measures(figure) -> None:
    assert figure(SMALL).value > 0
