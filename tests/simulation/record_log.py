"""A partition's log as record batches, as a broker gives them to a read_committed reader.

What lies at each offset is known; batches are cut from it when they are fetched, by a hash of their
offset, so that the same log gives the same bytes. They are of all kinds that a reader must expect:

    batches that begin before the range, end behind it, or are cut off at the end of an answer
    committed and aborted transactions side by side, their markers, and users' aborted records
    what compaction has left of aborted transactions: nothing, or a batch without records
    all codecs, times of the producer and of the broker
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from zlib import crc32

from google_crc32c import value as crc32c
from kafka.codec import gzip_encode, lz4_encode, snappy_encode, zstd_encode
from tests.simulation.contract_check import decoded
from tests.simulation.timers import Copy, encoded

from duewheel.schemas.wire.varint import varint

NO_PRODUCER = -1
ABORTING = 0  # producer of aborted transactions that no timer is in

_HEADER = struct.Struct(">qiibIhiqqqhii")
_LENGTH_END, _CRC_END = 12, 21
_APPEND_TIME, _TRANSACTIONAL, _CONTROL = 1 << 3, 1 << 4, 1 << 5
_ENCODERS = {1: gzip_encode, 2: snappy_encode, 3: lz4_encode, 4: zstd_encode}
_NO_KEY_VALUE = b"\1\1"
_MARKERS = b"\0\0\0\0", b"\0\0\0\1"  # keys; a commit's is the second


@dataclass(frozen=True, slots=True)
class Entry:
    """What lies at an offset.

    Attributes:
        copy: a record; None: a marker, or an aborted record that is no timer's.
        producer: of a transaction, or NO_PRODUCER.
        commits: of a marker; None: it is none.
    """

    copy: Copy | None
    producer: int = NO_PRODUCER
    commits: bool | None = None


@dataclass(frozen=True, slots=True)
class _Piece:
    """A batch: its first offset, the one behind it, and what becomes of it."""

    first: int
    end: int
    producer: int
    is_left: bool  # compaction has left its records


def answer(
    log: Sequence[Entry], committed: Sequence[Copy | None], at: int, stable_end: int
) -> tuple[bytes, list[tuple[int, int]]]:
    """What a fetch from an offset on gets: record batches, and the aborted transactions among them.

    Args:
        log: all of it.
        committed: the records that count, by offset.
        at: below the stable end.
        stable_end: of the log.
    """
    endings = _endings(log)
    pieces = [p for p in _pieces(log, committed, endings, stable_end) if p.end > at]
    count = 1 + _drawn(at, "count", 4)
    left = ((p.end, octets) for p in pieces if (octets := _batch(log, p, stable_end)))
    batches = list(islice(left, count + 1))
    end, octets = batches[:count][-1][0], b"".join(octets for _, octets in batches[:count])
    if batches[count:]:
        next_one = batches[count][1]
        octets += next_one[: _drawn(at, "cut", len(next_one))]
    first_of: dict[tuple[int, int], int] = {}
    for offset, ending in enumerate(endings):
        if ending is not None:
            first_of.setdefault((log[offset].producer, ending), offset)
    aborted = [
        (producer, first)
        for (producer, ending), first in first_of.items()
        if not log[ending].commits and ending >= at and first < end and _compaction(ending) < 2
    ]
    return octets, aborted


def _endings(log: Sequence[Entry]) -> list[int | None]:
    """The offset of the marker that ends each record's transaction."""
    markers: dict[int, int] = {}
    found: list[int | None] = [None] * len(log)
    for offset in range(len(log) - 1, -1, -1):
        entry = log[offset]
        if entry.commits is not None:
            markers[entry.producer] = offset
        elif entry.producer != NO_PRODUCER:
            found[offset] = markers.get(entry.producer)
    return found


def _pieces(
    log: Sequence[Entry],
    committed: Sequence[Copy | None],
    endings: Sequence[int | None],
    stable_end: int,
) -> list[_Piece]:
    pieces: list[_Piece] = []
    for offset in range(stable_end):
        entry, ending = log[offset], endings[offset]
        producer, is_left = entry.producer, True
        if entry.commits is not None:
            is_left = entry.commits or _compaction(offset) < 2
        elif ending is None:  # the log has lost the marker, and got an end by an operator
            producer, is_left = NO_PRODUCER, committed[offset] is not None
        elif not log[ending].commits:
            is_left = not _compaction(ending)
        last = pieces[-1] if pieces else None
        if (
            last is not None
            and (last.producer, last.is_left) == (producer, is_left)
            and entry.commits is None
            and log[offset - 1].commits is None
            and _drawn(offset, "joined", 3)
        ):
            pieces[-1] = _Piece(last.first, offset + 1, producer, is_left)
        else:
            pieces.append(_Piece(offset, offset + 1, producer, is_left))
    return pieces


def _compaction(ending: int) -> int:
    """What has left an aborted transaction that ends here: 1: its records, 2: its marker, too."""
    return max(_drawn(ending, "compaction", 5) - 2, 0)


def _batch(log: Sequence[Entry], piece: _Piece, stable_end: int) -> bytes:
    base = piece.first
    entries = log[base : piece.end]
    if not piece.is_left:
        # A log's last batch is never taken out.
        if piece.end < stable_end and _drawn(base, "empty", 2):
            return b""
        return _sealed(base, piece.end, piece.producer, _TRANSACTIONAL, (0, 0), 0, b"")
    if entries[0].commits is not None:
        record = _record(0, 0, b"\x08" + _MARKERS[entries[0].commits] + b"\x0c" + bytes(6), 0, b"")
        kind = _TRANSACTIONAL | _CONTROL
        return _sealed(base, piece.end, piece.producer, kind, (0, 0), 1, record)
    stamps = [entry.copy.timestamp_ms if entry.copy else 0 for entry in entries]
    kind = 0 if piece.producer == NO_PRODUCER else _TRANSACTIONAL
    from_ms, largest_ms = stamps[0], max(stamps)
    if min(stamps) == largest_ms and _drawn(base, "time", 2):
        kind |= _APPEND_TIME
        from_ms -= 1_000_000
    body = b""
    for delta, (entry, stamp_ms) in enumerate(zip(entries, stamps, strict=True)):
        copy = entry.copy
        if copy is None:
            body += _record(delta, stamp_ms - from_ms, _NO_KEY_VALUE, 0, b"")
        else:
            count = len(copy.headers) + len(decoded(copy.added))
            of_copy = copy.key_value, count, encoded(copy.headers) + copy.added
            body += _record(delta, stamp_ms - from_ms, *of_copy)
    codec = _drawn(base, "codec", 10)
    if codec in _ENCODERS:
        kind, body = kind | codec, _ENCODERS[codec](body)
    times = from_ms, largest_ms
    return _sealed(base, piece.end, piece.producer, kind, times, len(entries), body)


def _record(delta: int, delta_ms: int, key_value: bytes, count: int, headers: bytes) -> bytes:
    record = b"\0" + varint(delta_ms) + varint(delta) + key_value + varint(count) + headers
    return varint(len(record)) + record


def _sealed(
    base: int, end: int, producer: int, kind: int, times: tuple[int, int], count: int, body: bytes
) -> bytes:
    octets = bytearray(_HEADER.size + len(body))
    length = len(octets) - _LENGTH_END
    fields = kind, end - base - 1, *times, producer, 0, 0, count
    _HEADER.pack_into(octets, 0, base, length, 0, 2, 0, *fields)
    octets[_HEADER.size :] = body
    struct.pack_into(">I", octets, _CRC_END - 4, crc32c(bytes(octets[_CRC_END:])))
    return bytes(octets)


def _drawn(offset: int, what: str, below: int) -> int:
    """A number below that one: by the offset, the same each time."""
    return crc32(f"{offset} {what}".encode()) % below
