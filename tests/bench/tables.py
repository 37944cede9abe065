"""The tables of docs/benchmarks.md."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence

from tests.bench.measured import (
    AXES,
    OUR_PARTS,
    OURS,
    PEER,
    PEER_PARTS,
    SECOND_DRIVER,
    SECOND_NAME,
    WHY_MISSED,
    Axis,
    Measured,
    Metrics,
    cost,
    number,
    summed,
)

Column = Callable[[str, Metrics], float | None]

QUANTILES = ("p50", "p90", "p99", "p99.9", "max")
PER_PROCESS = ("processor time of ", "anonymous memory of ")
SHOWN_ELSEWHERE = (*PER_PROCESS, "lost", "repeated", "early", "lateness p90", "lateness p99.9")
BOTH_DRIVERS = ("lateness p50", "lateness p99", "due to last received", "rate")
SINGLE = ("restart", "restart beside the most", "rolls", "half cancelled", "cancels", "lost files")


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def table(measured: Measured) -> str:
    rows = []
    for axis in AXES:
        ours, peer, unit = measured.row(axis)
        if ours is None:
            continue
        better = None
        if ours and peer:
            better = ours / peer if axis.more_is_better else peer / ours
        shown = [f"{number(v)} {unit}" if v is not None else "–" for v in (peer, ours)]
        target, verdict = "", ""
        if axis.target is not None:
            target = axis.target.shown(unit)
            verdict = "met" if axis.target.met(ours, better) else _missed(axis)
        rows.append([axis.label, *shown, target, verdict])
    return markdown(["", PEER, OURS, "target", ""], rows)


def _missed(axis: Axis) -> str:
    why = WHY_MISSED.get(axis.label)
    return "missed" if why is None else f"missed: {why}"


def correctness(measured: Measured) -> str:
    """What must be 0, summed over all workloads."""
    rows = []
    for name in dict.fromkeys(s for systems in measured.figures.values() for s in systems):
        counts = []
        for what in ("lost", "repeated", "early"):
            found = [w[name][what] for w in measured.figures.values() if what in w.get(name, {})]
            counts.append(number(sum(sum(figure.runs) for figure in found)) if found else "–")
        rows.append([name, *counts])
    return markdown(["", "lost", "repeated", "early"], rows)


def by_part(measured: Measured, prefix: str) -> str:
    """A metric of each process, by workload."""
    rows = []
    for workload, systems in measured.figures.items():
        for name, metrics in systems.items():
            parts = [
                f"{metric.removeprefix(prefix)} {number(figure.value)}"
                for metric, figure in metrics.items()
                if metric.startswith(prefix)
            ]
            if parts:
                unit = next(f.unit for m, f in metrics.items() if m.startswith(prefix))
                rows.append([workload, name, f"{', '.join(parts)} ({unit})"])
    return markdown(["workload", "system", ""], rows)


def latenesses(measured: Measured) -> str:
    rows = []
    for workload, systems in measured.figures.items():
        if workload.startswith(("steady", "beside")):
            for name, metrics in systems.items():
                values = [number(metrics[f"lateness {q}"].value) for q in QUANTILES]
                rows.append([workload, name, *values])
    return markdown(["", "system", "p50", "p90", "p99", "p99.9", "max, ms"], rows)


def _value(metric: str) -> Column:
    return lambda _system, metrics: summed(metrics, metric, [""])


def _memory(system: str, metrics: Metrics) -> float | None:
    parts = PEER_PARTS if system.startswith(PEER) else OUR_PARTS
    return summed(metrics, "anonymous memory of {}", parts)


BY_PENDING: Mapping[str, Column] = {
    "enqueued, timers/s": _value("rate"),
    "us": cost,
    "delivered, us": lambda system, metrics: cost(system, metrics, "delivery "),
    "p50": _value("delivery lateness p50"),
    "p99, ms": _value("delivery lateness p99"),
    "memory, MB": _memory,
    "disk, bytes": _value("disk per timer, local"),
}
BY_PARTITIONS: Mapping[str, Column] = {
    "delivered, us": cost,
    "p50": _value("lateness p50"),
    "p99, ms": _value("lateness p99"),
    "at once, timers/s": _value("delivered at once"),
    "memory, MB": _memory,
}
BY_SLOTS: Mapping[str, Column] = {
    "us": cost,
    "p50": _value("lateness p50"),
    "p99": _value("lateness p99"),
    "p99.9, ms": _value("lateness p99.9"),
}


def by_size(measured: Measured, prefix: str, columns: Mapping[str, Column]) -> str:
    """A row for each size and system; empty if there is none."""
    rows = []
    for size, system, metrics in measured.by_size(prefix):
        rows.append([number(size), system, *_cells(columns, system, metrics)])
    return markdown([prefix.rstrip(": "), "system", *columns], rows) if rows else ""


def _cells(columns: Mapping[str, Column], system: str, metrics: Metrics) -> list[str]:
    values = [column(system, metrics) for column in columns.values()]
    return [number(v) if v is not None else "–" for v in values]


def second_driver(measured: Measured) -> str:
    """What both drivers find, and the ratio of the second; empty if nothing is recorded."""
    rows = []
    for workload, systems in measured.figures.items():
        if workload.startswith(SECOND_DRIVER) and len(systems) == 2:
            first, second = (systems[name] for name in (OURS, SECOND_NAME))
            for metric in (m for m in BOTH_DRIVERS if m in first and m in second):
                values, unit = (first[metric].value, second[metric].value), first[metric].unit
                label = f"{workload.removeprefix(SECOND_DRIVER)}: {metric}, {unit}"
                rows.append([label, *map(number, values), f"{values[1] / values[0]:.2f}"])
    return markdown(["", OURS, SECOND_NAME, "ratio"], rows) if rows else ""


def by_trigger(measured: Measured) -> str:
    """A row for each interval and length of a slot; empty if there is none."""
    rows = [
        [*re.findall(r"[\d,]*\d", workload), *_cells(BY_SLOTS, OURS, of)]
        for workload, systems in measured.figures.items()
        if workload.startswith("triggers, ms: ")
        for of in systems.values()
    ]
    return markdown(["trigger, ms", "slots, ms", *BY_SLOTS], rows) if rows else ""


def single(measured: Measured) -> str:
    """What is measured for one size only; empty if nothing is."""
    rows = [
        [workload, metric, system, f"{number(figure.value)} {figure.unit}"]
        for workload in SINGLE
        for system, metrics in measured.figures.get(workload, {}).items()
        for metric, figure in metrics.items()
        if not metric.startswith(SHOWN_ELSEWHERE)
    ]
    return markdown(["workload", "metric", "system", ""], rows) if rows else ""


def engine(measured: Measured) -> str:
    """Stages by the length of runs; empty if none is measured."""
    rates: dict[str, dict[str, str]] = {}
    for workload in measured.figures:
        if found := re.fullmatch(r"engine: (\w+), runs of ([\d,]+)", workload):
            rate = measured.of_system(workload, OURS)["rate"].value
            rates.setdefault(found[1], {})[found[2]] = number(rate)
    lengths = list(dict.fromkeys(length for stage in rates.values() for length in stage))
    rows = [[name, *(of.get(length, "–") for length in lengths)] for name, of in rates.items()]
    return markdown(["records/s, runs of", *lengths], rows) if rows else ""
