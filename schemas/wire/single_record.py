"""Kafka v2 records one at a time, for rare records: progress, replayed dead letters.

The format is that of record_codec.py, which does the same for columns.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from duewheel.schemas.wire.record_batch import Batch
from duewheel.schemas.wire.varint import varint

Header = tuple[str, bytes | None]
Content = tuple[bytes | None, bytes | None, Sequence[Header]]  # of a record: key, value, headers


def framed(value: bytes | None) -> bytes:
    """A value with its length before it."""
    return varint(-1) if value is None else varint(len(value)) + value


def header(name: str, content: bytes | None) -> bytes:
    """A header, encoded. A name that is no UTF-8 has surrogates for its bytes."""
    return framed(name.encode(errors="surrogateescape")) + framed(content)


def encode(
    offset_delta: int, key: bytes | None, value: bytes | None, headers: Iterable[Header] = ()
) -> bytes:
    """A record with its offset delta in the batch."""
    encoded = [header(name, content) for name, content in headers]
    tail = b"".join(
        (b"\0\0", varint(offset_delta), framed(key), framed(value), varint(len(encoded)), *encoded)
    )
    return varint(len(tail)) + tail


def single(key: bytes, value: bytes | None, headers: Sequence[Header] = ()) -> Batch:
    """A batch of one record."""
    return several([key], value, headers)


def several(keys: Sequence[bytes], value: bytes | None, headers: Sequence[Header] = ()) -> Batch:
    """A batch of records with the same value and headers."""
    return _batch([encode(delta, key, value, headers) for delta, key in enumerate(keys)])


def batches(records: Iterable[Content], bytes_max: int) -> Iterator[Batch]:
    """Batches of records, in their order. A record that has more than `bytes_max` even alone gets a
    larger batch of its own.
    """
    encoded, size = list[bytes](), 0
    for content in records:
        record = encode(len(encoded), *content)
        if encoded and size + len(record) > bytes_max:
            yield _batch(encoded)
            record, encoded, size = encode(0, *content), [], 0
        encoded.append(record)
        size += len(record)
    if encoded:
        yield _batch(encoded)


def _batch(encoded: Sequence[bytes]) -> Batch:
    return Batch(memoryview(b"".join(encoded)), len(encoded))
