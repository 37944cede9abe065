"""Kafka v2 record batches: bodies encoded ahead, and the 61-byte header before them.

The body (the records) is encoded as soon as the rows are ready. `seal` writes the header once the
producer has assigned the batch its sequence number. Batches are uncompressed, and all records have
the batch's timestamp.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np
from crc32c import crc32c

from duewheel.schemas.arrays import Int64
from duewheel.schemas.batches import Deliveries
from duewheel.schemas.columns import data, offsets
from duewheel.schemas.wire.record_codec import Records

_HEADER = struct.Struct(
    ">"
    "q"  #  0  base offset: the broker's to fill in
    "i"  #  8  batch length, from the next field on
    "i"  # 12  partition leader epoch: the broker's to fill in
    "b"  # 16  magic: 2
    "I"  # 17  CRC-32C of everything after it
    "h"  # 21  attributes: bits 0-2 compression, 3 timestamp type, 4 transactional, 5 control
    "i"  # 23  last offset delta
    "q"  # 27  base timestamp, ms
    "q"  # 35  largest timestamp, ms
    "q"  # 43  producer id
    "h"  # 51  producer epoch
    "i"  # 53  base sequence
    "i"  # 57  number of records
)
HEADER_BYTES = _HEADER.size
_LENGTH_END = struct.calcsize(">qi")
_CRC_OFFSET = struct.calcsize(">qiib")
_CRC = struct.Struct(">I")
_CRC_END = _CRC_OFFSET + _CRC.size
_MAGIC = 2
_TRANSACTIONAL = 1 << 4
assert HEADER_BYTES == 61
assert (_LENGTH_END, _CRC_OFFSET, _CRC_END) == (12, 17, 21)


@dataclass(frozen=True, slots=True)
class Batch:
    """The records of one batch.

    Attributes:
        body: their bytes.
        count: their number.
    """

    body: memoryview
    count: int


def bytes_alone(deliveries: Deliveries) -> Int64:
    """Bytes of the batch that each row would make alone: the least it can take on the wire."""
    return HEADER_BYTES + Records(deliveries).sizes(np.zeros(len(deliveries), np.int64))


def split(deliveries: Deliveries, bytes_max: int) -> list[Batch]:
    """Batches of at most `bytes_max` bytes, header included, that hold the rows in their order.

    The rows must be of one topic-partition. A row that is too large even alone gets a batch of its
    own, larger than `bytes_max`: see `bytes_alone`.
    """
    records = Records(deliveries)
    firsts = _cut(records.sizes(np.arange(len(records), dtype=np.int64)), bytes_max - HEADER_BYTES)
    counts = np.diff(firsts)
    encoded = records.encode(np.arange(len(records)) - np.repeat(firsts[:-1], counts))
    octets = memoryview(data(encoded).data).toreadonly()
    bounds = offsets(encoded)[firsts].tolist()
    return [
        Batch(octets[start:end], count)
        for start, end, count in zip(bounds, bounds[1:], counts.tolist(), strict=False)
    ]


def _cut(sizes: Int64, bytes_max: int) -> Int64:
    """First row of each batch, then the number of rows.

    The sizes are those with each row's place among all rows as offset delta. Inside a batch the
    delta, and so the size, is never larger: rows that fit by these sizes fit.
    """
    ends = np.cumsum(sizes)
    firsts = [0]
    while firsts[-1] < len(sizes):
        first = firsts[-1]
        before = int(ends[first - 1]) if first else 0
        fits = int(np.searchsorted(ends, before + bytes_max, "right"))
        firsts.append(max(fits, first + 1))
    return np.array(firsts, np.int64)


def seal(
    body: bytes | memoryview,
    count: int,
    *,
    timestamp_ms: int,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    transactional: bool = False,
) -> bytearray:
    """The complete batch: header with checksum, then the body."""
    batch = bytearray(HEADER_BYTES + len(body))
    batch[HEADER_BYTES:] = body
    _HEADER.pack_into(
        batch,
        0,
        0,
        len(batch) - _LENGTH_END,
        0,
        _MAGIC,
        0,
        _TRANSACTIONAL if transactional else 0,
        count - 1,
        timestamp_ms,
        timestamp_ms,
        producer_id,
        producer_epoch,
        base_sequence,
        count,
    )
    _CRC.pack_into(batch, _CRC_OFFSET, crc32c(memoryview(batch)[_CRC_END:]))
    return batch
