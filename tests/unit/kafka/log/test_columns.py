"""Committed records of fetched batches, within their range; against what was written."""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.harness.record_batches import (
    NOW_MS,
    Log,
    Record,
    Rows,
    batch,
    logs,
    plain,
    rows_of,
    sealed,
)

from duewheel.errors import DuewheelError
from duewheel.kafka.log import columns
from duewheel.kafka.log.columns import CutBatches, committed_records, records_one_by_one
from duewheel.kafka.log.leader_requests import Fetched
from duewheel.schemas.batches import OffsetRanges
from duewheel.schemas.wire.batch_header import HEADER_BYTES
from duewheel.schemas.wire.record_reader import read_batches

PARTITION = ("timers", 0)


def rows(part: Sequence[Fetched], ranges: OffsetRanges) -> Rows:
    return [row for records in committed_records(part, ranges) for row in rows_of(records)]


@given(logs(), st.data())
def test_a_range_read_in_parts_is_what_was_committed(log: Log, data: Any) -> None:
    first = data.draw(st.integers(0, log.end - 1))
    until = data.draw(st.integers(first + 1, log.end))
    at, found = first, Rows()
    while at < until:
        batches, cut = data.draw(st.integers(1, 5)), data.draw(st.booleans())
        part = log.fetch(at, batches, cut=cut, name=PARTITION)
        found += rows([part], {PARTITION: (first, until)})
        at = part.end
    wanted = sorted((o, r) for o, r in log.committed.items() if first <= o < until)
    assert found == [(PARTITION, offset, record) for offset, record in wanted]


@given(st.lists(logs(), min_size=2, max_size=3))
def test_partitions_are_told_apart(several: list[Log]) -> None:
    named = {("timers", number): log for number, log in enumerate(several)}
    part = [log.fetch(0, len(log.batches), cut=False, name=name) for name, log in named.items()]
    found = rows(part, {name: (0, log.end) for name, log in named.items()})
    assert found == [
        (name, *each) for name, log in named.items() for each in sorted(log.committed.items())
    ]


def test_what_a_batch_holds_outside_its_range_stays_out() -> None:
    log = Log()
    log.write([plain(n) for n in range(6)])
    found = rows([log.fetch(2, 1, cut=False, name=PARTITION)], {PARTITION: (2, 5)})
    assert [offset for _, offset, _ in found] == [2, 3, 4]


def test_records_below_the_logs_start_stay_out() -> None:
    """The range began before; retention has moved the start into a batch."""
    log = Log()
    log.write([plain(n) for n in range(6)])
    found = rows([log.fetch(4, 1, cut=False, name=PARTITION)], {PARTITION: (1, 6)})
    assert [offset for _, offset, _ in found] == [4, 5]


@pytest.mark.parametrize("beside", [0, 1])
def test_a_batch_without_records_is_read(beside: int) -> None:
    """Compaction leaves such batches."""
    log = Log()
    for number in range(beside):
        log.write([plain(number)])
    octets = bytearray(batch([plain(0)], log.end)[:HEADER_BYTES])
    struct.pack_into(">i", octets, 8, HEADER_BYTES - 12)
    struct.pack_into(">i", octets, HEADER_BYTES - 4, 0)
    log.batches.append((log.end + 1, bytes(sealed(octets))))
    found = rows([log.fetch(0, 2, cut=False, name=PARTITION)], {PARTITION: (0, 9)})
    assert [offset for _, offset, _ in found] == list(range(beside))


def test_a_part_that_is_well_compressed_comes_in_groups() -> None:
    """One that has 8 MB and holds 800 MB would not fit the memory, however few rows are wanted."""
    log = Log()
    for number in range(6):
        log.write([(NOW_MS, b"%d" % number, bytes(100_000), [])], codec=1)
    part = [log.fetch(0, 6, cut=False, name=PARTITION)]
    assert sum(len(each.octets) for each in part) < 3_000
    found = committed_records(part, {PARTITION: (0, 5)}, group_bytes_max=150_000)
    groups = [group.offset.tolist() for group in found]
    assert groups == [[0, 1], [2, 3], [4]]


def test_nothing_behind_the_range_is_read() -> None:
    log = Log()
    for number in range(3):
        log.write([plain(number)])
    damaged = bytearray(log.batches[2][1])
    damaged[-1] ^= 1
    log.batches[2] = (3, bytes(damaged))
    found = rows([log.fetch(0, 3, cut=False, name=PARTITION)], {PARTITION: (0, 2)})
    assert [offset for _, offset, _ in found] == [0, 1]


def test_damage_names_the_partition() -> None:
    log = Log()
    log.write([plain(0)])
    damaged = bytearray(log.batches[0][1])
    damaged[-1] ^= 1
    part = Fetched(PARTITION, memoryview(damaged), (), 0, 1)
    with pytest.raises(DuewheelError, match="timers-0: wrong checksum") as damage:
        rows([part], {PARTITION: (0, 1)})
    general, _, of_ingest = str(damage.value).partition("Of a timer topic")
    assert "ngest" not in general, "any topic may have it, and any command may read it"
    assert "`duewheel reconfigure --skip timers-0@" in of_ingest


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Counts the groups of batches that are decoded, under `batches`."""
    read = Counter[str]()

    def counted(*args: Any) -> Any:
        read["batches"] += 1
        return read_batches(*args)

    monkeypatch.setattr(columns, "read_batches", counted)
    return read


@pytest.mark.parametrize("codec", [0, 4])
def test_a_batch_that_many_ranges_cut_is_read_once(codec: int, read: Counter[str]) -> None:
    """As a quota of ten records a batch cuts it."""
    count = 3_000
    octets = memoryview(batch([plain(number) for number in range(count)], codec=codec))
    cut, found = CutBatches(), []
    for begin in range(0, count, 10):
        part = [Fetched(PARTITION, octets, [], begin, count)]
        ranges = {PARTITION: (begin, begin + 10)}
        for records in committed_records(part, ranges, cut=cut):
            found += [(row[0], row[3]) for row in records_one_by_one(records)]
    assert found == [(number, b"%d" % number) for number in range(count)]
    assert read == {"batches": 1}
    assert not cut.plain_of(PARTITION), "after the last of its ranges it is not kept"


def test_a_batch_of_few_records_with_many_headers_is_read_once_too(read: Counter[str]) -> None:
    """999 records of 2 kB: thousands of headers take as long as so many records."""
    record: Record = (NOW_MS, None, None, [("", None)] * 1_000)
    octets = memoryview(batch([record] * 999, codec=1))
    cut = CutBatches()
    for begin in range(0, 999, 333):
        part = [Fetched(PARTITION, octets, [], begin, 999)]
        list(committed_records(part, {PARTITION: (begin, begin + 333)}, cut=cut))
    assert read == {"batches": 1}


@pytest.mark.parametrize(
    ("headers", "bound", "most"),
    [(0, "_KEPT_BYTES_MAX", 3_100_000), (30, "_KEPT_RECORDS_MAX", 100_000)],
)
def test_batches_that_ranges_cut_are_kept_up_to_a_size(
    headers: int, bound: str, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise one topic with many partitions could have each task keep gigabytes."""
    count, places = 1_000, [("timers", number) for number in range(9)]
    records: list[Record] = [(NOW_MS, None, bytes(1_000), [("h", None)] * headers)] * count
    octets = memoryview(batch(records, codec=1))
    monkeypatch.setattr(columns, bound, most)
    cut = CutBatches()
    for place in places:
        part = [Fetched(place, octets, [], 0, count)]
        assert len(list(committed_records(part, {place: (0, 10)}, cut=cut))) == 1
    kept = [place for place in places if cut.plain_of(place)]
    assert kept == places[-3:], "the newest"
    monkeypatch.setattr(columns, "_KEPT_BYTES_MAX", 0)
    list(
        committed_records([Fetched(places[0], octets, [], 0, count)], {places[0]: (0, 10)}, cut=cut)
    )
    assert [place for place in places if cut.plain_of(place)] == [places[0]]
