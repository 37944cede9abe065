"""Kafka v2 record batches: bodies encoded ahead, and the 61-byte header before them.

The body (the records) is encoded as soon as the rows are ready. `seal` writes the header once the
producer has assigned the batch its sequence number; between the two the body may be compressed. All
records have the batch's timestamp.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from duewheel.schemas.arrays import Int64, bounds_of
from duewheel.schemas.batches import Deliveries
from duewheel.schemas.columns import data, offsets
from duewheel.schemas.wire.batch_header import (
    CRC,
    CRC_END,
    CRC_OFFSET,
    HEADER,
    HEADER_BYTES,
    LENGTH_END,
    MAGIC,
)
from duewheel.schemas.wire.codec_names import CODECS, Codec
from duewheel.schemas.wire.crc32c import crc32c
from duewheel.schemas.wire.record_codec import Records

_TRANSACTIONAL = 1 << 4


@dataclass(frozen=True, slots=True)
class Batch:
    """The records of one batch."""

    body: memoryview
    count: int  # number of records
    codec: Codec = "none"


def bytes_alone(deliveries: Deliveries) -> Int64:
    """Bytes of the batch that each row would make alone: the least it can take on the wire."""
    return HEADER_BYTES + Records.of(deliveries).sizes(np.zeros(len(deliveries), np.int64))


def split(
    deliveries: Deliveries, ends: Sequence[int], bytes_max: Sequence[int]
) -> list[list[Batch]]:
    """The batches of each topic-partition, as `split_records`."""
    return split_records(Records.of(deliveries), ends, bytes_max)


def split_records(
    records: Records, ends: Sequence[int], bytes_max: Sequence[int]
) -> list[list[Batch]]:
    """The batches of each topic-partition: its records in their order.

    All records are encoded together and the bytes are cut, because an encoding costs about the same
    for one and for a hundred: a slot often has a row or two for each of many partitions.

    Args:
        records: those of a topic-partition are neighbours.
        ends: the end of each topic-partition's records, rising.
        bytes_max: the largest batch of each, header included. A record that is too large even alone
            gets a larger batch of its own: see `bytes_alone`.
    """
    cuts = bounds = np.array([0, *ends], np.int64)
    row = np.arange(len(records), dtype=np.int64)
    if records.bytes_at_most > min(bytes_max, default=0) - HEADER_BYTES:
        first, end = bounds[:-1], bounds[1:]
        sizes = records.sizes(row - np.repeat(first, end - first))
        cuts = _cuts(sizes, first, end, np.array(bytes_max, np.int64) - HEADER_BYTES)
    counts = cuts[1:] - cuts[:-1]
    encoded = records.encode(row - np.repeat(cuts[:-1], counts))
    octets = memoryview(data(encoded).data).toreadonly()
    batches = [
        Batch(octets[start:stop], count)
        for (start, stop), count in zip(
            itertools.pairwise(offsets(encoded)[cuts].tolist()), counts.tolist(), strict=True
        )
    ]
    of_partition = itertools.pairwise(np.searchsorted(cuts, bounds).tolist())
    return [batches[start:stop] for start, stop in of_partition]


def _cuts(sizes: Int64, first: Int64, end: Int64, bytes_max: Int64) -> Int64:
    """First row of each batch, then the number of rows. The sizes count each row's place in its
    group as offset delta. Inside a batch the delta, and so the size, is never larger: rows that fit
    by these sizes fit.
    """
    total = bounds_of(sizes)
    cuts = end.tolist()
    for group in np.flatnonzero(total[end] - total[first] > bytes_max).tolist():
        cut, stop = int(first[group]), int(end[group])
        while cut < stop:
            cuts.append(cut)
            fits = int(np.searchsorted(total, total[cut] + bytes_max[group], "right")) - 1
            cut = max(fits, cut + 1)
    return np.unique([0, *cuts])


def seal(
    body: bytes | memoryview,
    count: int,
    *,
    timestamp_ms: int,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    transactional: bool = False,
    codec: Codec = "none",
) -> bytearray:
    """The complete batch: header with checksum, then the body."""
    batch = bytearray(HEADER_BYTES + len(body))
    batch[HEADER_BYTES:] = body
    HEADER.pack_into(
        batch,
        0,
        0,
        len(batch) - LENGTH_END,
        0,
        MAGIC,
        0,
        CODECS.index(codec) | (_TRANSACTIONAL if transactional else 0),
        count - 1,
        timestamp_ms,
        timestamp_ms,
        producer_id,
        producer_epoch,
        base_sequence,
        count,
    )
    CRC.pack_into(batch, CRC_OFFSET, crc32c(memoryview(batch)[CRC_END:]))
    return batch
