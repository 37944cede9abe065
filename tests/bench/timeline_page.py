"""The wheel beside RocksDB: a section of docs/benchmarks.md."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tests.bench.measured import Measured, number
from tests.bench.tables import markdown


@dataclass(frozen=True)
class Row:
    """A row of the table: what is shown of a metric of a step of timeline_steps.py."""

    label: str
    step: str
    metric: str


PREFIX = "timeline, "
SPREAD, BACK_OFFS = "delays below 12 h", "fixed back-offs"
ROWS = (
    Row(f"enqueue, {SPREAD}", "spread", "enqueue rate"),
    Row("… processor time", "spread", "enqueue processor time"),
    Row("… memory of ingest and dequeue", "spread", "anonymous memory of both processes"),
    Row("… written per byte appended", "spread", "written per byte appended"),
    Row("… disk of the timeline", "spread", "disk of the timeline"),
    Row("… disk of everything", "spread", "disk of everything"),
    Row(f"enqueue, {BACK_OFFS}", "back-offs", "enqueue rate"),
    Row("… processor time", "back-offs", "enqueue processor time"),
    Row("… written per byte appended", "back-offs", "written per byte appended"),
    Row("… disk of the timeline", "back-offs", "disk of the timeline"),
    Row("a slot at 5,000/s: found, p50", "delivery", "slot at 5,000/s, p50"),
    Row("… p99", "delivery", "slot at 5,000/s, p99"),
    Row("… processor time", "delivery", "slot at 5,000/s, processor time"),
    Row("… of it the refresh, p50", "delivery", "refresh, p50"),
    Row("100,000 in a slot: found", "delivery", "spike: walk"),
    Row("… found, read and decoded", "delivery", "spike: walk, read, decode"),
    Row("1,000 cancels in a batch", "cancels", "1,000 cancels"),
    Row("a timer found by its id", "ids", "found by id"),
    Row("first 100 of a list", "ids", "first 100 of the list"),
    Row("count of an hour", "restart", "count of an hour"),
    Row("restart: both processes", "restart", "start"),
    Row("… processor time", "restart", "start, processor time"),
    Row("… and the first count", "restart", "start to the first count"),
    Row("recovery, with all checks", "recovery", "built from the logs"),
    Row("… processor time", "recovery", "built from the logs, processor time"),
)

TEXT = """\
Ingest's engine and dequeue's files alone, without Kafka and Spark, in batches of 50,000 timers
(1,000 where slots are found) with bodies of 100 bytes, beside so many pending ones. Each step is a
process of its own, the timelines take turns, and a value is the median of {runs}. Timers with
delays below 12 h are mostly alone in their slot and batch; those with fixed back-offs share a few.
A slot is found once its records are. A recovery starts with a damaged timeline, builds it, and
verifies all files. Cancels, ids and lists are found without the timeline.

{machine}
"""


def section(measured: Measured, machine: str) -> str:
    """Without a title; `machine`: sentences on the runs."""
    counts = {
        len(figure.runs)
        for systems in measured.figures.values()
        for metrics in systems.values()
        for figure in metrics.values()
    }
    runs = f"{min(counts)} to {max(counts)} runs" if counts else "no run"
    return f"{TEXT.format(machine=machine, runs=runs)}\n{table(measured)}\n"


def table(measured: Measured) -> str:
    """A column for each timeline and number of pending ones; `–`: that step was not run."""
    columns = [(size, kind) for size, kind, _ in measured.by_size(f"{PREFIX}spread: ")]
    head = [f"{kind}, {number(size)}" for size, kind in columns]
    return markdown(["", *head], _rows(measured, columns))


def _rows(measured: Measured, columns: list[tuple[float, str]]) -> Iterator[list[str]]:
    for row in ROWS:
        cells, unit = [], ""
        for size, kind in columns:
            systems = measured.figures.get(f"{PREFIX}{row.step}: {number(size)}", {})
            figure = systems.get(kind, {}).get(row.metric)
            cells.append("–" if figure is None else number(figure.value))
            unit = unit if figure is None else figure.unit
        if unit:
            yield [f"{row.label}, {unit}", *cells]
