from __future__ import annotations

from xml.etree import ElementTree as ET

from tests.bench import timeline_page, timeline_steps, timelines
from tests.bench.figures import Figure
from tests.bench.measured import Measured


def a_figure(kind: str, value: float, step: str = "spread", metric: str = "enqueue rate") -> Figure:
    workload = timelines.WORKLOAD.format(step=step, pending=1_000_000)
    return Figure(kind, workload, metric, "timers/s", value, [value], {"run": "1"})


def test_rows_are_of_what_both_have() -> None:
    measured = Measured.of(
        [
            a_figure("wheel", 200.0),
            a_figure("rocksdb", 100.0),
            a_figure("wheel", 1.0, "restart", "start"),
        ]
    )
    section = timeline_page.section(measured, "A machine.")
    assert "### 1,000,000 pending" in section
    assert "| enqueue, delays over 12 h | 200 timers/s | 100 timers/s | 0.5× |" in section
    assert "restart" not in section.partition("### ")[2]
    (plot,) = timeline_page.plots(measured).values()
    ET.fromstring(plot)


def test_a_section_takes_the_place_of_the_one_before() -> None:
    page = f"# Timelines\n\n{timeline_page.BEGIN}\nold\n{timeline_page.END}\nby use\n"
    made = timeline_page.section(Measured.of([]), "")
    once = timeline_page.replaced(page, made)
    assert "old" not in once
    assert once.startswith("# Timelines\n\n## Measured\n")
    assert once.endswith("\n## Which\n\nby use\n")
    assert timeline_page.replaced(once, made) == once


def test_every_row_is_of_a_step_that_is_run() -> None:
    run = {step for steps in timelines.DIRECTORIES for step in steps}
    assert {row.step for row in timeline_page.ROWS} == run == set(timeline_steps.STEPS)
