"""Record batches, built by kafka-python, and what is read from them."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Sequence

from crc32c import crc32c
from hypothesis import strategies as st
from kafka.record.default_records import DefaultRecordBatchBuilder

from duewheel.schemas.wire.spans import RawHeaders

NOW_MS = 1_800_000_000_000
COMMIT, ABORT = b"\0\0\0\1", b"\0\0\0\0"

Record = tuple[int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]

OCTETS = st.none() | st.binary(max_size=300)
RECORDS = st.lists(
    st.tuples(
        st.integers(NOW_MS - 10**9, NOW_MS + 10**9),
        OCTETS,
        OCTETS,
        st.lists(st.tuples(st.text(max_size=70), OCTETS), max_size=5),
    ),
    min_size=1,
    max_size=30,
)


def batch(
    records: Sequence[Record],
    base: int = 0,
    *,
    codec: int = 0,
    producer: int = -1,
    transactional: bool = False,
) -> bytearray:
    """A batch as kafka-python builds it, with an offset as a broker gives it."""
    built = DefaultRecordBatchBuilder(2, codec, transactional, producer, 0, 0, 1 << 30)
    for delta, (timestamp_ms, key, value, headers) in enumerate(records):
        built.append(delta, timestamp_ms, key, value, headers)
    octets = bytearray(built.build())
    struct.pack_into(">q", octets, 0, base)
    return octets


def marker(base: int, producer: int, key: bytes) -> bytearray:
    """A control batch."""
    octets = batch([(NOW_MS, key, b"\0\0\0\0\0\0", [])], base, producer=producer)
    struct.pack_into(">h", octets, 21, 1 << 4 | 1 << 5)
    return sealed(octets)


def sealed(octets: bytearray) -> bytearray:
    """With the checksum of what it holds now."""
    struct.pack_into(">I", octets, 17, crc32c(memoryview(octets)[21:]))
    return octets


def plain(number: int) -> Record:
    return (NOW_MS, None, b"%d" % number, [])


def headers_of(raw: RawHeaders) -> list[list[tuple[str, bytes | None]]]:
    """The headers of each record."""
    name = [text.decode() for text in raw.names.column().to_pylist() if text is not None]
    pairs = list(zip(name, raw.values.column().to_pylist(), strict=True))
    return [pairs[first:end] for first, end in itertools.pairwise(raw.firsts.tolist())]
