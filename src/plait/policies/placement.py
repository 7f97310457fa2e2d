"""Placement: which of several rollout workers draws a sample.

A worker that holds the beginning of the prompt in its cache need not compute it again, so a sample
goes where most of its prompt has been, unless that worker has far more to do than the idlest. Pure.
"""

from collections import OrderedDict
from collections.abc import Mapping

from plait.core.ids import RunId, WorkerId

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
    known = max(loads, key=lambda w: (matches.get(w, 0), -loads[w]))
    if matches.get(known, 0) and loads[known] <= loads[idlest] + SLACK_SAMPLES:
        return known
    return idlest


class Homes:
    """Where the beginnings of prompts have been, by run."""

    def __init__(self) -> None:
        self._at: OrderedDict[tuple[RunId, int, int], WorkerId] = OrderedDict()

    def matches(self, run_id: RunId, prompt: tuple[int, ...]) -> dict[WorkerId, int]:
        """Tokens that the prompt has in common with what each worker has been sent; less than half
        of it is not worth a thing, such as an instruction that all prompts begin with."""
        found: dict[WorkerId, int] = {}
        for key in self._keys(run_id, prompt):
            worker, n = self._at.get(key), key[1]
            if worker is not None and 2 * n >= len(prompt):
                found[worker] = max(found.get(worker, 0), n)
        return found

    def put(self, run_id: RunId, prompt: tuple[int, ...], worker: WorkerId) -> None:
        """The prompt has gone to ``worker``."""
        for key in self._keys(run_id, prompt):
            self._at[key] = worker
            self._at.move_to_end(key)
        while len(self._at) > REMEMBERED:
            self._at.popitem(last=False)

    def forget(self, worker: WorkerId) -> None:
        """The worker is gone, and its cache with it."""
        for key in [k for k, w in self._at.items() if w == worker]:
            del self._at[key]

    def _keys(self, run_id: RunId, prompt: tuple[int, ...]) -> list[tuple[RunId, int, int]]:
        lengths = {*range(STEP_TOKENS, len(prompt), STEP_TOKENS), len(prompt)}
        return [(run_id, n, hash(prompt[:n])) for n in sorted(lengths)]
