"""Records one by one are those that the columns have; odd bytes raise one kind of error."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Sequence
from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.harness.raw_produce import NAME
from tests.harness.record_batches import NOW_MS, RECORDS, Log, Record, batch, logs, plain, sealed

from duewheel.errors import ConfigError
from duewheel.kafka.log.columns import committed_records, records_one_by_one
from duewheel.kafka.log.leader_requests import Fetched
from duewheel.kafka.log.records import records_of
from duewheel.schemas.wire.batch_header import HEADER_BYTES
from duewheel.schemas.wire.batch_reader import CorruptBatch
from duewheel.schemas.wire.record_rows import rows_of
from duewheel.schemas.wire.single_record import encode

PLACE = ("timers", 0)


@given(logs(), st.integers(0, 40), st.integers(0, 40))
def test_rows_are_those_of_the_columns(log: Log, begin: int, length: int) -> None:
    """Committed ones, of batches of all codecs, within their range."""
    begin = min(begin, log.end - 1)
    until = begin + length
    fetched = log.fetch(begin, len(log.batches), cut=False, name=PLACE)
    columns = committed_records([fetched], {PLACE: (begin, until)})
    rows = chain.from_iterable(map(records_one_by_one, columns))
    expected = [(*row[:-1], list(row[-1])) for row in rows]
    assert [record[2:] for record in records_of(fetched, until)] == expected
    assert [record.offset for record in records_of(fetched)] == sorted(
        offset for offset in log.committed if offset >= begin
    )


@given(RECORDS, st.data())
def test_damaged_records_raise_one_kind_of_error(
    records: Sequence[Record], data: st.DataObject
) -> None:
    body = bytearray(batch(records)[HEADER_BYTES:])
    for at in data.draw(st.lists(st.integers(0, len(body) - 1), max_size=4)):
        body[at] = data.draw(st.integers(0, 255))
    cut = body[: data.draw(st.integers(0, len(body)))]
    for damaged in (body, cut):
        with contextlib.suppress(CorruptBatch):
            offsets = [row[0] for row in rows_of(memoryview(damaged), len(records))]
            assert offsets == sorted(set(offsets)), "they rise"


def test_any_header_name_comes_back_as_it_was() -> None:
    headers = [(NAME, None), ("größe", b"\xff"), ("", b"")]
    [(_, _, key, value, found)] = rows_of(memoryview(encode(0, None, b"", headers)), 1)
    assert (key, value, found) == (None, b"", headers)


@pytest.mark.parametrize("length", [b"\x80\x80\x80\x80\x70", b"\xff\xff\xff\xff\x7f"])
def test_bits_above_a_number_do_not_count(length: bytes) -> None:
    """Java reads 32 bits: the key's length here is 0, or -1. A reader that took all of them would
    refuse what Kafka's own clients read, and the broker takes.
    """
    tail = b"\0\0\0" + length + b"\x01\0"
    [row] = rows_of(memoryview(bytes([2 * len(tail)]) + tail), 1)
    assert row[2:] == (b"" if length[0] == 0x80 else None, None, [])


def fetched_of(*octets: bytes) -> Fetched:
    joined = b"".join(octets)
    return Fetched(PLACE, memoryview(joined), (), 0, 100)


def test_one_producers_batch_is_left_out_and_the_others_are_read(
    caplog: pytest.LogCaptureFixture,
) -> None:
    torn = bytearray(batch([plain(1)], 1))
    torn[HEADER_BYTES] = 126  # the record would end far behind the batch
    bomb = bytearray(batch([plain(2)], 2))
    bomb[22] = 4  # no zstd
    good = bytes(batch([plain(0)], 0)), bytes(batch([plain(3)], 3))
    found = records_of(fetched_of(good[0], bytes(sealed(torn)), bytes(sealed(bomb)), good[1]))
    with caplog.at_level(logging.WARNING):
        assert [record.offset for record in found] == [0, 3]
    [line] = caplog.messages
    assert line.startswith("timers-0@1-2: 2 record batches left out, the first: ")
    caplog.clear()
    assert list(records_of(fetched_of(bytes(sealed(torn))))) == []
    assert caplog.messages[0].startswith("timers-0@1-1 left out: "), "one line for each answer"


def test_a_missing_library_is_told_and_skips_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client has none of its own: a compressed reply that it left out would never come."""
    octets = bytes(batch([(NOW_MS, None, bytes(1_000), [])], 0, codec=3))
    assert [record.value for record in records_of(fetched_of(octets))] == [bytes(1_000)]
    monkeypatch.setattr("kafka.codec.lz4", None)
    with pytest.raises(ConfigError, match="pip install lz4"):
        list(records_of(fetched_of(octets)))
