"""The figures of the service, small: what each of them says of a run is found, and holds."""

from pathlib import Path
from typing import Any

import pytest

from benchmarks.peers.environment import TINKER
from benchmarks.service import d3_clients, d5_flood, d6_parked, d8_restart, servers
from benchmarks.service.clients import NEWEST
from plait.models.cache import cache_root

PYTHON = cache_root() / "peers" / TINKER[NEWEST].name / "bin" / "python"
needs_sdk = pytest.mark.skipif(not PYTHON.exists(), reason=f"no environment with tinker {NEWEST}")


def row(tok_s: float, *steps: float) -> dict[str, Any]:
    return {p: {"tok_s": tok_s, "median_step_s": list(steps)} for p in d3_clients.PHASES}


def rows(one: float, two: float, four: float, *steps: float) -> d3_clients.Rows:
    return {1: [row(one, 1.0)], 2: [row(two, 1.0, 1.0)], 4: [row(four, *steps)]}


def test_clients_are_judged_by_every_bar() -> None:
    theirs = rows(36, 35, 29, 1, 1, 1, 1.7)
    even = (1.0, 1.0, 1.1, 1.1)
    good = d3_clients.judge(rows(200, 210, 205, *even), theirs, [180.0])
    assert good.ok
    assert good.detail["tok_s"]["train"][4] == 205
    for bad in (
        d3_clients.judge(rows(200, 210, 190, *even), theirs, [180.0]),  # falls by 10 %
        d3_clients.judge(rows(200, 210, 205, 1.0, 1.0, 1.0, 1.3), theirs, [180.0]),
        d3_clients.judge(rows(200, 210, 205, *even), theirs, [220.0]),
        d3_clients.judge(rows(200, 210, 205, *even), rows(36, 35, 60, *even), [180.0]),
    ):
        assert not bad.ok


def test_parked_samples_wait_the_same_however_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(d6_parked, "PARKED", (50, 500))
    monkeypatch.setattr(d6_parked, "TURNS", 200)
    found = d6_parked.measure()
    assert set(found.detail["p99_ms"]) == {50, 500}
    assert found.detail["growth_to_ten_times"] < 5, "the machine may be busy: not quadratic"


@needs_sdk
@pytest.mark.e2e
@pytest.mark.slow
def test_a_flood_fails_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(type(TINKER[NEWEST]), "python", lambda self: PYTHON)
    monkeypatch.setattr(d5_flood, "WRITE_BYTES", 20_000)
    found = d5_flood.measure(samples=128, writes=8)
    assert (found.detail["samples"], found.detail["writes"]) == (128, 8)
    assert found.detail["failed_heartbeats"] == []


@needs_sdk
@pytest.mark.e2e
@pytest.mark.slow
def test_clients_go_on_after_kill_9(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(TINKER[NEWEST]), "python", lambda self: PYTHON)
    monkeypatch.setattr(d8_restart, "REPEATS", 1)
    found = d8_restart.measure("tiny", runs=4)
    assert found.detail["went_on"] == found.detail["tried"] == d8_restart.TRIED
    assert len(found.detail["first_step_after_s"]) == d8_restart.TRIED
    assert found.detail["runs"] == 4


class Loading:
    """A server that computes for three seconds; its machine's clock."""

    url = "http://127.0.0.1:1"

    def __init__(self, loads_s: float = 3.0) -> None:
        self._loads_s, self._now_s = loads_s, 0.0

    def monotonic(self) -> float:
        return self._now_s

    def sleep(self, seconds: float) -> None:
        self._now_s += seconds

    def cpu_s(self) -> float:
        return min(self._now_s, self._loads_s) + 0.04 * self._now_s


def test_a_server_is_waited_for_until_it_has_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    loading = Loading()
    monkeypatch.setattr(servers, "time", loading)
    servers.until_idle(loading)
    assert loading.monotonic() == 4.0


def test_a_server_that_stays_busy_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    busy = Loading(1e9)
    monkeypatch.setattr(servers, "time", busy)
    with pytest.raises(RuntimeError, match="still busy"):
        servers.until_idle(busy)
