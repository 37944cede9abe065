"""The plots of docs/benchmarks.md: file name → SVG."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tests.bench import svg
from tests.bench.measured import AXES, OUR_PARTS, OURS, PEER, Measured, Metrics, cost, summed

COST, TARGETS = "µs of processor time", "target partitions: "
Points = Mapping[str, float | None]


def plots(measured: Measured) -> dict[str, str]:
    """None of what was not measured."""
    made: dict[str, Callable[[], str | None]] = {
        "table": lambda: _bars(measured),
        "lateness": lambda: _by_size(measured, "steady, ", _lateness, "Lateness", "timers/s", "ms"),
        "pending": lambda: _by_size(
            measured, "pending: ", _costs, "Cost of a timer by pending ones", "pending", COST
        ),
        "pending-rate": lambda: _by_size(
            measured, "pending: ", _rate, "Enqueue rate by pending timers", "pending", "timers/s"
        ),
        "partitions": lambda: _by_size(
            measured, TARGETS, _parts, "Cost of a delivery by target partitions", "partitions", COST
        ),
        "partitions-rate": lambda: _by_size(
            measured,
            TARGETS,
            _at_once,
            "Timers of one instant by target partitions",
            "partitions",
            "timers/s",
        ),
    }
    svgs = {f"benchmarks-{name}.svg": make() for name, make in made.items()}
    return {name: text for name, text in svgs.items() if text is not None}


def _bars(measured: Measured) -> str | None:
    rows = {}
    for axis in AXES:
        ours, peer, unit = measured.row(axis)
        if ours is not None and peer is not None:
            rows[f"{axis.label}, {unit}"] = {PEER: peer, OURS: ours}
    return svg.bars(f"{OURS} beside {PEER}", "", rows) if rows else None


def _lateness(_system: str, metrics: Metrics) -> Points:
    return {name: summed(metrics, f"lateness {name}", [""]) for name in ("p50", "p99")}


def _costs(system: str, metrics: Metrics) -> Points:
    return {"enqueue": cost(system, metrics), "delivery": cost(system, metrics, "delivery ")}


def _rate(_system: str, metrics: Metrics) -> Points:
    return {"": summed(metrics, "rate", [""])}


def _parts(system: str, metrics: Metrics) -> Points:
    names = ("Kafka", *OUR_PARTS)
    parts = {name: summed(metrics, "processor time of {}", [name]) for name in names}
    return {"in all": cost(system, metrics), **parts}


def _at_once(_system: str, metrics: Metrics) -> Points:
    return {"": summed(metrics, "delivered at once", [""])}


def _by_size(
    measured: Measured,
    prefix: str,
    points: Callable[[str, Metrics], Points],
    title: str,
    x_label: str,
    y_label: str,
) -> str | None:
    """Lines for each system, over the number in the workload's name."""
    series: dict[str, list[tuple[float, float]]] = {}
    for x, system, metrics in measured.by_size(prefix):
        for name, y in points(system, metrics).items():
            if y:
                label = f"{system.split()[0]} {name}".rstrip()
                series.setdefault(label, []).append((x, y))
    return svg.lines(title, x_label, y_label, series) if series else None
