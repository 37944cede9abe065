from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from tests.bench import report, svg
from tests.bench.figures import Figure, read
from tests.bench.report import OUR_PARTS, Axis, Measured, Target


def a_figure(
    value: float,
    workload: str = "enqueue",
    metric: str = "rate",
    system: str = "duewheel",
    run: str = "1",
) -> Figure:
    config = {"run": run, "commit": "abc", "cores": 2, "memory_gib": 24, "load_before": 0.1}
    return Figure(system, workload, metric, "timers/s", value, [value], config)


def test_the_page_and_its_plots_are_what_the_command_makes_of_the_recorded_runs() -> None:
    measured = Measured.of(read(report.RECORDED))
    assert report.PAGE.read_text("utf-8") == report.page(measured), "make bench-report"
    plots = report.plots(measured)
    assert {path.name for path in report.PAGE.parent.glob("benchmarks-*.svg")} == set(plots)
    for name, plot in plots.items():
        assert Path(report.PAGE.with_name(name)).read_text("utf-8") == plot


def test_systems_of_different_runs_are_not_compared() -> None:
    peer = a_figure(2.0, system="RocketMQ 5.5.0")
    both = Measured.of([peer, a_figure(8.0)])
    assert both.row(report.AXES[0])[:2] == (8.0, 2.0)
    ours_alone = Measured.of([peer, a_figure(8.0), a_figure(9.0, run="2")])
    assert ours_alone.row(report.AXES[0])[:2] == (9.0, None)


def test_a_variant_of_the_peer_is_not_the_peer() -> None:
    finest = a_figure(2.0, system="RocketMQ 5.5.0, precision 100 ms")
    assert Measured.of([finest, a_figure(8.0)]).row(report.AXES[0])[1] is None


def test_a_sum_over_parts_needs_all_of_them() -> None:
    axis = Axis("", "enqueue", "processor time of {}")
    figures = [a_figure(1.0, metric=f"processor time of {part}") for part in OUR_PARTS]
    assert Measured.of(figures).row(axis)[0] == len(OUR_PARTS)
    assert Measured.of(figures[1:]).row(axis)[0] is None


@pytest.mark.parametrize(
    ("values", "row"),
    [
        ((50.0, 10.0), "| enqueue: rate | 10 timers/s | 50 timers/s | 5× | ≥ 5× | met |"),
        ((40.0, 10.0), "| enqueue: rate | 10 timers/s | 40 timers/s | 4× | ≥ 5× | missed |"),
        ((40.0, None), "| enqueue: rate | – | 40 timers/s | – | ≥ 5× | missed |"),
    ],
)
def test_a_row_says_whether_its_target_is_met(values: tuple[float, float | None], row: str) -> None:
    ours, peer = values
    figures = [a_figure(ours)]
    if peer is not None:
        figures.append(a_figure(peer, system="RocketMQ 5.5.0"))
    assert row in report.table(Measured.of(figures)).splitlines()


def test_a_target_of_our_own_value() -> None:
    assert Target(25).met(25.0, None)
    assert not Target(25).met(25.1, 99.0)
    assert Target(300, at_least=True).met(301.0, None)


def test_plots_are_well_formed() -> None:
    figures = [
        a_figure(value, f"steady, {rate:,}/s", f"lateness {name}", system)
        for system in ("duewheel", "RocketMQ 5.5.0")
        for rate, value in ((1_000, 50.0), (20_000, 200.0))
        for name in ("p50", "p90", "p99", "p99.9", "max")
    ]
    measured = Measured.of(figures)
    plots = report.plots(measured)
    assert set(plots) == {"benchmarks-lateness.svg"}
    for plot in plots.values():
        ET.fromstring(plot)
    ET.fromstring(svg.bars("a & b", "s", {"x": {"one": 2.0, "other": 0.0}}))
    assert "| 20,000/s | RocketMQ 5.5.0 | 200 | 200 | 200 | 200 | 200 |" in report.page(measured)
