"""What the documents show to be copied runs as it stands."""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from launches import rows
from programs import run as plait

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

ROOT = Path(__file__).parents[2]


def programs(document: Path) -> list[str]:
    """Whole programs: what a reader may copy into a file."""
    blocks = re.findall(r"```python\n(.*?)```", document.read_text(), flags=re.DOTALL)
    return [block for block in blocks if "asyncio.run(" in block]


def run(program: str, directory: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=directory,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_programs_of_the_documents(tmp_path: Path) -> None:
    """All in one directory and each of them twice, as somebody who tries them would."""
    (hello,) = programs(ROOT / "README.md")
    (by_hand,) = programs(ROOT / "docs" / "guide" / "python.md")
    sampled = ast.literal_eval(run(hello, tmp_path))
    assert len(sampled) == 4
    assert len(set(sampled)) > 1, "each sample is drawn by itself"
    for version in (1, 2):
        assert run(by_hand, tmp_path) == f"kept: {tmp_path}/kept/by-hand-{version}\n"
    run(hello, tmp_path)


def test_the_guides_own_environment_learns(tmp_path: Path) -> None:
    guide = (ROOT / "docs" / "guide" / "environments.md").read_text()
    for kind, name in (("python", "largest.py"), ("yaml", "largest.yaml")):
        found = re.search(rf"```{kind}\n(# {re.escape(name)}.*?)```", guide, flags=re.DOTALL)
        assert found is not None
        (tmp_path / name).write_text(found[1])
    code, out, err = plait("run", tmp_path / "largest.yaml", "--dir", tmp_path / "out")
    assert code == 0, (out, err)
    held_out = [r["eval_reward_mean"] for r in rows(tmp_path / "out", "largest") if "eval_n" in r]
    assert held_out[-1] > held_out[0] + 0.5
