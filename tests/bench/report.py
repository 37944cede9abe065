"""`make bench-report`: docs/benchmarks.md, its plots, and the figures of other pages.

    report.py                    writes them from docs/benchmarks.jsonl
    report.py --record FILE      adds the figures of a run (`make bench OUT=FILE`) to it first

Of each workload the newest run counts that has it, with all systems of that run: a ratio is never
of two runs.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# The last place to look for modules: a folder called `wheel` lies there.
sys.path.append(str(ROOT))

from tests.bench import shown_figures, tables, timeline_page  # noqa: E402
from tests.bench.figures import read  # noqa: E402
from tests.bench.measured import OURS, Measured  # noqa: E402
from tests.bench.plots import plots  # noqa: E402
from tests.bench.session import WARM_PER_S, WARM_S, WARM_TIMERS  # noqa: E402

RECORDED = ROOT / "docs" / "benchmarks.jsonl"
PAGE = ROOT / "docs" / "benchmarks.md"


TEXT = """\
# Benchmarks

Made by `make bench-report` from the runs in [benchmarks.jsonl](benchmarks.jsonl); edits here are
lost. `make bench OUT=file` measures your machine in minutes, `make bench-full OUT=file` more, in an
hour and on 20 GB of disk.

{machine}

{table}

Each value, also a maximum, is the median of its newest run. Processor time and memory include
Kafka's and leave out load and consumer. A target is a value, or a multiple of the peer's.

## How

Load, system and consumer share one machine. The systems take turns, each on an empty store.
First both have the same warm-up: {timers:,} timers of one instant,
then {per_s:,} a second for {seconds} s. A timer is
sent at its time, unless 5 requests (RocketMQ: 1,000 messages) are unanswered. Lateness is the time
of receipt at a consumer of committed messages minus the due time. A timer is enqueued once it is in
the wheel: the commit page has it, or the broker reports nothing stored that is not in its wheel. In
a spike, 100 timers a second with other due times are sent beside it. "Beside an enqueue": while a
stream is due, 200,000 other timers are enqueued again and again.

Bodies have 100 bytes; {ours}'s timers also a key of 16 bytes and three headers. Kafka has a heap of
1 GiB, RocketMQ's broker one of 2 GiB, both G1 and the optimising compiler; RocketMQ flushes
asynchronously and has its default precision of 1,000 ms unless a row says 100. {ours}'s load is
encoded before it is sent, and its consumer reads raw batches. RocketMQ's are its Java clients,
which create each message as they send it, on the same cores.
"""


BESIDE_PENDING = """\
200,000 timers are enqueued beside so many pending ones, and 50,000 are delivered, 5,000 a second.
Processor time is that of a message, of all parts with their broker; memory is without Kafka's.
"""
BY_TARGET = """\
50,000 timers are delivered, 5,000 a second; then as many of one instant.
"""
BY_SLOTS = """\
1,000 timers a second (`timer.precision_ms`): a transaction for each slot. Processor time is that of
a message, of all parts with Kafka.
"""
BY_TRIGGER = """\
1,000 timers a second by `ingest.trigger_ms`: a batch of Spark for each interval. Delays are 2 to
8 s; one that is shorter than an interval may be late by as much.
"""
SINGLE = """\
`rolls` has 1,000 timers a second, delays of 25 to 30 s and a roll window of 10 s, `half cancelled`
200,000 timers, `lost files` 2,000,000. `cancels` is the engine alone, beside 1,000,000.
"""
SECOND_DRIVER = """\
The same timers from confluent-kafka's producer to its consumer (librdkafka), in processes that
share no code with the first driver; both drivers in turn (`bench.py OUT --second-driver`).
"""
ENGINE = """\
Engine and dequeue alone, without Kafka and Spark. Runs are neighbours in one slot and batch: the
shorter, the more scattered is what a slot needs. The files are in the page cache.
"""


def recorded() -> tuple[Measured, Measured]:
    """The figures of docs/benchmarks.md: of duewheel and its peer, and of the timelines."""
    figures = read(RECORDED)
    timelines = [each for each in figures if each.workload.startswith(timeline_page.PREFIX)]
    others = [each for each in figures if not each.workload.startswith(timeline_page.PREFIX)]
    return Measured.of(others), Measured.of(timelines)


def page(measured: Measured, timelines: Measured) -> str:
    text = TEXT.format(
        machine=machine(measured),
        table=tables.table(measured),
        ours=OURS,
        timers=WARM_TIMERS,
        per_s=WARM_PER_S,
        seconds=WARM_S,
    )
    drawn = plots(measured)
    parts = [text, *_shown(drawn, ("table",))]
    for title, found, names in sections(measured):
        if found:
            parts += [f"## {title}\n", *_shown(drawn, names), found, ""]
    parts.append(f"## Timelines\n\n{timeline_page.section(timelines, machine(timelines))}")
    return "\n".join(parts).rstrip() + "\n"


def sections(measured: Measured) -> Iterator[tuple[str, str, Sequence[str]]]:
    """Titles, tables and the names of plots; a table is empty of what was not measured."""
    if measured.figures:
        yield "Lateness of a steady stream", tables.latenesses(measured), ("lateness",)
        pending = tables.by_size(measured, "pending: ", tables.BY_PENDING)
        text = pending and f"{BESIDE_PENDING}\n{pending}"
        yield "Beside pending timers", text, ("pending", "pending-rate")
        targets = tables.by_size(measured, "target partitions: ", tables.BY_PARTITIONS)
        text = targets and f"{BY_TARGET}\n{targets}"
        yield "By target partitions", text, ("partitions", "partitions-rate")
        slots = tables.by_size(measured, "slots, ms: ", tables.BY_SLOTS)
        yield "By the length of a slot", slots and f"{BY_SLOTS}\n{slots}", ()
        triggers = tables.by_trigger(measured)
        yield "By ingest's trigger", triggers and f"{BY_TRIGGER}\n{triggers}", ()
        single = tables.single(measured)
        yield "Single workloads", single and f"{SINGLE}\n{single}", ()
        engine = tables.engine(measured)
        yield "Stages alone", engine and f"{ENGINE}\n{engine}", ()
        second = tables.second_driver(measured)
        yield "A second driver", second and f"{SECOND_DRIVER}\n{second}", ()
        yield "Lost, repeated, early", tables.correctness(measured), ()
        yield "Processor time", tables.by_part(measured, "processor time of "), ()
        yield "Anonymous memory at most", tables.by_part(measured, "anonymous memory of "), ()


def _shown(drawn: Mapping[str, str], names: Sequence[str]) -> list[str]:
    """The plots of these names, as far as they exist."""
    files = [f"benchmarks-{name}.svg" for name in names]
    return [f"![{_title(drawn[file])}]({file})\n" for file in files if file in drawn]


def _title(plot: str) -> str:
    found = re.search(r"<text[^>]*>([^<]*)", plot)
    return found[1] if found else ""


def machine(measured: Measured) -> str:
    """A sentence for each run on the page, with its workloads if there are several runs."""
    sentences: dict[str, str] = {}
    workloads: dict[str, dict[str, None]] = {}
    for workload, systems in measured.figures.items():
        for metrics in systems.values():
            for figure in metrics.values():
                c = figure.config
                workloads.setdefault(c["run"], {})[workload] = None
                sentences[c["run"]] = (
                    f"Run of {c['run']}: commit `{c['commit']}`, {c['cores']} cores, "
                    f"{c['memory_gib']} GiB, load {c['load_before']} before it"
                )
    if len(sentences) == 1:
        return f"{next(iter(sentences.values()))}."
    lines = [
        f"- {sentences[run]}; it has: {'; '.join(_groups(workloads, run))}."
        for run in sorted(sentences)
    ]
    return "\n".join(lines) or "No run is recorded."


def _groups(workloads: Mapping[str, Mapping[str, None]], run: str) -> Mapping[str, None]:
    """The workloads of a run: `pending: 1,000` as `pending`, where no other run has such ones."""
    elsewhere = {
        name.partition(":")[0] for each in workloads if each != run for name in workloads[each]
    }
    heads = [(name, name.partition(":")[0]) for name in workloads[run]]
    return dict.fromkeys(name if head in elsewhere else head for name, head in heads)


def record(run: Path) -> None:
    """
    Raises:
        ValueError: its sizes were scaled.
    """
    figures = read(run)
    if any("scale" in figure.config for figure in figures):
        raise ValueError(f"{run} was made with --scale: its figures mean nothing")
    with RECORDED.open("a", encoding="utf-8") as recorded:
        recorded.write("".join(f"{figure.line()}\n" for figure in figures))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--record", type=Path, help="a run to add first")
    args = parser.parse_args()
    if args.record:
        record(args.record)
    measured, timelines = recorded()
    PAGE.write_text(page(measured, timelines), "utf-8")
    for name, plot in plots(measured).items():
        PAGE.with_name(name).write_text(plot, "utf-8")
    for shown, text in shown_figures.pages(measured).items():
        shown.write_text(text, "utf-8")


if __name__ == "__main__":
    main()
