from __future__ import annotations

from tests.bench import timeline_page, timeline_steps, timelines
from tests.bench.figures import Figure
from tests.bench.measured import Measured


def a_figure(kind: str, value: float, step: str = "spread", metric: str = "enqueue rate") -> Figure:
    workload = timelines.WORKLOAD.format(step=step, pending=1_000_000)
    return Figure(kind, workload, metric, "timers/s", value, [value], {"run": "1"})


def test_a_step_that_was_not_run_is_a_dash() -> None:
    measured = Measured.of(
        [
            a_figure("wheel", 200.0),
            a_figure("rocksdb", 100.0),
            a_figure("wheel", 1.0, "restart", "start"),
        ]
    )
    head, *rows = timeline_page.section(measured, "A machine.").partition("| ")[2].splitlines()
    assert "wheel, 1,000,000 | rocksdb, 1,000,000" in head
    assert rows[1:] == [
        "| enqueue, delays below 12 h, timers/s | 200 | 100 |",
        "| restart: both processes, timers/s | 1 | – |",
    ]


def test_every_row_is_of_a_step_that_is_run() -> None:
    run = {step for steps in timelines.DIRECTORIES for step in steps}
    assert {row.step for row in timeline_page.ROWS} == run == set(timeline_steps.STEPS)
