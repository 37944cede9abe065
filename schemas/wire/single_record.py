"""Kafka v2 records one at a time, for rare records: progress, held copies, replayed dead letters.

The format is that of record_codec.py, which does the same for columns.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

from duewheel.schemas.wire.batch_reader import CorruptBatch
from duewheel.schemas.wire.record_batch import Batch
from duewheel.schemas.wire.varint import read_varint, varint

Header = tuple[str, bytes | None]
Content = tuple[bytes | None, bytes | None, Sequence[Header]]  # of a record: key, value, headers

_HEAD = b"\0\0"  # no attributes; the timestamp is the batch's


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
    return _numbered(offset_delta, _content(key, value, headers))


def _content(key: bytes | None, value: bytes | None, headers: Iterable[Header]) -> bytes:
    encoded = [header(name, content) for name, content in headers]
    return b"".join((framed(key), framed(value), varint(len(encoded)), *encoded))


def _numbered(offset_delta: int, content: bytes) -> bytes:
    record = _HEAD + varint(offset_delta) + content
    return varint(len(record)) + record


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
    return _in_batches((_content(*each) for each in records), bytes_max)


def joined(parts: Iterable[Batch], bytes_max: int) -> Iterator[Batch]:
    """The records of batches that duewheel has made, in as few batches as `batches` makes.

    Raises:
        CorruptBatch: at the first record that another program has made.
    """
    return _in_batches(chain.from_iterable(map(_contents, parts)), bytes_max)


def _contents(batch: Batch) -> Iterator[bytes]:
    body, at = bytes(batch.body), 0
    try:
        for _ in range(batch.count):
            length, start = read_varint(body, at)
            _, content_at = read_varint(body, start + len(_HEAD))
            at = start + length
            if not (content_at <= at <= len(body) and body.startswith(_HEAD, start)):
                raise CorruptBatch("a record that duewheel has not made")
            yield body[content_at:at]
    except IndexError:
        raise CorruptBatch("a record ends beyond its batch") from None
    if at != len(body):
        raise CorruptBatch("more records than are counted")


def _in_batches(contents: Iterable[bytes], bytes_max: int) -> Iterator[Batch]:
    encoded, size = list[bytes](), 0
    for content in contents:
        record = _numbered(len(encoded), content)
        if encoded and size + len(record) > bytes_max:
            yield _batch(encoded)
            record, encoded, size = _numbered(0, content), [], 0
        encoded.append(record)
        size += len(record)
    if encoded:
        yield _batch(encoded)


def _batch(encoded: Sequence[bytes]) -> Batch:
    return Batch(memoryview(b"".join(encoded)), len(encoded))
