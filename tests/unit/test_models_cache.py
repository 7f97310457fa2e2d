import resource
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from filelock import FileLock
from safetensors.numpy import save_file

from plait.core.errors import ModelError
from plait.models.cache import build_once, cache_root


def test_the_cache_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("PLAIT_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_root() == tmp_path / ".cache" / "plait"
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert cache_root() == Path("/xdg/plait")
    monkeypatch.setenv("PLAIT_CACHE", "/named")
    assert cache_root() == Path("/named")
    assert cache_root("/given") == Path("/given")


def test_an_entry_is_built_once(tmp_path: Path) -> None:
    built = []

    def build(out: Path) -> None:
        built.append(out)
        (out / "file").write_text("whole")

    place = tmp_path / "models" / "m"
    for _ in range(2):
        assert build_once(place, build) == place
    assert len(built) == 1
    assert (place / "file").read_text() == "whole"


def test_a_failed_build_leaves_nothing(tmp_path: Path) -> None:
    def fail(out: Path) -> None:
        (out / "half").write_text("half")
        raise ModelError("no")

    place = tmp_path / "m"
    with pytest.raises(ModelError):
        build_once(place, fail)
    assert not [p for p in tmp_path.iterdir() if p.is_dir()]


def test_what_a_killed_build_left_is_not_taken_over(tmp_path: Path) -> None:
    left = tmp_path / ".m.partial"
    left.mkdir()
    (left / "half").write_text("half")
    place = build_once(tmp_path / "m", lambda out: (out / "whole").touch())
    assert [p.name for p in place.iterdir()] == ["whole"]


def test_two_at_once_build_once_and_neither_sees_a_part(tmp_path: Path) -> None:
    built: list[int] = []
    seen: list[list[str]] = []

    def build(out: Path) -> None:
        built.append(1)
        (out / "a").touch()
        time.sleep(0.1)
        (out / "b").touch()

    def get() -> None:
        seen.append(sorted(p.name for p in build_once(tmp_path / "m", build).iterdir()))

    threads = [threading.Thread(target=get) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert built == [1]
    assert seen == [["a", "b"]] * 3


def test_a_stuck_builder_is_named(tmp_path: Path) -> None:
    with (
        FileLock(tmp_path / "m.lock"),
        pytest.raises(ModelError, match="another process"),
    ):
        build_once(tmp_path / "m", lambda out: None, timeout_s=0.05)


def test_a_cache_that_cannot_be_written_says_what_to_set(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ModelError, match="PLAIT_CACHE"):
        build_once(tmp_path / "file" / "m", lambda out: None)


def test_a_disk_that_fills_up_under_safetensors_says_what_to_set(tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)

    def build(out: Path) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
        try:
            save_file({"x": np.zeros(1 << 16, np.float32)}, out / "model.safetensors")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)

    with pytest.raises(ModelError, match="set PLAIT_CACHE to a directory with room"):
        build_once(tmp_path / "cache" / "entry", build)
    assert not (tmp_path / "cache" / "entry").exists()
