"""How far a task reads its ranges, by the bytes in them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from tests.harness.record_batches import NOW_MS, Log, Rows, logs, plain, rows_of

from duewheel.kafka.log.columns import committed_records
from duewheel.kafka.log.leader_requests import Fetched
from duewheel.schemas.batches import OffsetRanges, TopicPartition
from duewheel.streaming.byte_budget import ByteBudget

A0, A1, B0 = ("a", 0), ("a", 1), ("b", 0)
Logs = dict[TopicPartition, Log]


def fetches(logs: Logs, ranges: OffsetRanges, batches: int) -> Iterator[list[Fetched]]:
    """As LogReader.read: a round of answers after another, until the ranges are read."""
    at = {p: first for p, (first, _) in ranges.items()}
    while waiting := [p for p, (_, until) in ranges.items() if at[p] < until]:
        part = [logs[p].fetch(at[p], batches, cut=False, name=p) for p in waiting]
        at |= {each.partition: each.end for each in part}
        yield part


def read(logs: Logs, ranges: OffsetRanges, bytes_max: int, batches: int = 2) -> tuple[Rows, Any]:
    """What a task reads, and where it ends early."""
    budget, found = ByteBudget(ranges, bytes_max), Rows()
    for part in fetches(logs, budget.ranges, batches):
        for records in committed_records(part, budget.ranges, took=budget.took):
            found += rows_of(records)
    return found, budget.early_ends


@given(logs(), logs(), logs(), st.integers(0, 3_000), st.integers(1, 4))
def test_what_is_left_out_is_read_by_the_next_tasks(
    one: Log, two: Log, three: Log, bytes_max: int, batches: int
) -> None:
    """Everything once and in order, however little a task may read."""
    of = {A0: one, A1: two, B0: three}
    ranges = {p: (0, log.end) for p, log in of.items()}
    found, tasks = Rows(), 0
    while ranges:
        rows, early = read(of, ranges, bytes_max, batches)
        assert early.keys() <= ranges.keys()
        assert all(ranges[p][0] <= end < ranges[p][1] for p, end in early.items())
        assert sum(early.values()) > sum(ranges[p][0] for p in early) or len(early) < len(ranges)
        found += rows
        ranges = {p: (end, of[p].end) for p, end in early.items()}
        tasks += 1
    for partition, log in of.items():
        mine = [(offset, record) for p, offset, record in found if p == partition]
        assert mine == sorted(log.committed.items())


def test_large_records_of_a_topic_end_no_other_topic() -> None:
    small, large = Log(), Log()
    for _ in range(10):
        small.write([plain(1)])
        large.write([(NOW_MS, b"k", bytes(1_000), [])])
    rows, early = read(
        {A0: large, A1: large, B0: small}, {A0: (0, 10), A1: (0, 10), B0: (0, 10)}, 5_000
    )
    assert early == {A0: 2, A1: 1}
    assert sum(p == B0 for p, _, _ in rows) == 10


def test_a_task_that_has_had_its_bytes_fetches_no_more() -> None:
    log = Log()
    for _ in range(10):
        log.write([plain(1)])
    budget = ByteBudget({A0: (0, 10)}, 1)
    parts = []
    for part in fetches({A0: log}, budget.ranges, 2):
        parts.append(part)
        list(committed_records(part, budget.ranges, took=budget.took))
    assert len(parts) == 1
    assert budget.early_ends == {A0: 1}
