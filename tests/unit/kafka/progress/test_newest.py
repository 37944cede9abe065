"""Where the search for the newest record of a key reads, and where it ends."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from duewheel.checkpoints.held_copies import HELD_PREFIX
from duewheel.kafka.connect.clients import KafkaClients
from duewheel.kafka.log.reader import LogReader
from duewheel.kafka.log.records import Record
from duewheel.kafka.progress import newest
from duewheel.kafka.progress.newest import NewestRecord, find_newest, newest_by_key

PLACE = ("state", 0)
Ranges = Mapping[tuple[str, int], tuple[int, int]]


@pytest.fixture(autouse=True)
def short_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(newest, "SEARCH_STEPS", (2, 4))


class FakeLog(LogReader):
    """A partition with these keys, one at each offset, whose values are their offsets."""

    def __init__(self, *keys: bytes | None) -> None:
        super().__init__(KafkaClients({}))
        self._records = [Record(*PLACE, n, 100 + n, k, b"%d" % n, []) for n, k in enumerate(keys)]
        self.reads: list[tuple[int, int]] = []

    def records(self, ranges: Ranges, *_: Any) -> Iterator[tuple[list[Record], Any]]:
        ((first, end),) = ranges.values()
        self.reads.append((first, end))
        yield self._records[first:end], {}


def found(log: FakeLog, key: bytes, end: int, start: int = 0) -> dict[bytes, NewestRecord]:
    return find_newest(log, PLACE, key, (start, end))


def test_most_searches_read_the_end_alone() -> None:
    log = FakeLog(b"a", b"a", b"b", b"a", b"b", b"a")
    assert found(log, b"a", 6) == {b"a": NewestRecord(b"5", 105), b"b": NewestRecord(b"4", 104)}
    assert log.reads == [(4, 6)]


def test_an_old_record_is_found_further_back_and_no_offset_is_read_twice() -> None:
    log = FakeLog(b"a", b"c", b"b", b"b", b"b", b"c")
    keys = {b"a": 0, b"b": 4, b"c": 5}
    assert found(log, b"a", 6) == {k: NewestRecord(b"%d" % n, 100 + n) for k, n in keys.items()}
    assert log.reads == [(4, 6), (2, 4), (0, 2)]


def test_no_search_begins_below_the_logs_start_or_reads_beyond_the_end() -> None:
    log = FakeLog(b"a", b"b", b"b", b"a")
    assert found(log, b"a", end=3, start=1) == {}
    assert log.reads == [(1, 3)]


def test_held_copies_and_records_without_key_are_no_state() -> None:
    log = FakeLog(None, HELD_PREFIX + b"1", b"a")
    assert newest_by_key(log, {PLACE: (0, 3)}) == {b"a": NewestRecord(b"2", 102)}


def test_a_deleted_key_is_found_with_no_value() -> None:
    """A search that went on would find what the key had before."""

    class Deleted(FakeLog):
        def records(self, ranges: Ranges, *_: Any) -> Iterator[tuple[list[Record], Any]]:
            for records, ends in super().records(ranges):
                yield [each._replace(value=None) for each in records], ends

    assert found(Deleted(b"a", b"a"), b"a", 2) == {b"a": NewestRecord(b"", 101)}
