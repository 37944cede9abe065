"""Raw batches read as columns, against batches that kafka-python has built."""

from __future__ import annotations

import gzip
import struct
from typing import Any

import lz4.frame
import numpy as np
import pytest
import zstandard
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

from duewheel.kafka.log.compression import decompressed
from duewheel.schemas.wire.batch_header import HEADER_BYTES
from duewheel.schemas.wire.batch_reader import (
    RECORDS_MAX,
    CorruptBatch,
    committed_batches,
    end_offset,
)
from duewheel.schemas.wire.defects import Defect
from duewheel.schemas.wire.kafka_records import KafkaRecords
from duewheel.schemas.wire.record_reader import read_batches
from duewheel.schemas.wire.single_record import encode
from duewheel.schemas.wire.varint import varint

PARTITION = ("timers", 0)
ZEROS_GZIP = gzip.compress(bytes(300 << 20), 1)


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
        (8, 0xFF, "wrong length -"),
    ],
)
def test_damage_of_brokers_is_named(place: int, octet: int, reason: str) -> None:
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


def test_a_length_that_leads_back_ends_the_reading() -> None:
    octets = batch([plain(0)])
    struct.pack_into(">i", octets, 8, -12)
    for read in (end_offset, lambda octets: list(committed_batches(octets, [], decompressed))):
        with pytest.raises(CorruptBatch, match="wrong length -12 of the batch at offset 0"):
            read(memoryview(octets))


def test_a_damaged_end_is_passed_so_that_its_batch_is_read_and_named() -> None:
    """An end below the batch's offset would be fetched again until a time-out without a reason."""
    octets = batch([plain(0)], 1234)
    struct.pack_into(">i", octets, 23, -5)
    assert end_offset(memoryview(octets)) == 1235
    with pytest.raises(CorruptBatch, match=r"wrong checksum.* 1234"):
        list(committed_batches(memoryview(octets), [], decompressed))


def of_records(*records: bytes, base: int = 0, count: int = -1) -> bytearray:
    """A batch of records as they are given, with the number of records that a broker asks for."""
    count = len(records) if count < 0 else count
    octets = batch([plain(0)], base)[:HEADER_BYTES] + b"".join(records)
    struct.pack_into(">i", octets, 8, len(octets) - 12)
    struct.pack_into(">i", octets, 23, max(count - 1, 0))
    struct.pack_into(">i", octets, HEADER_BYTES - 4, count)
    return sealed(octets)


def of_bytes(*body: bytes) -> bytes:
    """A record with these bytes after its length."""
    joined = b"".join(body)
    return varint(len(joined)) + joined


def compressed_as(codec: int, body: bytes, count: int = 1) -> bytearray:
    octets = of_records(body, count=count)
    struct.pack_into(">h", octets, 21, codec)
    return sealed(octets)


LZ4_WRONG_CHECKSUM = bytearray(lz4.frame.compress(b"text " * 20, content_checksum=True))
LZ4_WRONG_CHECKSUM[-1] ^= 1
NULLS = varint(-1) * 2 + b"\0"
# Any of these a broker takes from a producer.
UNREADABLE: dict[str, tuple[bytearray, Defect]] = {
    "the same offset twice": (
        of_records(encode(0, b"a", None), encode(0, b"b", None)),
        Defect.OFFSETS,
    ),
    "falling offsets": (of_records(encode(1, b"a", None), encode(0, b"b", None)), Defect.OFFSETS),
    "an offset beyond the batch": (of_records(encode(7, b"a", None)), Defect.OFFSETS),
    "an offset below the batch": (of_records(encode(-1, b"a", None)), Defect.OFFSETS),
    "too few records": (of_records(encode(0, b"a" * 9, None), count=2), Defect.LENGTHS),
    "too many records": (of_records(encode(0, b"a", None), b"\0" * 9, count=1), Defect.LENGTHS),
    "more records than bytes": (of_records(encode(0, b"a", None), count=9_000), Defect.COUNT),
    "more than are read": (of_records(encode(0, b"a", None), count=RECORDS_MAX + 1), Defect.COUNT),
    "no record": (of_records(b"text", count=0), Defect.COUNT),
    "nothing": (of_records(b"", count=1), Defect.COUNT),
    "a negative length": (of_records(varint(-9) + b"\0" * 9), Defect.LENGTHS),
    "a length beyond the batch": (of_records(varint(2**31 - 1) + b"\0" * 9), Defect.LENGTHS),
    "a number without an end": (of_records(b"\xff" * 40), Defect.LENGTHS),
    "a key beyond the record": (
        of_records(of_bytes(b"\0\0\0", varint(2**31 - 1), b"key", varint(-1), b"\0")),
        Defect.LENGTHS,
    ),
    "a thousand million headers": (
        of_records(of_bytes(b"\0\0\0", varint(-1) * 2, varint(10**9))),
        Defect.LENGTHS,
    ),
    "less than no headers": (
        of_records(of_bytes(b"\0\0\0", varint(-1) * 2, varint(-1))),
        Defect.LENGTHS,
    ),
    "a header without a name": (
        of_records(of_bytes(b"\0\0\0", varint(-1) * 2, varint(1), varint(-1) * 2)),
        Defect.LENGTHS,
    ),
    "an unknown compression": (compressed_as(7, b"text"), Defect.CODEC),
    "lz4 with a wrong checksum": (compressed_as(3, bytes(LZ4_WRONG_CHECKSUM)), Defect.COMPRESSION),
    "an lz4 frame without an end": (
        compressed_as(3, lz4.frame.compress(b"text " * 20)[:-8]),
        Defect.COMPRESSION,
    ),
    "snappy that leads back": (
        compressed_as(2, b"\x82SNAPPY\0\0\0\0\1\0\0\0\1" + struct.pack(">i", -4) + b"text"),
        Defect.COMPRESSION,
    ),
    "gzip of 300 MiB": (compressed_as(1, ZEROS_GZIP), Defect.TOO_LARGE),
    "zstd of 300 MiB": (compressed_as(4, zstandard.compress(bytes(300 << 20))), Defect.TOO_LARGE),
    "zstd of nothing": (compressed_as(4, zstandard.compress(b"")), Defect.COUNT),
}


@pytest.mark.parametrize("name", UNREADABLE)
@pytest.mark.parametrize("around", [1, 60])
def test_a_batch_that_cannot_be_read_is_one_row_among_the_others(name: str, around: int) -> None:
    """Of few batches and of many: the two ways to find records."""
    bad, defect = UNREADABLE[name]
    octets = bytearray()
    for number in range(around):
        octets += batch([plain(number)], number)
    (last_delta,) = struct.unpack_from(">i", bad, 23)
    bad = bytearray(bad)
    struct.pack_into(">q", bad, 0, around)
    after = around + 1 + last_delta
    raw = read_all(octets + bad + batch([plain(after)], after))
    found = rows(raw)
    others = [(number, plain(number)) for number in [*range(around), after]]
    assert [row for row in found if row[0] != around] == others
    assert found[around] == (around, (found[around][1][0], None, None, []))
    assert raw.key_value.column()[around].as_py() == b"\1\1"
    unread = raw.unread
    assert unread is not None
    assert (unread.row.tolist(), unread.defect.tolist()) == ([around], [defect])
    assert unread.last_offset.tolist() == [after - 1]
    assert raw.take(np.arange(around)).unread is None
    moved = raw.take(np.array([around + 1, around])).unread
    assert moved is not None and moved.row.tolist() == [1]


def test_the_defect_is_the_same_whatever_follows_the_batch() -> None:
    """Offsets of records with wrong lengths may be bytes of the next batch."""
    records = (
        "3000000004c589010406686868067878780668686806787878480000020ca2baa9d6d90a18304fe2a633"
        "8add4c1d8ea59504046868047878046868047878460000040a877129c905010604686808787878780468"
        "6808787878780468680878787878320000060a83aa43403a1cee48c728d8583b2a17f3f847aafc001800"
        "ffffffffffffffffffff002a00000a0ab87df719e9067c6a540204686806787878"
    )
    bad = compressed_as(4, zstandard.compress(bytes.fromhex(records)), count=6)
    for unread in (read_all(bad).unread, read_all(bad + batch([plain(6)], 6)).unread):
        assert unread is not None
        assert unread.defect.tolist() == [Defect.LENGTHS]


def test_numbers_are_those_that_java_reads() -> None:
    """Bits above the 32nd count nothing, and any negative length is a null. Stored are the shortest
    forms, as other readers of the target read nothing else.
    """
    wide = bytes([0x82, 0x80, 0x80, 0x80, 0x70])  # 1, and three bits above the 32nd
    long = bytes([0x82, 0x80, 0x00])  # 1, in three bytes
    headers = varint(2) + wide + b"n" + long + b"v" + varint(1) + b"m" + varint(-7)
    record = of_bytes(b"\0\0\0", wide, b"k", varint(-3), headers)
    raw = read_all(of_records(record) + batch([(NOW_MS, b"k", b"v", [("n", b"w")])], 1))
    assert raw.unread is None
    assert [row[1][1:] for row in rows(raw)] == [
        (b"k", None, [("n", b"v"), ("m", None)]),
        (b"k", b"v", [("n", b"w")]),
    ]
    assert raw.key_value.column().to_pylist() == [b"\2k\1", b"\2k\2v"]
    assert raw.headers.both.column().to_pylist() == [b"\2n\2v", b"\2m\1", b"\2n\2w"]


@pytest.mark.parametrize("delta", [-(2**63), -(2**40), 2**40, 2**63 - 1])
def test_a_timestamp_delta_has_64_bits(delta: int) -> None:
    octets = of_records(of_bytes(b"\0", varint(delta), b"\0", NULLS))
    struct.pack_into(">q", octets, 27, 0)
    assert read_all(sealed(octets)).timestamp_ms.tolist() == [delta]


@pytest.mark.parametrize("codec", [1, 2, 3, 4])
def test_a_batch_that_the_operator_has_skipped_is_not_decompressed(codec: int) -> None:
    long: Record = (NOW_MS, None, b"text " * 100, [])
    octets = batch([long, long], 7, codec=codec) + batch([plain(2)], 9)

    def decompress(*_: object) -> bytes:
        raise AssertionError

    found = committed_batches(memoryview(octets), [], decompress, skipped=(7, 9))
    raw = read_batches(list(found), [PARTITION])
    assert raw.unread is not None, "the batch that is not compressed is read: records are skipped"
    assert raw.unread.defect.tolist() == [Defect.SKIPPED]
    assert [offset for offset, _ in rows(raw)] == [7, 9]


def test_a_damaged_batch_can_be_skipped() -> None:
    octets = batch([plain(0)], 7)
    octets[-1] ^= 1
    octets += batch([plain(1)], 8)
    found = committed_batches(memoryview(octets), [], decompressed, skipped=(7,))
    raw = read_batches(list(found), [PARTITION])
    assert raw.unread is not None and raw.unread.defect.tolist() == [Defect.SKIPPED]
    with pytest.raises(CorruptBatch, match=r"wrong checksum.* offset 7"):
        read_all(octets)


@pytest.mark.parametrize("headers", [40, 700])
@pytest.mark.parametrize("records", [1, 300])
def test_few_and_many_headers(headers: int, records: int) -> None:
    """Beside records without any."""
    many: list[tuple[str, bytes | None]] = [
        ("n" * (i % 90), b"v" * (i % 70) if i % 3 else None) for i in range(headers)
    ]
    wanted: list[Record] = [(NOW_MS, None, b"", many if i % 2 else []) for i in range(2 * records)]
    octets = bytearray()
    for number, record in enumerate(wanted):
        octets += batch([record], number)
    assert [record for _, record in rows(read_all(octets))] == wanted


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
    if raw.unread is not None:
        assert rows(raw)[0][1][1:] == (None, None, [])
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
        is_stored = spans.octets.base is not raw.key.octets.base  # again, in the shortest form
        assert is_stored or (spans.start >= HEADER_BYTES).all()
        assert (end <= len(spans.octets)).all()
