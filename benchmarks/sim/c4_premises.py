"""Premises: what PlexRL and JigsawRL take for granted, measured on jobs of this machine run alone.

Inter-step consistency (JigsawRL, Fig. 6) and how far idle gaps of different jobs can be kept apart
(PlexRL). Three jobs of the small model that ships with plait: short answers, longer ones, and
questions to a tool that takes its time.
"""

import tempfile
from typing import Any

from benchmarks.live.launches import run, specs_of
from plait.obs.premises import premises

JOBS = {
    "sort": """
base: tiny
jobs:
  - {name: sort, env: letter_sort, steps: STEPS, groups: 4, group_size: 8, max_new_tokens: 12}
""",
}
