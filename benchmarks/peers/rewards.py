"""Rewards: one that differs from sample to sample, so that every group has a gradient."""

import zlib
from collections.abc import Sequence
from typing import Any


def by_text(completions: Sequence[str], **_: Any) -> list[float]:
    """A number in [0, 1) that the text alone determines."""
    return [zlib.crc32(c.encode()) % 1000 / 1000 for c in completions]
