"""Routing: which of several rollout workers draws a sample.

A worker that holds the beginning of the prompt in its cache need not compute it again, so a sample
goes where most of its prompt has been, unless that worker has far more to do than the idlest. Pure.
"""

from collections import OrderedDict
from collections.abc import Mapping

from plait.core.ids import RunId, WorkerId

Policy = tuple[RunId, int | None]
"""A run and its version."""
Key = tuple[Policy, int, int]
"""Policy, tokens and their hash."""

STEP_TOKENS = 16
"""Prompts are compared at every so many tokens, and whole."""
SLACK_SAMPLES = 8
"""So many more samples than the idlest worker one may have before a known prompt goes elsewhere: a
group of the usual size stays together."""
REMEMBERED = 4096
"""Beginnings of prompts that are kept, the latest."""


def place(matches: Mapping[WorkerId, int], loads: Mapping[WorkerId, int]) -> WorkerId:
    """The worker for a sample: ``matches`` tokens of its prompt are known, ``loads`` samples are
    under way on each. Ties go to the first by name."""
    idlest = min(loads, key=lambda w: (loads[w], w))
    known = min(loads, key=lambda w: (-matches.get(w, 0), loads[w], w))
    if matches.get(known, 0) and loads[known] <= loads[idlest] + SLACK_SAMPLES:
        return known
    return idlest


class Homes:
    """Where the beginnings of prompts have been, by the policy that they were for: a run's new
    version reads nothing of what its last one has cached."""

    def __init__(self) -> None:
        self._at: OrderedDict[Key, WorkerId] = OrderedDict()

    def matches(self, policy: Policy, prompt: tuple[int, ...]) -> dict[WorkerId, int]:
        """Tokens that the prompt has in common with what each worker has been sent; less than half
        of it is not worth a thing, such as an instruction that all prompts begin with."""
        found: dict[WorkerId, int] = {}
        for key in self._keys(policy, prompt):
            worker, n = self._at.get(key), key[1]
            if worker is not None and 2 * n >= len(prompt):
                found[worker] = max(found.get(worker, 0), n)
        return found

    def put(self, policy: Policy, prompt: tuple[int, ...], worker: WorkerId) -> None:
        """The prompt has gone to ``worker``."""
        for key in self._keys(policy, prompt):
            self._at[key] = worker
            self._at.move_to_end(key)
        while len(self._at) > REMEMBERED:
            self._at.popitem(last=False)

    def forget(self, worker: WorkerId) -> None:
        """The worker is gone, and its cache with it."""
        for key in [k for k, w in self._at.items() if w == worker]:
            del self._at[key]

    def _keys(self, policy: Policy, prompt: tuple[int, ...]) -> list[Key]:
        keys: list[Key] = []
        found = 0
        for start in range(0, len(prompt), STEP_TOKENS):
            piece = prompt[start : start + STEP_TOKENS]
            found = hash((found, piece))
            keys.append((policy, start + len(piece), found))
        return keys
