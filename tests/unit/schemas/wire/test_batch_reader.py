"""Raw batches read as columns, against batches that kafka-python has built."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.record.default_records import DefaultRecordBatchBuilder
from kafka.record.legacy_records import LegacyRecordBatchBuilder
from tests.harness.record_batches import (
    ABORT,
    COMMIT,
    NOW_MS,
    RECORDS,
    Record,
    batch,
    marker,
    plain,
    rows_of,
    sealed,
)

from duewheel.kafka.compression import decompressed
from duewheel.schemas.wire.batch_reader import (
    RECORDS_MAX,
    CorruptBatch,
    committed_batches,
    end_offset,
)
from duewheel.schemas.wire.kafka_records import KafkaRecords
from duewheel.schemas.wire.record_batch import HEADER_BYTES
from duewheel.schemas.wire.record_reader import read_batches

PARTITION = ("timers", 0)


def read_all(octets: bytes | bytearray | memoryview, *aborted: tuple[int, int]) -> KafkaRecords:
    batches = committed_batches(memoryview(octets), aborted, decompressed)
    return read_batches(list(batches), [PARTITION])


def rows(records: KafkaRecords) -> list[tuple[int, Record]]:
    return [(offset, record) for _, offset, record in rows_of(records)]


@given(st.lists(RECORDS, min_size=1, max_size=4), st.sampled_from([0, 1, 2, 3, 4]))
def test_records_are_those_that_were_built(batches: list[list[Record]], codec: int) -> None:
    octets = bytearray()
    wanted: list[tuple[int, Record]] = []
    for records in batches:
        octets += batch(records, len(wanted), codec=codec)
        wanted += [(len(wanted) + i, record) for i, record in enumerate(records)]
    assert rows(read_all(octets)) == wanted
    assert end_offset(memoryview(octets)) == len(wanted)


@pytest.mark.parametrize("batches", [1, 47, 48, 200])
def test_few_and_many_batches(batches: int) -> None:
    sizes = [1 + number * 7 % 11 for number in range(batches)]
    octets = bytearray()
    wanted: list[tuple[int, Record]] = []
    for size in sizes:
        records: list[Record] = [
            (NOW_MS, b"k" * (i * 37 % 9000), None, [("n", b"v")]) for i in range(size)
        ]
        octets += batch(records, len(wanted))
        wanted += [(len(wanted) + i, record) for i, record in enumerate(records)]
    assert rows(read_all(octets)) == wanted


def test_stored_forms_stand_in_the_record() -> None:
    raw = read_all(batch([(NOW_MS, b"k", None, [("name", b"v"), ("n", None)])]))
    assert raw.key_value.column().to_pylist() == [b"\2k\1"]
    assert raw.headers.both.column().to_pylist() == [b"\x08name\2v", b"\2n\1"]


def test_a_batch_that_is_cut_off_is_left() -> None:
    first, second = batch([plain(0), plain(1)]), batch([plain(2)], 2)
    for size in range(len(first), len(first) + len(second)):
        octets = memoryview(bytes(first + second))[:size]
        assert rows(read_all(octets)) == [
            (0, plain(0)),
            (1, plain(1)),
        ]
        assert end_offset(octets) == 2
    assert end_offset(memoryview(bytes(first))[: HEADER_BYTES - 1]) == -1


def test_aborted_transactions_and_markers_are_left_out() -> None:
    octets = bytearray()
    for number, producer in enumerate([7, 8, 7, 9]):
        octets += batch([plain(number)], number, producer=producer, transactional=True)
    octets += marker(4, 7, ABORT) + marker(5, 8, COMMIT)
    octets += batch([plain(6)], 6, producer=7, transactional=True) + marker(7, 7, COMMIT)
    octets += batch([plain(8)], 8)
    # 7 has aborted what it began at 0, and committed what it began at 6; 9 at 3 has aborted later.
    found = rows(read_all(octets, (9, 3), (7, 0)))
    assert found == [(1, plain(1)), (6, plain(6)), (8, plain(8))]
    assert end_offset(memoryview(octets)) == 9


def test_nothing_but_markers() -> None:
    assert not list(committed_batches(memoryview(marker(0, 7, ABORT)), [(7, 0)], decompressed))


def test_the_brokers_time_wins_if_it_gives_one() -> None:
    octets = batch([plain(0), (NOW_MS + 5, None, None, [])])
    struct.pack_into(">q", octets, 35, NOW_MS + 77)
    struct.pack_into(">h", octets, 21, 1 << 3)
    assert read_all(sealed(octets)).timestamp_ms.tolist() == [NOW_MS + 77] * 2


def test_gaps_of_compaction_stay() -> None:
    built = DefaultRecordBatchBuilder(2, 0, False, -1, -1, -1, 1 << 20)
    for delta in (3, 9):
        built.append(delta, NOW_MS, None, b"", [])
    assert read_all(built.build()).offset.tolist() == [3, 9]


@pytest.mark.parametrize(
    ("place", "octet", "reason"),
    [
        (16, 1, "message format 3"),
        (17, 0xFF, "wrong checksum"),
        (HEADER_BYTES + 6, 0xFF, "wrong checksum"),
    ],
)
def test_damage_is_named(place: int, octet: int, reason: str) -> None:
    octets = batch([plain(0)], 1234)
    octets[place] ^= octet
    with pytest.raises(CorruptBatch, match=f"{reason}.* 1234"):
        read_all(octets)


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("value_bytes", [3, 300])
def test_messages_of_old_brokers_are_named(magic: int, value_bytes: int) -> None:
    """Also one that is shorter than a batch's header."""
    built = LegacyRecordBatchBuilder(magic, 0, 1 << 20)
    built.append(7, NOW_MS, None, bytes(value_bytes))
    with pytest.raises(CorruptBatch, match=f"message format {magic} at offset 7: only format 2"):
        end_offset(memoryview(built.build()))


def test_a_batch_of_too_many_records_is_named() -> None:
    octets = batch([plain(0)], 1234)
    struct.pack_into(">i", octets, HEADER_BYTES - 4, RECORDS_MAX + 1)
    with pytest.raises(CorruptBatch, match="offset 1234 has 2000001 records"):
        read_all(sealed(octets))


@pytest.mark.parametrize("codec", [1, 2, 3, 4])
def test_damaged_compression_is_named(codec: int) -> None:
    octets = batch([(NOW_MS, None, b"text " * 100, [])] * 5, codec=codec)
    octets[HEADER_BYTES:] = b"\xff" * (len(octets) - HEADER_BYTES)
    with pytest.raises(CorruptBatch, match="offset 0: a batch compressed by"):
        read_all(sealed(octets))


def test_an_unknown_codec_is_named() -> None:
    octets = batch([plain(0)])
    struct.pack_into(">h", octets, 21, 7)
    with pytest.raises(CorruptBatch, match="unknown compression"):
        read_all(sealed(octets))


@given(RECORDS, st.data())
def test_wrong_lengths_inside_a_batch_never_give_other_bytes(
    records: list[Record], data: Any
) -> None:
    octets = batch(records)
    place = data.draw(st.integers(HEADER_BYTES, len(octets) - 1))
    octets[place] = data.draw(st.integers(0, 255))
    try:
        raw = read_all(sealed(octets))
    except CorruptBatch:
        return
    for spans in (
        raw.key,
        raw.value,
        raw.key_value,
        raw.headers.names,
        raw.headers.values,
        raw.headers.both,
    ):
        end = spans.start + np.maximum(spans.length, 0)
        assert (spans.start >= HEADER_BYTES).all()
        assert (end <= len(octets)).all()
