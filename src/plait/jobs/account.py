"""Account: a job's own files brought back to its last committed step, before it goes on.

The store says which step that is. Rows of later steps are cut: their samples will be drawn again.
What the account lacks of the committed step itself, because the launch was killed between the
commit and the line, is told to the controller, which makes up for it. So every step and every
evaluation stands in the files exactly once.
"""

from dataclasses import dataclass

from plait.obs.jsonl import read_jsonl
from plait.obs.layout import JobLayout
from plait.store.files import drop_rows, truncate_jsonl


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """What the files say of the committed step. Step 0 has no row of its own."""

    has_step: bool
    has_evaluation: bool


def settle(layout: JobLayout, step: int) -> Account:
    """Cut what follows ``step``, and the samples of an evaluation that did not get to its end."""
    for file in (layout.metrics, layout.samples):
        truncate_jsonl(file, step)
    rows = [row for row in read_jsonl(layout.metrics) if row.get("step") == step]
    has_evaluation = any("eval_n" in row for row in rows)
    if not has_evaluation:
        drop_rows(
            layout.samples, lambda row: row.get("step") == step and row.get("split") == "eval"
        )
    return Account(
        has_step=step == 0 or any("eval_n" not in row for row in rows),
        has_evaluation=has_evaluation,
    )
