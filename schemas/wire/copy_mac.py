"""The authentication of copies: only duewheel can write a record that counts as a copy.

A copy (wheel/dequeue/requeue.py), a waiting dead letter and a chase have headers that release a
record from rules: how far ahead it is due, which timer it is, since when it waits. Producers may
write to timer topics, so the last header of such a record is a MAC: BLAKE2b with a key of the shard
over the partition, key, value and all other headers. A record with headers of copies and without a
valid MAC is an ordinary message: the parser ignores those headers.

- The partition is part of the MAC: a copy of one topic is none in another, where other targets may
  be open. The offset is not, because the broker assigns it. So a client that may read and write a
  timer topic can repeat a copy as it is, like any other message, but not change it.
- The keys (checkpoints/copy_keys.py) are in the settings epochs of the progress: the verdict
  about a record is the same at every read, also after the loss of a data directory.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow.compute

from duewheel.schemas import header_names as names
from duewheel.schemas.arrays import Bool, Int64, bounds_of, ranges
from duewheel.schemas.batches import Deliveries, TopicPartition
from duewheel.schemas.columns import binary, constant, join, join_groups, scatter, take
from duewheel.schemas.wire import single_record
from duewheel.schemas.wire.kafka_records import KafkaRecords
from duewheel.schemas.wire.record_codec import framed, header_name
from duewheel.schemas.wire.single_record import Header
from duewheel.schemas.wire.spans import RawHeaders

_pc: Any = pyarrow.compute

KEY_BYTES = 32
_MAC_BYTES = 16
_NAME = names.COPY_MAC.encode()
# The header, and a byte more for each of two lengths in the record that it makes longer.
HEADER_BYTES_MAX = 2 + len(_NAME) + _MAC_BYTES + 2


def _mac(key: bytes, place: TopicPartition, key_value: bytes, headers: bytes) -> bytes:
    topic, number = place
    # Unambiguous: no name has a zero byte, and key, value and headers come after their lengths.
    text = b"".join((f"{topic}-{number}".encode(), b"\0", key_value, headers))
    return hashlib.blake2b(text, digest_size=_MAC_BYTES, key=key).digest()


def signed(deliveries: Deliveries, key: bytes, only: Bool | None = None) -> Deliveries:
    """The deliveries, with a MAC after the headers of each copy (of `only` these rows); a loop over
    the copies. Without a key there is no MAC.
    """
    copies = deliveries.is_copy if only is None else deliveries.is_copy & only
    rows = np.flatnonzero(copies)
    if not key or not len(rows):
        return deliveries
    macs = binary(
        _mac(key, (deliveries.targets[target], number), key_value or b"", headers or b"")
        for target, number, key_value, headers in zip(
            deliveries.target[rows].tolist(),
            deliveries.target_partition[rows].tolist(),
            take(deliveries.key_value, rows).to_pylist(),
            take(deliveries.headers, rows).to_pylist(),
            strict=True,
        )
    )
    header = join(header_name(names.COPY_MAC), *framed(macs))
    return replace(
        deliveries,
        headers=join(deliveries.headers, scatter(header, rows, len(deliveries))),
        header_count=deliveries.header_count + copies.astype(np.int32),
    )


def mac_header(
    key: bytes,
    place: TopicPartition,
    record_key: bytes | None,
    value: bytes | None,
    headers: Sequence[Header],
) -> list[Header]:
    """The last header of a single copy for the timer partition `place`; empty without a key."""
    if not key:
        return []
    encoded = b"".join(single_record.header(*each) for each in headers)
    key_value = single_record.framed(record_key) + single_record.framed(value)
    return [(names.COPY_MAC, _mac(key, place, key_value, encoded))]


def own_copies(records: KafkaRecords, keys: Sequence[bytes]) -> Bool:
    """The records that are copies of duewheel's: they end with a valid MAC by one of the keys."""
    rows = _with_mac(records.headers)
    own = np.zeros(len(records), np.bool_)
    if len(rows):
        own[rows] = [
            any(hmac.compare_digest(given, _mac(key, *of)) for key in keys)
            for given, of in _signed_parts(records, rows)
        ]
    return own


def _with_mac(headers: RawHeaders) -> Int64:
    """The records whose last header is a MAC."""
    rows = np.flatnonzero(np.diff(headers.firsts))
    last = headers.firsts[rows + 1] - 1
    sized = headers.names.length[last] == len(_NAME)
    rows, last = rows[sized], last[sized]
    matching: Int64 = rows[
        np.asarray(_pc.equal(headers.names.take(last).column(), constant(_NAME)))
    ]
    return matching


def _signed_parts(
    records: KafkaRecords, rows: Int64
) -> Iterator[tuple[bytes, tuple[TopicPartition, bytes, bytes]]]:
    """For each row its MAC, and the parts that it must sign."""
    headers, first = records.headers, records.headers.firsts[rows]
    last = headers.firsts[rows + 1] - 1
    others = last - first
    encoded = headers.both.take(ranges(first, others)).column()
    macs = headers.values.take(last).column()
    columns = (macs, records.key_value.take(rows).column(), join_groups(encoded, bounds_of(others)))
    for partition, mac, key_value, rest in zip(
        records.partition[rows].tolist(), *(each.to_pylist() for each in columns), strict=True
    ):
        yield mac or b"", (records.partitions[partition], key_value or b"", rest or b"")
