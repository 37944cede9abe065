"""Reads the records of a batch one by one, in plain Python: for the client, which has no numpy, and
for readers of a few records. record_reader.py reads the same format (described there) as columns.

A producer may write any bytes as a record. Records that Kafka's own clients refuse are CorruptBatch
here, except for a header's name that is no UTF-8: it has surrogates for its bytes, and
single_record.py writes the same bytes again.
"""

from __future__ import annotations

from collections.abc import Iterator

from duewheel.schemas.wire.batch_reader import HEADERS_MAX, CorruptBatch

Header = tuple[str, bytes | None]
Row = tuple[int, int, bytes | None, bytes | None, list[Header]]
"""Offset, timestamp in ms, key, value and headers of a record."""


def rows_of(
    records: memoryview, count: int, base_offset: int = 0, base_ms: int = 0
) -> Iterator[Row]:
    """The records of a batch, not compressed. One whose offset does not rise is left out: a
    consumer that stores its position could not distinguish it from the one before. Deltas count
    from `base_offset` and `base_ms`.

    Raises:
        CorruptBatch: at the first record that cannot be read.
    """
    data, at, last = bytes(records), 0, -1
    for _ in range(count):
        try:
            delta, delta_ms, key, value, headers, at = _record(data, at)
        except IndexError:
            raise CorruptBatch("a record ends beyond its batch") from None
        if delta > last:
            yield base_offset + delta, base_ms + delta_ms, key, value, headers
            last = delta


def _record(data: bytes, at: int) -> tuple[int, int, bytes | None, bytes | None, list[Header], int]:
    """Offset delta, timestamp delta, key, value and headers of the record at `at`; and its end."""
    length, at = _number(data, at, 5)
    end = at + length
    if length < 0 or end > len(data):
        raise CorruptBatch("a record ends beyond its batch")
    delta_ms, at = _number(data, at + 1, 10)  # after the attributes
    delta, at = _number(data, at, 5)
    key, at = _string(data, at)
    value, at = _string(data, at)
    count, at = _number(data, at, 5)
    # A header has two bytes at least; without the bounds a count would take all memory.
    if not 0 <= 2 * count <= end - at or count > HEADERS_MAX:
        raise CorruptBatch("a wrong number of headers")
    headers = list[Header]()
    for _ in range(count):
        name, at = _string(data, at)
        content, at = _string(data, at)
        if name is None:
            raise CorruptBatch("a header without a name")
        headers.append((name.decode(errors="surrogateescape"), content))
    if at != end:
        raise CorruptBatch("a record ends elsewhere than its length says")
    return delta, delta_ms, key, value, headers, at


def _string(data: bytes, at: int) -> tuple[bytes | None, int]:
    length = data[at]
    if length < 128:  # nearly every one, so it costs no call: a record may have 500,000 headers
        length, at = (length >> 1) ^ -(length & 1), at + 1
    else:
        length, at = _number(data, at, 5)
    if length < 0:
        return None, at
    end = at + length
    return data[at:end], end


def _number(data: bytes, at: int, bytes_max: int) -> tuple[int, int]:
    """The zigzag varint at `at`, and the position after it. As in Java, a number of five bytes has
    32 bits, one of ten has 64; a producer's further bits do not count.
    """
    value = data[at]
    if value < 128:  # nearly every one
        return (value >> 1) ^ -(value & 1), at + 1
    value &= 127
    for shift in range(7, 7 * bytes_max, 7):
        at += 1
        octet = data[at]
        value |= (octet & 127) << shift
        if octet < 128:
            value &= 0xFFFFFFFF if bytes_max == 5 else 0xFFFFFFFFFFFFFFFF
            return (value >> 1) ^ -(value & 1), at + 1
    raise CorruptBatch("a number without an end")
