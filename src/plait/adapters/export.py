"""Export: the adapter files of a committed version, copied to where a user looks for them."""

import shutil
from pathlib import Path

from plait.store.files import VersionWriter

FILES = ("adapter_config.json", "adapter_model.safetensors")


def export_adapter(version_dir: Path, target: Path) -> None:
    """Copy the PEFT files of ``version_dir`` to ``target``, which appears whole or not at all."""
    with VersionWriter(target) as folder:
        for name in FILES:
            shutil.copyfile(version_dir / name, folder / name)
