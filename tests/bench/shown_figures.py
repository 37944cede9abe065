"""The figures of README.md and docs/performance.md, from the recorded runs.

Of each workload the newest run counts, and no value is its best round: all are medians of its
rounds. The text between the marks is replaced; the rest is by hand.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.bench.measured import FINEST, OUR_PARTS, OURS, PEER, PEER_PARTS, Measured, number, summed

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
PERFORMANCE = ROOT / "docs" / "performance.md"
SOAKS = ROOT / "docs" / "soak.jsonl"

STEADY, SLOW, ENQUEUE = "steady, 5,000/s", "steady, 1,000/s", "enqueue"
FAST, BESIDE = "steady, 20,000/s", "beside an enqueue, 5,000/s"
CPU, MEMORY = "processor time of {}", "anonymous memory of {}"
ARRIVED, OVERDUE = "due to last received", "overdue"
DISK = ("disk per timer, local", "disk per timer, Kafka")
# Label, workload and metrics; a metric with {} is summed over the parts, and Kafka's.
Rows = Sequence[tuple[str, str, Sequence[str]]]
Columns = Sequence[tuple[str, str, str, Sequence[str]]]
ROWS: Rows = (
    ("lateness at 5,000 per second, p50, ms", STEADY, ("lateness p50",)),
    ("… p99, ms", STEADY, ("lateness p99",)),
    ("processor time of a message at 5,000 per second, us", STEADY, (CPU,)),
    ("… at 1,000 per second, us", SLOW, (CPU,)),
    ("… of an idle system, % of a core", "idle", (CPU,)),
    ("enqueue rate, per second", ENQUEUE, ("rate",)),
    ("100,000 due in one instant: lateness of the last, s", "spike of 100,000", (ARRIVED,)),
    ("catch-up rate after a stop, per second", OVERDUE, ("catch-up rate",)),
    ("start to the first delivery, s", OVERDUE, ("start to first delivery",)),
    ("memory without page cache during an enqueue, MB", ENQUEUE, (MEMORY,)),
    ("disk per pending timer, bytes", ENQUEUE, DISK),
)
# The same of loads that duewheel alone had.
MORE_ROWS: Rows = (
    ("lateness at 20,000 per second, p50, ms", FAST, ("lateness p50",)),
    ("… p99, ms", FAST, ("lateness p99",)),
    ("… at 5,000 beside an enqueue, p99, ms", BESIDE, ("lateness p99",)),
    ("1,000,000 due in one instant: lateness of the last, s", "spike of 1,000,000", (ARRIVED,)),
)
# Heading, name, variant and parts of a column.
COLUMNS: Columns = (
    (OURS, OURS, "", (*OUR_PARTS, "Kafka")),
    (f"{PEER}, slots of 1 s", PEER, "", PEER_PARTS),
    (f"{PEER}, slots of 100 ms", PEER, FINEST, PEER_PARTS),
)


def measured(figures: Measured) -> str:
    """The tables: beside the peer, and of other loads."""
    return f"{_table(figures, ROWS, COLUMNS)}\n\n{_table(figures, MORE_ROWS, COLUMNS[:1])}"


def _table(figures: Measured, rows: Rows, columns: Columns) -> str:
    headings = [heading for heading, *_ in columns]
    lines = [f"| | {' | '.join(headings)} |", f"| --- |{' --- |' * len(headings)}"]
    for label, workload, metrics in rows:
        cells = []
        for _, name, variant, parts in columns:
            found = figures.of_system(workload, name, variant)
            sums = [summed(found, metric, parts) for metric in metrics]
            values = [value for value in sums if value is not None]
            cells.append(number(sum(values)) if values else "–")
        lines.append(f"| {label} | {' | '.join(cells)} |")
    return "\n".join([*lines, "", _caption(figures, rows)])


def _caption(figures: Measured, rows: Rows) -> str:
    """How often, when, where and with which code the figures of a table were measured."""
    used = [
        figure for _, workload, _ in rows for figure in figures.of_system(workload, OURS).values()
    ]
    if not used:
        return "Not measured."
    c = used[0].config
    rounds = sorted({len(figure.runs) for figure in used})
    runs = {(figure.config["commit"], figure.config["run"][:10]) for figure in used}
    made = "; ".join(f"commit `{commit}` on {day}" for commit, day in sorted(runs))
    times = " or ".join(map(str, rounds))
    return f"Medians of {times} rounds, {c['cores']} cores, {c['memory_gib']} GiB: {made}."


def costs(figures: Measured) -> str:
    """The list of what duewheel costs.

    Raises:
        ValueError: no run has one of the figures.
    """

    def ours(workload: str, metric: str, *parts: str) -> str:
        value = summed(figures.of_system(workload, OURS), metric, parts or ("",))
        if value is None:
            raise ValueError(f"no run has {metric} of {workload}")
        return number(value)

    late = ours(STEADY, "lateness p50"), ours(STEADY, "lateness p99")
    cpu, slow = (ours(each, CPU, *OUR_PARTS, "Kafka") for each in (STEADY, SLOW))
    idle = ours("idle", CPU, *OUR_PARTS)
    memory = ours(ENQUEUE, MEMORY, *OUR_PARTS), ours(ENQUEUE, MEMORY, "Kafka")
    disk = [ours(ENQUEUE, metric) for metric in DISK]
    costs_of_one = f"Processor time of a timer then: {cpu} us; at 1,000 a second {slow} us"
    lines = (
        f"Lateness at 5,000 timers a second: p50 {late[0]} ms, p99 {late[1]} ms.",
        f"{costs_of_one}, with Kafka's part.",
        f"An idle shard takes {idle} % of a core, without Kafka's part.",
        f"Memory at full speed: {memory[0]} MB, and Kafka's {memory[1]} MB.",
        f"Disk for a pending message of 100 bytes: {disk[0]} bytes, and {disk[1]} in Kafka.",
    )
    return "\n".join(f"- {line}" for line in lines)


def soak(records: Sequence[Mapping[str, Any]]) -> str:
    """The sentence about the newest recorded soak."""
    if not records:
        return "No soak of this code is recorded yet: `make soak ROUNDS=100 RECORD=1`."
    last = records[-1]
    faults = {name: last[name] for name in ("lost", "doubled", "early", "altered")}
    found = ", ".join(f"{count} {name}" for name, count in faults.items())
    return (
        f"`make soak` of {last['rounds']} rounds of `kill -9` under load on {last['date']}, commit "
        f"`{last['commit']}`, {last['cores']} cores: {last['delivered']:,} timers, {found}."
    )


def soaks(path: Path = SOAKS) -> list[dict[str, Any]]:
    """The recorded runs, oldest first."""
    return (
        [json.loads(line) for line in path.read_text("utf-8").splitlines()] if path.exists() else []
    )


def replaced(text: str, name: str, made: str) -> str:
    """A page with a section replaced.

    Raises:
        ValueError: it has no such section.
    """
    marks = f"<!-- {name}: make bench-report -->\n", f"<!-- end of {name} -->\n"
    before, mark, rest = text.partition(marks[0])
    _, end, after = rest.partition(marks[1])
    if not mark or not end:
        raise ValueError(f"the page has no section {name}")
    return f"{before}{mark}{made}\n{end}{after}"


def pages(figures: Measured) -> dict[Path, str]:
    """The text of each page with such sections."""
    text = replaced(README.read_text("utf-8"), "costs", costs(figures))
    performance = replaced(PERFORMANCE.read_text("utf-8"), "measured", measured(figures))
    return {README: replaced(text, "soak", soak(soaks())), PERFORMANCE: performance}
