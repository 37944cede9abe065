"""`make bench-report`: docs/benchmarks.md and its plots, from the recorded runs.

    report.py                    writes them from docs/benchmarks.jsonl
    report.py --record FILE      adds the figures of a run (`make bench OUT=FILE`) to it first

Of each workload the newest run counts that has it, with all systems of that run: a ratio is never
of two runs.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# The last place to look for modules: a folder called `wheel` lies there.
sys.path.append(str(ROOT))

from tests.bench import svg  # noqa: E402
from tests.bench.figures import Figure, read  # noqa: E402

RECORDED = ROOT / "docs" / "benchmarks.jsonl"
PAGE = ROOT / "docs" / "benchmarks.md"
OURS, PEER = "duewheel", "RocketMQ"
OUR_PARTS = ("ingest", "Spark", "dequeue")
PEER_PARTS = ("broker", "name server")


@dataclass(frozen=True)
class Target:
    """A bound of issue 15: of the ratio to the peer, or of our own value."""

    bound: float
    of_ratio: bool = False
    at_least: bool = False

    def shown(self, unit: str) -> str:
        sign = "≥" if self.at_least or self.of_ratio else "≤"
        return f"{sign} {number(self.bound)}" + ("×" if self.of_ratio else f" {unit}")

    def met(self, ours: float, ratio: float | None) -> bool:
        if self.of_ratio:
            return ratio is not None and ratio >= self.bound
        return ours >= self.bound if self.at_least else ours <= self.bound


@dataclass(frozen=True)
class Axis:
    """A row of the table.

    Attributes:
        metric: of both systems; `{}` in it: the sum over their parts.
        more_is_better: of the values.
        with_kafka: whether the broker's part counts as ours.
    """

    label: str
    workload: str
    metric: str
    target: Target | None = None
    more_is_better: bool = False
    with_kafka: bool = False

    def value(self, system: Mapping[str, Figure], parts: Sequence[str]) -> float | None:
        """None: not measured."""
        names = (
            [self.metric.format(part) for part in parts] if "{}" in self.metric else [self.metric]
        )
        values = [system[name].value for name in names if name in system]
        return sum(values) if len(values) == len(names) else None

    def unit(self, *systems: Mapping[str, Figure]) -> str:
        name = self.metric.format(PEER_PARTS[0]), self.metric.format(OUR_PARTS[0])
        return next((s[n].unit for s in systems for n in name if n in s), "")


RATIO_5, RATIO_10 = Target(5, of_ratio=True), Target(10, of_ratio=True)
MILLION, BESIDE = "spike of 1,000,000", "beside an enqueue, 5,000/s"
AXES = (
    Axis("enqueue: rate", "enqueue", "rate", RATIO_5, more_is_better=True),
    Axis("backlog: rate", "backlog", "rate", Target(300_000, at_least=True), more_is_better=True),
    Axis("enqueue: processor time", "enqueue", "processor time of {}", with_kafka=True),
    Axis("enqueue: memory", "enqueue", "anonymous memory of {}"),
    Axis("pending: local disk", "enqueue", "disk per timer, local", Target(230)),
    Axis("100,000 at once: until the last", "spike of 100,000", "due to last received", RATIO_5),
    Axis("1,000,000 at once: until the last", MILLION, "due to last received", Target(1)),
    Axis("1,000,000 at once: others, at most", MILLION, "background lateness max", Target(1200)),
    Axis("1,000,000 at once: memory", MILLION, "anonymous memory of {}", Target(120)),
    Axis("5,000/s: lateness p50", "steady, 5,000/s", "lateness p50", Target(25)),
    Axis("5,000/s: lateness p99", "steady, 5,000/s", "lateness p99", Target(60)),
    Axis("5,000/s beside an enqueue: p50", BESIDE, "lateness p50", Target(50)),
    Axis("5,000/s beside an enqueue: p99", BESIDE, "lateness p99", Target(120)),
    Axis("5,000/s: processor time", "steady, 5,000/s", "processor time of {}", with_kafka=True),
    Axis("after a stop: catch-up", "overdue", "catch-up rate", RATIO_10, more_is_better=True),
    Axis("after a stop: first delivery", "overdue", "start to first delivery", Target(1.5)),
    Axis("a stop", "overdue", "stopped within"),
    Axis("idle: processor time", "idle", "processor time of {}", Target(3)),
)
PARTS_OF = {"1,000,000 at once: memory": ("dequeue",)}


@dataclass(frozen=True)
class Measured:
    """The figures that count: workload → system → metric."""

    figures: Mapping[str, Mapping[str, Mapping[str, Figure]]]

    @classmethod
    def of(cls, recorded: Sequence[Figure]) -> Measured:
        newest = {figure.workload: figure.config["run"] for figure in recorded}
        found: dict[str, dict[str, dict[str, Figure]]] = {}
        for figure in recorded:
            if figure.config["run"] == newest[figure.workload]:
                systems = found.setdefault(figure.workload, {})
                systems.setdefault(figure.system, {})[figure.metric] = figure
        return cls(found)

    def of_system(self, workload: str, name: str) -> Mapping[str, Figure]:
        """Of the system whose name begins so and has no variant."""
        systems = self.figures.get(workload, {})
        return next((m for s, m in systems.items() if s.startswith(name) and "," not in s), {})

    def row(self, axis: Axis) -> tuple[float | None, float | None, str]:
        """Our value, the peer's, their unit."""
        ours, peer = (self.of_system(axis.workload, name) for name in (OURS, PEER))
        our_parts = PARTS_OF.get(axis.label, OUR_PARTS + ("Kafka",) * axis.with_kafka)
        return axis.value(ours, our_parts), axis.value(peer, PEER_PARTS), axis.unit(ours, peer)


def number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def table(measured: Measured) -> str:
    lines = [f"| | {PEER} | {OURS} | ratio | target | |", "| --- | --- | --- | --- | --- | --- |"]
    for axis in AXES:
        ours, peer, unit = measured.row(axis)
        better = None
        if ours and peer:
            better = ours / peer if axis.more_is_better else peer / ours
        shown = [f"{number(v)} {unit}" if v is not None else "–" for v in (peer, ours)]
        target, verdict = "", ""
        if axis.target is not None:
            target = axis.target.shown(unit)
            if ours is not None:
                verdict = "met" if axis.target.met(ours, better) else "missed"
        ratio = f"{better:.2g}×" if better is not None else "–"
        lines.append(f"| {axis.label} | {' | '.join(shown)} | {ratio} | {target} | {verdict} |")
    return "\n".join(lines)


def correctness(measured: Measured) -> str:
    """What must be 0, summed over all workloads."""
    lines = ["| | lost | repeated | early |", "| --- | --- | --- | --- |"]
    for name in dict.fromkeys(s for systems in measured.figures.values() for s in systems):
        counts = []
        for what in ("lost", "repeated", "early"):
            found = [w[name][what] for w in measured.figures.values() if what in w.get(name, {})]
            counts.append(number(sum(sum(figure.runs) for figure in found)) if found else "–")
        lines.append(f"| {name} | {' | '.join(counts)} |")
    return "\n".join(lines)


def by_part(measured: Measured, prefix: str) -> str:
    """A metric of each process, by workload."""
    lines = ["| workload | system | |", "| --- | --- | --- |"]
    for workload, systems in measured.figures.items():
        for name, metrics in systems.items():
            parts = [
                f"{metric.removeprefix(prefix)} {number(figure.value)}"
                for metric, figure in metrics.items()
                if metric.startswith(prefix)
            ]
            if parts:
                unit = next(f.unit for m, f in metrics.items() if m.startswith(prefix))
                lines.append(f"| {workload} | {name} | {', '.join(parts)} ({unit}) |")
    return "\n".join(lines)


def latenesses(measured: Measured) -> str:
    lines = ["| rate | system | p50 | p90 | p99 | p99.9 | max, ms |", "| --- " * 7 + "|"]
    for workload, systems in measured.figures.items():
        if workload.startswith("steady"):
            for name, metrics in systems.items():
                values = [
                    number(metrics[f"lateness {q}"].value)
                    for q in ("p50", "p90", "p99", "p99.9", "max")
                ]
                lines.append(f"| {workload.split()[1]} | {name} | {' | '.join(values)} |")
    return "\n".join(lines)


def plots(measured: Measured) -> dict[str, str]:
    """File name → SVG; none of what was not measured."""
    made: dict[str, Callable[[], str | None]] = {
        "benchmarks-table.svg": lambda: _bars(measured),
        "benchmarks-lateness.svg": lambda: _by_number(
            measured, "steady, ", "lateness {}", ("p50", "p99"), "Lateness", "timers/s", "ms"
        ),
        "benchmarks-partitions.svg": lambda: _by_number(
            measured,
            "target partitions: ",
            "processor time of {}",
            ("Kafka", *OUR_PARTS),
            "Cost of a timer by target partitions",
            "target partitions",
            "µs of processor time",
        ),
        "benchmarks-pending.svg": lambda: _by_number(
            measured,
            "pending: ",
            "processor time of {}",
            ("Kafka", "broker", *OUR_PARTS),
            "Cost of an enqueued timer by pending ones",
            "pending",
            "µs of processor time",
        ),
    }
    return {name: text for name, make in made.items() if (text := make()) is not None}


def _bars(measured: Measured) -> str | None:
    rows = {}
    for axis in AXES:
        ours, peer, unit = measured.row(axis)
        if ours is not None and peer is not None:
            rows[f"{axis.label}, {unit}"] = {PEER: peer, OURS: ours}
    return svg.bars(f"{OURS} beside {PEER}", "", rows) if rows else None


def _by_number(
    measured: Measured,
    prefix: str,
    metric: str,
    names: Sequence[str],
    title: str,
    x_label: str,
    y_label: str,
) -> str | None:
    """A line for each metric and system, over the number in the workload's name."""
    series: dict[str, list[tuple[float, float]]] = {}
    for workload, systems in measured.figures.items():
        if not workload.startswith(prefix):
            continue
        x = float(re.sub(r"[^\d]", "", workload.removeprefix(prefix)))
        for system, metrics in systems.items():
            for name in names:
                if (figure := metrics.get(metric.format(name))) and figure.value > 0:
                    label = f"{system.split()[0]} {name}"
                    series.setdefault(label, []).append((x, figure.value))
    return svg.lines(title, x_label, y_label, series) if series else None


TEXT = """\
# Benchmarks

Made by `make bench-report` from the runs in [benchmarks.jsonl](benchmarks.jsonl); edits here are
lost. `make bench OUT=file` measures your machine in minutes, `make bench-full OUT=file` with more
rates, larger sizes and three rounds.

{machine}

{table}

The ratio says how many times better {ours} is. Values are medians of the runs. Processor time,
memory and disk are those of a system without load and consumer: ingest, its JVM and dequeue, and
for processor time Kafka; Kafka's copy of each timer is not in its disk. The memory of a million at
once is that of dequeue, or of RocketMQ's broker and name server.

## How

Load, system and consumer share one machine. The systems take turns, each on an empty store, while
nothing else runs. A load is an open loop: a timer is sent at its time whether or not earlier ones
were answered. Lateness is the time of receipt at a consumer of committed messages minus the due
time. A timer is enqueued once it is in the wheel: the commit page has it, or the broker reports
nothing stored that is not in its wheel. In a spike, 100 timers a second with other due times are
sent beside it.

Bodies have 100 bytes; {ours}'s timers also a key of 16 bytes and three headers. Kafka has a heap of
1 GiB, RocketMQ's broker one of 2 GiB, both G1 and the optimising compiler. {ours}'s load is encoded
before it is sent, and its consumer reads raw batches: neither takes the cores from what is
measured. RocketMQ's are its Java clients, of which the load creates each message as it sends it.

## Spark's Kafka connector

Ingest's tasks fetch raw record batches and parse them in Python (`streaming/source.py`). Before,
Spark's own connector read Kafka, and the driver parsed its rows. Both were measured in turns, warm:
the second 3 million rows of a backlog, with keys of 16 bytes, five headers and four partitions, and
malloc's thresholds at 128 MiB.

| | connector, 150,000 rows a batch | tasks, 150,000 | tasks, 300,000 |
| --- | --- | --- | --- |
| rows a second | 202,000 | 286,000 | 339,000 |
| processor time per row, us | 6.8 | 4.6 | 4.1 |
| … of JVM, tasks, driver | 4.55, 0, 2.22 | 0.85, 2.69, 1.05 | 0.61, 2.24, 1.28 |
| memory of the JVM | 1,288 MB | 567 MB | 558 MB |

At 1,000 timers a second, of two runs each, the connector had a lateness of 49 and 49 ms (p50), 86
and 83 ms (p99) for 983 and 945 us of processor time a message; the tasks 53 and 50 ms, 103 and
94 ms for 745 and 761 us. In all the memory is about the same: with a heap of 512 MiB the JVM has
0.47 GB, and the Python processes that plan and read have 0.8 GB on two processors. The connector,
its four jars and its options were removed.
"""


def page(measured: Measured) -> str:
    parts = [TEXT.format(machine=machine(measured), table=table(measured), ours=OURS)]
    parts += [f"![{_title(plot)}]({name})\n" for name, plot in plots(measured).items()]
    if measured.figures:
        parts += ["## Lateness of a steady stream\n", latenesses(measured), ""]
        parts += ["## Lost, repeated, early\n", correctness(measured), ""]
        for title, prefix in (
            ("Processor time", "processor time of "),
            ("Anonymous memory at most", "anonymous memory of "),
        ):
            parts += [f"## {title}\n", by_part(measured, prefix), ""]
    return "\n".join(parts).rstrip() + "\n"


def _title(plot: str) -> str:
    found = re.search(r"<text[^>]*>([^<]*)", plot)
    return found[1] if found else ""


def machine(measured: Measured) -> str:
    """A sentence for each run on the page."""
    sentences = {}
    for systems in measured.figures.values():
        for metrics in systems.values():
            for figure in metrics.values():
                c = figure.config
                sentences[c["run"]] = (
                    f"Run of {c['run']}: commit `{c['commit']}`, {c['cores']} cores, "
                    f"{c['memory_gib']} GiB, load {c['load_before']} before it."
                )
    return "\n".join(sentences[run] for run in sorted(sentences)) or "No run is recorded."


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--record", type=Path, help="a run to add first")
    args = parser.parse_args()
    if args.record:
        new = "".join(f"{figure.line()}\n" for figure in read(args.record))
        with RECORDED.open("a", encoding="utf-8") as recorded:
            recorded.write(new)
    measured = Measured.of(read(RECORDED))
    PAGE.write_text(page(measured), "utf-8")
    for name, plot in plots(measured).items():
        PAGE.with_name(name).write_text(plot, "utf-8")


if __name__ == "__main__":
    main()
