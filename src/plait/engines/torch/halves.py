"""Halves: a step's rows in two plans that are carried out side by side (``lanes``).

A team of all cores waits at the end of every product for whichever of its threads has lost its core
to somebody else (a client, the server, a grader): then it is slower than one thread by itself. Two
lanes with half the cores each wait for one another once in a layer.
Each lane reads all weights, so each must have rows enough to be worth that; and the step ends with
the longer one, so they must be of like size. Else the step stays whole.

Invariants: every row is in one half, and a prompt's samples begin in the half that computes it; the
same sequences decoding are divided in the same way in every step; adapters and prompts are cut in
one place at most. Nothing depends on the number of cores.
"""

from plait.engines.torch.batch import order
from plait.engines.torch.schedule import Plan

LEAST_ROWS = 24
"""Of each half: with few, reading the weights twice would weigh too much. (With 16 each a machine
that is shared gains too; one that is quiet was not measured.)"""

UNEVEN = 1.25
"""Rows of the longer half by those of the shorter, at most."""


def halves(plan: Plan, least_rows: int = LEAST_ROWS) -> tuple[Plan, ...]:
    """The halves, of ``least_rows`` or more each, or the plan itself."""
    chunks = sorted(plan.chunks, key=lambda c: -c.n)
    first, second = (Plan(forks=plan.forks, grown=plan.grown) for _ in range(2))
    n_first = n_second = 0
    for chunk in chunks:
        if n_first <= n_second:
            first.chunks.append(chunk)
            n_first += chunk.n
        else:
            second.chunks.append(chunk)
            n_second += chunk.n
    decodes = sorted(plan.decodes, key=lambda s: (order(s.policy), s.group))
    cut = min(max((len(decodes) + n_second - n_first) // 2, 0), len(decodes))
    first.decodes, second.decodes = decodes[:cut], decodes[cut:]
    short, long = sorted((n_first + cut, n_second + len(decodes) - cut))
    return (first, second) if short >= least_rows and long <= UNEVEN * short else (plan,)
