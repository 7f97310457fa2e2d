"""Account: what a resume cuts from a job's files, and what it finds missing."""

from pathlib import Path

from plait.jobs.account import Account, settle
from plait.obs.jsonl import JsonlWriter, read_jsonl
from plait.obs.layout import JobLayout

Row = dict[str, int | str]
TRAIN, EVAL = {"split": "train"}, {"split": "eval"}


def layout(
    path: Path, metrics: list[dict[str, int]], samples: list[dict[str, object]]
) -> JobLayout:
    found = JobLayout(path)
    for file, rows in ((found.metrics, metrics), (found.samples, samples)):
        writer = JsonlWriter(file)
        for row in rows:
            writer.write(row)
        writer.close()
    return found


def test_rows_of_steps_that_were_not_committed_go(tmp_path: Path) -> None:
    found = layout(
        tmp_path,
        [{"step": 1}, {"step": 1, "eval_n": 3}, {"step": 2}],
        [
            {"step": 1} | TRAIN,
            {"step": 1} | EVAL,
            {"step": 2} | TRAIN,
        ],
    )
    assert settle(found, 1) == Account(has_step=True, has_evaluation=True)
    assert list(read_jsonl(found.metrics)) == [{"step": 1}, {"step": 1, "eval_n": 3}]
    assert [row["step"] for row in read_jsonl(found.samples)] == [1, 1]


def test_an_evaluation_that_did_not_end_is_missing_and_its_samples_go(tmp_path: Path) -> None:
    found = layout(
        tmp_path,
        [{"step": 0, "eval_n": 3}, {"step": 1}],
        [{"step": 0} | EVAL, {"step": 1} | TRAIN, {"step": 1} | EVAL],
    )
    assert settle(found, 1) == Account(has_step=True, has_evaluation=False)
    assert [(r["step"], r["split"]) for r in read_jsonl(found.samples)] == [
        (0, "eval"),
        (1, "train"),
    ]


def test_a_committed_step_without_its_line_is_missing(tmp_path: Path) -> None:
    found = layout(tmp_path, [{"step": 1}], [{"step": 2} | TRAIN])
    assert settle(found, 2) == Account(has_step=False, has_evaluation=False)
    assert len(list(read_jsonl(found.samples))) == 1


def test_a_new_job_lacks_no_line_but_its_first_evaluation(tmp_path: Path) -> None:
    assert settle(JobLayout(tmp_path), 0) == Account(has_step=True, has_evaluation=False)
