"""What docs/timelines.md says of the recorded runs: its section, made by `make bench-report`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.bench import svg
from tests.bench.measured import Measured, Metrics, number
from tests.bench.tables import markdown

from duewheel.wheel.storage.timelines.kinds import FILES

BEGIN, END = "## Measured\n", "\n## Which\n"


@dataclass(frozen=True)
class Row:
    """A row of the tables: what is shown of a metric of a step of timeline_steps.py."""

    label: str
    step: str
    metric: str


Values = list[tuple[Row, str, dict[str, float]]]

PREFIX = "timeline, "
SPREAD, BACK_OFFS = "delays over 12 h", "fixed back-offs"
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
Made by `make bench-report` from the runs in [benchmarks.jsonl](benchmarks.jsonl); edits up to the
next section are lost. `make bench-timelines OUT=file` measures your machine; `ARGS=--full` adds
10,000,000 pending timers.

{machine}

Ingest's engine and dequeue's files alone, without Kafka and Spark, in batches of 50,000 timers with
bodies of 100 bytes. Each step is a process of its own, the kinds take turns, and a value is the
median of {runs}. Where the load before a run is above 2, others computed: its rates
and times say something beside each other only. Timers with delays over 12 h are mostly alone
in their slot and batch, so RocksDB has a key for each; those with fixed back-offs share a few runs.
A slot is found once its records are; RocksDB's part in it is to catch up with ingest (refresh). A
recovery starts with a damaged timeline, builds it, and verifies it with every log and message.
Cancels, ids, lists and messages are the same code on the same files: what differs there is chance.
"""


def section(measured: Measured, machine: str) -> str:
    """The tables and plots, with the title; `machine`: sentences on the runs."""
    counts = {
        len(figure.runs)
        for systems in measured.figures.values()
        for metrics in systems.values()
        for figure in metrics.values()
    }
    runs = f"{min(counts)} to {max(counts)} runs" if counts else "no run"
    parts = [BEGIN, TEXT.format(machine=machine, runs=runs)]
    for pending, values in by_pending(measured):
        plot = f"![{title(pending)}]({plot_name(pending)})\n"
        parts += [f"### {number(pending)} pending\n", plot, f"{table(values)}\n"]
    return "\n".join(parts).rstrip() + "\n"


def plots(measured: Measured) -> dict[str, str]:
    """File name → SVG."""
    return {
        plot_name(pending): svg.bars(
            title(pending),
            "",
            {f"{_whole_label(row)}, {unit}": each for row, unit, each in values},
        )
        for pending, values in by_pending(measured)
    }


def write(page: Path, measured: Measured, machine: str) -> None:
    """Puts the section into the page, in place of the one before, and the plots beside it."""
    page.write_text(replaced(page.read_text("utf-8"), section(measured, machine)), "utf-8")
    for name, plot in plots(measured).items():
        page.with_name(name).write_text(plot, "utf-8")


def replaced(text: str, made: str) -> str:
    """The page with this section."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return before + made + END + after


def by_pending(measured: Measured) -> Iterator[tuple[float, Values]]:
    """The rows that both timelines have: unit, and the value of each."""
    for pending in dict.fromkeys(size for size, _, _ in measured.by_size(f"{PREFIX}spread: ")):
        values: Values = []
        for row in ROWS:
            systems = measured.figures.get(f"{PREFIX}{row.step}: {number(pending)}", {})
            found = {kind: systems[kind][row.metric] for kind in FILES if has(systems, kind, row)}
            if len(found) == len(FILES):
                unit = next(iter(found.values())).unit
                values.append((row, unit, {kind: found[kind].value for kind in found}))
        yield pending, values


def has(systems: Mapping[str, Metrics], kind: str, row: Row) -> bool:
    return row.metric in systems.get(kind, {})


def table(values: Values) -> str:
    rows = [
        [row.label, *(f"{number(value)} {unit}" for value in each.values()), _ratio(each)]
        for row, unit, each in values
    ]
    return markdown(["", *FILES, "rocksdb / wheel"], rows)


def title(pending: float) -> str:
    return f"Timelines with {number(pending)} pending timers"


def plot_name(pending: float) -> str:
    return f"timelines-{pending:.0f}.svg"


def _ratio(values: dict[str, float]) -> str:
    ratio = values["rocksdb"] / values["wheel"] if values["wheel"] else 0.0
    return f"{number(float(f'{ratio:.2g}'))}×" if ratio else "–"


def _whole_label(row: Row) -> str:
    """With the label of the row above that it continues."""
    at = ROWS.index(row)
    first = next(each for each in reversed(ROWS[: at + 1]) if not each.label.startswith("…"))
    label = row.label.removeprefix("… ")
    return label if first is row else f"{first.label.split(':')[0]}: {label}"
