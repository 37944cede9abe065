from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from tests.bench import report, shown_figures, svg, tables
from tests.bench.figures import Figure
from tests.bench.measured import AXES, OUR_PARTS, PEER_PARTS, Axis, Measured, Target
from tests.bench.plots import plots


def a_figure(
    value: float,
    workload: str = "enqueue",
    metric: str = "rate",
    system: str = "duewheel",
    run: str = "1",
    **config: object,
) -> Figure:
    machine = {"cores": 2, "memory_gib": 24, "load_before": 0.1}
    config = {"run": run, "commit": "abc", **machine, **config}
    return Figure(system, workload, metric, "timers/s", value, [value], config)


def test_the_page_and_its_plots_are_what_the_command_makes_of_the_recorded_runs() -> None:
    measured, timelines = report.recorded()
    for shown, text in shown_figures.pages(measured).items():
        assert shown.read_text("utf-8") == text, "make bench-report"
    assert report.PAGE.read_text("utf-8") == report.page(measured, timelines), "make bench-report"
    made = plots(measured)
    assert {path.name for path in report.PAGE.parent.glob("*.svg")} == set(made)
    for name, plot in made.items():
        assert Path(report.PAGE.with_name(name)).read_text("utf-8") == plot


def test_systems_of_different_runs_are_not_compared() -> None:
    peer = a_figure(2.0, system="RocketMQ 5.5.0")
    both = Measured.of([peer, a_figure(8.0)])
    assert both.row(AXES[0])[:2] == (8.0, 2.0)
    ours_alone = Measured.of([peer, a_figure(8.0), a_figure(9.0, run="2")])
    assert ours_alone.row(AXES[0])[:2] == (9.0, None)


def test_a_variant_of_the_peer_is_not_the_peer() -> None:
    finest = a_figure(2.0, system="RocketMQ 5.5.0, precision 100 ms")
    assert Measured.of([finest, a_figure(8.0)]).row(AXES[0])[1] is None


def test_a_sum_over_parts_needs_all_of_them() -> None:
    axis = Axis("", "enqueue", "processor time of {}")
    figures = [a_figure(1.0, metric=f"processor time of {part}") for part in OUR_PARTS]
    assert Measured.of(figures).row(axis)[0] == len(OUR_PARTS)
    assert Measured.of(figures[1:]).row(axis)[0] is None


@pytest.mark.parametrize(
    ("values", "row"),
    [
        ((50.0, 10.0), "| enqueue: rate | 10 timers/s | 50 timers/s | ≥ 5× | met |"),
        ((40.0, 10.0), "| enqueue: rate | 10 timers/s | 40 timers/s | ≥ 5× | missed |"),
        ((40.0, None), "| enqueue: rate | – | 40 timers/s | ≥ 5× | missed |"),
    ],
)
def test_a_row_says_whether_its_target_is_met(values: tuple[float, float | None], row: str) -> None:
    ours, peer = values
    figures = [a_figure(ours)]
    if peer is not None:
        figures.append(a_figure(peer, system="RocketMQ 5.5.0"))
    assert row in tables.table(Measured.of(figures)).splitlines()


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
    made = plots(measured)
    assert set(made) == {"benchmarks-lateness.svg", "benchmarks-table.svg"}
    for plot in made.values():
        ET.fromstring(plot)
    ET.fromstring(svg.bars("a & b", "s", {"x": {"one": 2.0, "other": 0.0}}))
    assert "| steady, 20,000/s | RocketMQ 5.5.0 | 200 | 200 | 200 | 200 | 200 |" in report.page(
        measured, Measured.of([])
    )


def test_growth_has_a_row_for_each_size_and_system() -> None:
    figures = [
        a_figure(value, f"pending: {pending:,}", metric, system)
        for system, parts in (("duewheel", ("Kafka", *OUR_PARTS)), ("RocketMQ 5.5.0", PEER_PARTS))
        for pending, value in ((10_000_000, 3.0), (100_000, 2.0))
        for metric in (
            "rate",
            *(f"{of}processor time of {part}" for of in ("", "delivery ") for part in parts),
        )
    ]
    measured = Measured.of(figures)
    rows = tables.by_size(measured, "pending: ", tables.BY_PENDING).splitlines()
    assert rows[2:] == [
        "| 100,000 | duewheel | 2 | 8 | 8 | – | – | – | – |",
        "| 100,000 | RocketMQ 5.5.0 | 2 | 4 | 4 | – | – | – | – |",
        "| 10,000,000 | duewheel | 3 | 12 | 12 | – | – | – | – |",
        "| 10,000,000 | RocketMQ 5.5.0 | 3 | 6 | 6 | – | – | – | – |",
    ]
    made = plots(measured)
    assert set(made) == {"benchmarks-pending.svg", "benchmarks-pending-rate.svg"}
    assert "RocketMQ delivery" in made["benchmarks-pending.svg"]


def test_stages_of_the_engine_are_a_table() -> None:
    figures = [
        a_figure(5.0, f"engine: {stage}, runs of {length}")
        for stage, length in (("append", "1"), ("append", "1,000"), ("walk", "1"))
    ]
    rows = tables.engine(Measured.of(figures)).splitlines()
    assert rows[2:] == ["| append | 5 | 5 |", "| walk | 5 | – |"]


def test_a_workload_that_was_run_again_counts_and_is_named_with_its_run() -> None:
    figures = [a_figure(1.0), a_figure(2.0, "idle"), a_figure(3.0, run="2", commit="def")]
    measured = Measured.of(figures)
    assert measured.of_system("enqueue", "duewheel")["rate"].value == 3.0
    assert report.machine(measured).splitlines() == [
        "- Run of 1: commit `abc`, 2 cores, 24 GiB, load 0.1 before it; it has: idle.",
        "- Run of 2: commit `def`, 2 cores, 24 GiB, load 0.1 before it; it has: enqueue.",
    ]


def test_a_run_with_scaled_sizes_is_not_recorded(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.write_text(a_figure(1.0, scale=0.01).line())
    with pytest.raises(ValueError, match="--scale"):
        report.record(run)


def test_the_table_shows_the_median_and_never_the_best_run() -> None:
    ours = replace(a_figure(300.0, run="2026-11-26 10:24 UTC"), runs=[300.0, 900.0, 100.0])
    peers = [
        a_figure(value, system=f"RocketMQ 5.5.0{variant}", run="2026-11-26 10:24 UTC")
        for value, variant in ((50.0, ""), (70.0, ", precision 100 ms"), (90.0, ", other"))
    ]
    earlier = a_figure(800.0, run="2026-11-22 10:24 UTC")
    table = shown_figures.measured(Measured.of([earlier, ours, *peers]))
    assert "| enqueue rate, per second | 300 | 50 | 70 |" in table
    assert "| start to the first delivery, s | – | – | – |" in table
    assert "Medians of 3 rounds, 2 cores, 24 GiB: commit `abc` on 2026-11-26." in table


def test_the_sentence_about_a_soak_is_of_a_recorded_run() -> None:
    assert "No soak of this code is recorded yet" in shown_figures.soak([])
    record = {"rounds": 100, "delivered": 1_234, "commit": "abc", "date": "2026-11-23", "cores": 2}
    faults = {"lost": 0, "doubled": 1, "early": 0, "altered": 0}
    sentence = shown_figures.soak([{**record, **faults}])
    assert "100 rounds" in sentence and "`abc`" in sentence and "1 doubled" in sentence
