"""`make bench-report`: docs/benchmarks.md, its plots, and sections of other pages.

    report.py                    writes them from docs/benchmarks.jsonl
    report.py --record FILE      adds the figures of a run (`make bench OUT=FILE`) to it first

Of each workload the newest run counts that has it, with all systems of that run: a ratio is never
of two runs.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator
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
TIMELINES = ROOT / "docs" / "timelines.md"


TEXT = """\
# Benchmarks

Made by `make bench-report` from the runs in [benchmarks.jsonl](benchmarks.jsonl); edits here are
lost. `make bench OUT=file` measures your machine in minutes, `make bench-full OUT=file` more of it,
larger, in 45 minutes.

{machine}

{table}

The ratio says how many times better {ours} is. Values are medians of the runs. Processor time,
memory and disk are those of a system without load and consumer: ingest, its JVM and dequeue, and
for processor time Kafka; Kafka's memory and its copy of each timer have rows of their own below,
and [performance.md](performance.md#measured) adds them up. The memory of a million at once is that
of dequeue, or of RocketMQ's broker and name server.

## How

Load, system and consumer share one machine. The systems take turns, each on an empty store, while
nothing else runs. After each start both have the same warm-up: {timers:,} timers of one instant,
then {per_s:,} a second for {seconds} s (up to commit `4e749e6` the first part only). A load is an
open loop: a timer is sent at its time whether or not earlier ones were answered. Lateness is the
time of receipt at a consumer of committed messages minus the due time. A timer is enqueued once it
is in the wheel: the commit page has it, or the broker reports nothing stored that is not in its
wheel. In a spike, 100 timers a second with other due times are sent beside it. "Beside an enqueue"
means that until the last of a stream is due, 200,000 other timers are enqueued again and again.

Bodies have 100 bytes; {ours}'s timers also a key of 16 bytes and three headers. Kafka has a heap of
1 GiB, RocketMQ's broker one of 2 GiB, both G1 and the optimising compiler. {ours}'s load is encoded
before it is sent, and its consumer reads raw batches: neither takes the cores from what is
measured. RocketMQ's are its Java clients, of which the load creates each message as it sends it.

## What stands in the way of the missed targets

The tables have what each run measured. The figures here are of single experiments of 21 and 22
November 2026, apart from those runs, and are not measured again with them.

- **p50 of 25 ms, p99 of 60 ms.** A timer waits half a slot of 50 ms on average, and a whole one at
  most; the transaction and the consumer's fetch take 13 ms. `precision_ms = 25` gives a p50 of
  27 ms. It is not the default: a transaction costs 9.6 ms of processor time in dequeue and 12.8 ms
  in Kafka whatever it holds, so 20 more a second take 0.45 of a core. Above the p99 a due timer
  waits for a processor, beside ingest's Python processes and its JVM; more processors change that.
- **A million at once within 1 s, catch-up of 10 times.** One transactional producer sends over one
  connection to a broker, and the broker answers one request after the other: it takes 2.2 to 2.6 us
  a row on that connection, dequeue 2.1 us beside it, on the other core. Chunks of 40,000 and 60,000
  rows gained nothing. Two shards have two connections, and need more than two cores. Compiled
  checksums and encoders would save 17 % of dequeue's part.
- **Others beside a million at once.** Slots leave in their order: who is due behind a million
  waits for it. `dequeue.hot_slot = "spread"` lets the others pass.
- **5,000/s beside an enqueue.** Load, Kafka, JVM and tasks take both cores; ingest yields to
  dequeue by its niceness, and Kafka to nobody.
- **First delivery within 1.5 s.** 0.4 s pass until `run` starts dequeue, which then needs 1.3 s
  beside the starting JVM: 0.8 s to import numpy, pyarrow and Kafka's client, the rest for the
  claim of the shard and its files. A fork of a process that has the imports would spare 0.3 s.
- **Everything in 800 MB.** Most of it is Spark's JVM with its heap of 512 MiB, and eight Python
  processes of Spark's that import pyspark, numpy and pyarrow.
  `spark_master = "local[1]"` has one of them less; delivery alone needs none.
- **Dequeue in 120 MB.** Libraries and connections take most of it before the first delivery. After
  a million there are the chunk that is sent and the next one that is encoded, of 20,000 rows each.
- **Idle at 3 % of a core.** The process that plans batches asks Kafka ten times a second for the
  ends of the logs, the JVM's compilers work on after a load, and dequeue closes 20 slots a second:
  about a third each. A longer `ingest.trigger_ms` or
  `timer.precision_ms` costs less, and timers come later into the wheel or out of it.
- **230 bytes of disk.** A pending timer of this load has a log record of 52 bytes, a prefix of 64,
  12 of its target, 119 of key and body, 49 of headers. Less needs another format of the prefix,
  which holds offset, due time and partition as whole words.

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


BESIDE_PENDING = """\
200,000 timers are enqueued beside so many pending ones, and 50,000 are delivered, 5,000 a second.
Processor time is that of a message, of all parts with their broker; memory is without Kafka's.
"""
BY_TARGET = """\
50,000 timers are delivered, 5,000 a second; then as many of one instant.
"""
ENGINE = """\
Engine and dequeue alone, without Kafka and Spark. Runs are neighbours in one slot and batch: the
shorter, the more scattered is what a slot needs. The files are in the page cache.
"""


def recorded() -> tuple[Measured, Measured]:
    """What docs/benchmarks.md shows, and what docs/timelines.md shows."""
    figures = read(RECORDED)
    timelines = [each for each in figures if each.workload.startswith(timeline_page.PREFIX)]
    others = [each for each in figures if not each.workload.startswith(timeline_page.PREFIX)]
    return Measured.of(others), Measured.of(timelines)


def page(measured: Measured) -> str:
    text = TEXT.format(
        machine=machine(measured),
        table=tables.table(measured),
        ours=OURS,
        timers=WARM_TIMERS,
        per_s=WARM_PER_S,
        seconds=WARM_S,
    )
    parts = [text, *(f"![{_title(plot)}]({name})\n" for name, plot in plots(measured).items())]
    for title, found in sections(measured):
        if found:
            parts += [f"## {title}\n", found, ""]
    return "\n".join(parts).rstrip() + "\n"


def sections(measured: Measured) -> Iterator[tuple[str, str]]:
    """The tables behind the plots: titles and text; empty of what was not measured."""
    if measured.figures:
        yield "Lateness of a steady stream", tables.latenesses(measured)
        pending = tables.by_size(measured, "pending: ", tables.BY_PENDING)
        yield "Beside pending timers", pending and f"{BESIDE_PENDING}\n{pending}"
        targets = tables.by_size(measured, "target partitions: ", tables.BY_PARTITIONS)
        yield "By target partitions", targets and f"{BY_TARGET}\n{targets}"
        yield "Single workloads", tables.single(measured)
        engine = tables.engine(measured)
        yield "Stages alone", engine and f"{ENGINE}\n{engine}"
        yield "Lost, repeated, early", tables.correctness(measured)
        yield "Processor time", tables.by_part(measured, "processor time of ")
        yield "Anonymous memory at most", tables.by_part(measured, "anonymous memory of ")


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
        f"- {sentences[run]}; it has: {'; '.join(workloads[run])}." for run in sorted(sentences)
    ]
    return "\n".join(lines) or "No run is recorded."


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
    PAGE.write_text(page(measured), "utf-8")
    for name, plot in plots(measured).items():
        PAGE.with_name(name).write_text(plot, "utf-8")
    timeline_page.write(TIMELINES, timelines, machine(timelines))
    for shown, text in shown_figures.pages(read(RECORDED)).items():
        shown.write_text(text, "utf-8")


if __name__ == "__main__":
    main()
