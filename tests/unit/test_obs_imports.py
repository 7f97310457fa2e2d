"""Nothing heavy is imported before it is needed."""

import subprocess
import sys

CHECK = """
import sys
import plait.obs.recorder, plait.obs.report, plait.obs.live, plait.obs.trackers, plait.obs.trace
import plait.store.files
print([m for m in ("matplotlib", "torch", "sqlalchemy", "wandb", "trackio") if m in sys.modules])
"""


def test_no_heavy_import() -> None:
    found = subprocess.run(
        [sys.executable, "-c", CHECK],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": ":".join(p for p in sys.path if p)},
    )
    assert found.stdout == "[]\n"
