"""The live view: a table on a terminal, sparse lines elsewhere."""

import io
from dataclasses import replace

from rich.console import Console

from plait.obs.live import LINE_S, LineView, TableView, make_view, render
from plait.obs.snapshot import JobLine, Snapshot, WorkerLine

JOB = JobLine(
    name="arithmetic",
    stage="rollout",
    step=3,
    max_steps=20,
    version=3,
    reward=0.4123,
    eval_reward=0.35,
    tpts_s=2.5,
    tokens=12_345,
)
WORKER = WorkerLine(
    name="rollout",
    doing="rollout",
    jobs=("arithmetic", "search"),
    tokens_per_s=1234.5,
    threads=2,
    busy_share=0.91,
    kv_blocks_used=30,
    kv_blocks=120,
)


def snapshot(t: float, *jobs: JobLine) -> Snapshot:
    return Snapshot(t=t, policy="plait", model="tiny", jobs=jobs, workers=(WORKER,))


def lines(*snapshots: Snapshot) -> list[str]:
    output = io.StringIO()
    with LineView(Console(file=output)) as view:
        for each in snapshots:
            view.update(each)
    return output.getvalue().splitlines()


def test_the_kind_of_output_chooses_the_view() -> None:
    assert isinstance(make_view(Console(file=io.StringIO())), LineView)
    assert isinstance(make_view(Console(file=io.StringIO(), force_terminal=True)), TableView)


def test_the_table_tells_all_of_a_job_and_a_worker() -> None:
    console = Console(width=140)
    waiting = replace(JOB, name="search", stage="wait_rollout", wait="kv_budget", position=2)
    failed = replace(JOB, name="bad", stage="failed", error="the loss is not finite")
    with console.capture() as capture:
        console.print(render(snapshot(3725.0, JOB, waiting, failed)))
    shown = capture.get()
    assert "plait · tiny · 1:02:05" in shown
    (line,) = [text for text in shown.splitlines() if text.startswith("arithmetic ")]
    assert line.split() == [
        "arithmetic",
        "rollout",
        "3/20",
        "v3",
        "0.412",
        "0.350",
        "2.5",
        "12,345",
    ]
    assert "kv_budget (number 2)" in shown
    assert "the loss is not finite" in shown
    (line,) = [text for text in shown.splitlines() if text.startswith("rollout ")]
    assert line.split() == [
        *("rollout", "rollout", "1,234", "2", "91%", "25%", "arithmetic,", "search")
    ]


def test_the_table_is_redrawn_in_place() -> None:
    output = io.StringIO()
    with TableView(Console(file=output, force_terminal=True, width=120)) as view:
        view.update(snapshot(1.0, JOB))
        view.update(snapshot(2.0, replace(JOB, step=4)))
    assert "\x1b[" in output.getvalue()
    assert "4/20" in output.getvalue()


def test_a_line_tells_a_step() -> None:
    assert lines(snapshot(65.0, JOB)) == [
        "[01:05] arithmetic: rollout, step 3/20, reward 0.412, held-out 0.350, 2.5 s/step"
    ]


def test_no_line_without_news() -> None:
    same = replace(JOB, stage="train")
    assert len(lines(*(snapshot(10.0 * n, JOB if n % 2 else same) for n in range(20)))) == 1


def test_a_line_per_step_but_not_more_often_than_the_limit() -> None:
    steps = [snapshot(0.1 * n, replace(JOB, step=n)) for n in range(100)]
    shown = lines(*steps)
    assert 0.1 * 100 / LINE_S <= len(shown) <= 0.1 * 100 / LINE_S + 1


def test_an_end_is_always_told() -> None:
    failed = replace(JOB, stage="failed", error="out of memory: lower the batch")
    shown = lines(snapshot(1.0, JOB), snapshot(1.1, failed), snapshot(1.2, failed))
    assert len(shown) == 2
    assert shown[1].endswith("out of memory: lower the batch")


def test_brackets_in_names_are_no_markup() -> None:
    assert "[red]x" in lines(snapshot(0.0, replace(JOB, name="[red]x")))[0]
