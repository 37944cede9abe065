"""How far a task reads its ranges, by the bytes in them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.harness.record_batches import NOW_MS, Log, Rows, logs, plain, rows_of
from tests.harness.timer_rows import TimerRow, timer_batch

from duewheel.kafka.log.columns import committed_records
from duewheel.kafka.log.leader_requests import Fetched
from duewheel.schemas.batches import OffsetRanges, TopicPartition
from duewheel.schemas.columns import binary
from duewheel.schemas.wire.single_record import header
from duewheel.streaming.byte_budget import CANCEL_BYTES, MESSAGE_BYTES, ByteBudget

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
    for of_round in budget.rounds():
        for part in fetches(logs, of_round, batches):
            for records in committed_records(part, of_round, took=budget.took):
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


def large(count: int) -> Log:
    """Each record is a batch of a bit more than 1,000 bytes."""
    log = Log()
    for _ in range(count):
        log.write([(NOW_MS, b"k", bytes(1_000), [])])
    return log


def small(count: int) -> Log:
    log = Log()
    for _ in range(count):
        log.write([plain(1)])
    return log


def test_large_records_of_a_topic_end_no_other_topic() -> None:
    rows, early = read(
        {A0: large(10), A1: large(10), B0: small(10)},
        {A0: (0, 10), A1: (0, 10), B0: (0, 10)},
        5_000,
    )
    assert early.keys() == {A0, A1}
    assert sum(p == B0 for p, _, _ in rows) == 10
    assert 4 <= sum(early.values()) <= 6, "what the other topic leaves is used"


def test_a_partition_with_a_backlog_ends_no_other_partition() -> None:
    """Though a broker fills each answer with the first partition that it is asked for."""
    for number in range(1, 21):  # the order follows from the ranges
        quiet = ("a", number)
        budget, found = ByteBudget({A0: (0, 100), quiet: (0, 3)}, 10_000), Rows()
        of = {A0: large(100), quiet: small(3)}
        for of_round in budget.rounds():
            at = {p: first for p, (first, _) in of_round.items()}
            while waiting := [p for p, (_, until) in of_round.items() if at[p] < until]:
                part = [of[waiting[0]].fetch(at[waiting[0]], 8, cut=False, name=waiting[0])]
                at[waiting[0]] = part[0].end
                for records in committed_records(part, of_round, took=budget.took):
                    found += rows_of(records)
        assert budget.early_ends.keys() == {A0}
        assert sum(p == quiet for p, _, _ in found) == 3


def test_batches_that_decompress_too_far_count_with_what_that_takes() -> None:
    """Hundreds of bytes each, and milliseconds: a batch of offsets has 300,000 of them."""
    log = Log()
    for _ in range(20):
        log.write([(NOW_MS, None, bytes(17 << 20), [])], codec=4)
    _, early = read({A0: log, B0: small(10)}, {A0: (0, 20), B0: (0, 10)}, 64 << 20)
    assert early.keys() == {A0}
    assert early[A0] <= 6


def test_aborted_batches_count_with_their_bytes() -> None:
    """A megabyte for each offset: a batch of ingest would read gigabytes."""
    log = Log()
    for _ in range(20):
        log.write([(NOW_MS, None, bytes(1_000), [])], producer=1)
        log.finish(1, commit=False)
    _, early = read({A0: log, B0: small(10)}, {A0: (0, 40), B0: (0, 10)}, 6_000)
    assert early.keys() == {A0}
    assert early[A0] <= 16


def test_all_bytes_are_used_where_one_topic_has_a_backlog() -> None:
    empty = {("c", number): small(1) for number in range(20)}
    of = {A0: large(50), **empty}
    _, early = read(of, {p: (0, log.end) for p, log in of.items()}, 40_000, batches=50)
    assert early.keys() == {A0}
    assert early[A0] >= 35


def test_offsets_without_committed_records_are_passed_for_good() -> None:
    """A later task does not read an aborted transaction again."""
    log = Log()
    for producer in range(5):
        log.write([plain(1)], producer=producer)
        log.finish(producer, commit=False)
    of = {A0: log, A1: large(50)}
    ranges = {p: (0, each.end) for p, each in of.items()}
    for _ in range(20):  # the order is another one for other offsets
        _, early = read(of, ranges, 1, batches=4)
        ranges = {p: (end, of[p].end) for p, end in early.items()}
    assert A0 not in ranges
    assert A1 in ranges, "its bytes alone would have ended the other partition's reading"


def test_a_task_that_has_had_its_bytes_fetches_no_more() -> None:
    budget = ByteBudget({A0: (0, 10)}, 1)
    parts = []
    for of_round in budget.rounds():
        for part in fetches({A0: small(10)}, of_round, 2):
            parts.append(part)
            list(committed_records(part, of_round, took=budget.took))
    assert len(parts) == 1
    assert budget.early_ends == {A0: 1}


def test_a_range_that_retention_has_deleted_is_read_in_one_round() -> None:
    """Its offsets are passed without a record batch: the same round would come for ever."""
    budget = ByteBudget({A0: (0, 100)}, 1 << 20)
    assert len(list(islice(budget.rounds(), 5))) == 1
    assert not budget.early_ends


def test_cancels_use_up_the_bytes_of_their_topic() -> None:
    """Others' records come in the same batch, though they are many more bytes."""
    budget, found = ByteBudget({A0: (0, 40), B0: (0, 10)}, 20 * CANCEL_BYTES), list[str]()
    of = {A0: small(40), B0: large(10)}
    for of_round in budget.rounds():
        for part in fetches(of, of_round, 5):
            for records in committed_records(part, of_round, took=budget.took):
                names = [A0, B0]
                rows = [(names.index(p), offset) for p, offset, _ in rows_of(records)]
                cancels = timer_batch(
                    [TimerRow(*at, 0, timer_id=b"a", request="cancel") for at in rows if not at[0]]
                )
                budget.parsed(replace(cancels, partitions=names))
                found += [names[number][0] for number, _ in rows]
    assert found.count("b") == 10
    assert 10 <= found.count("a") <= 20
    assert budget.early_ends == {A0: found.count("a")}


def test_the_end_of_a_topics_part_is_found_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """At each count it would walk all partitions again: 4 cancels in each of 10,000 took 61 s."""
    ended = list[TopicPartition]()
    end_round_of = vars(ByteBudget)["_end_round_of"]

    def counted(budget: ByteBudget, partition: TopicPartition) -> None:
        ended.append(partition)
        end_round_of(budget, partition)

    monkeypatch.setattr(ByteBudget, "_end_round_of", counted)
    ranges = {("a", number): (0, 10) for number in range(1_000)}
    budget = ByteBudget(ranges, 5_000)
    next(budget.rounds())
    for partition in ranges:
        budget.took(partition, 10, 1)
    assert len(ended) == len(set(ended)) + 499
    assert budget.early_ends == dict.fromkeys(ranges, 1)


def test_large_messages_count_as_several() -> None:
    """Decompressed; however often the ranges of a quota cut their batch, they count once."""
    log, added, at = Log(), 0, 0
    log.write([(NOW_MS, None, bytes(5 * MESSAGE_BYTES), [])] * 8, codec=1)
    while at < log.end:
        added, at = added + added_of(log, at, at + 2).get("a", 0), at + 2
    assert 8 * 4 <= added <= 8 * 4 + 4, "each range begins a message"
    assert added_of(log, 0, log.end)["a"] == 8 * 4 + 1
    assert added_of(small(10), 0, 10) == {}


def test_many_small_headers_count_as_bytes() -> None:
    """They take a task as long: what a quota takes in a second would last more than one."""
    budget = ByteBudget({A0: (0, 2)}, 1 << 20)
    next(budget.rounds())
    budget.took(A0, 16_000, 2, 16_000)
    plain = timer_batch([TimerRow(0, 0, 0), TimerRow(0, 1, 0)])
    headers = binary([b"\0\1" * 8_000, header("name", b"of ordinary length")])
    budget.parsed(
        replace(
            *(plain,),
            partitions=[A0],
            headers=headers,
            header_count=np.array([8_000, 1], np.int32),
        )
    )
    assert budget.added_messages == {"a": -(-(16_000 + 14 * 8_000) // MESSAGE_BYTES) - 2}


def added_of(log: Log, first: int, end: int) -> dict[str, int]:
    budget = ByteBudget({A0: (first, end)}, 1 << 30)
    for of_round in budget.rounds():
        for part in fetches({A0: log}, of_round, 2):
            list(committed_records(part, of_round, took=budget.took))
    return budget.added_messages
