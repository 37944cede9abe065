"""Two alternating pages in a mapped file; the newest whole page is valid.

A write overwrites the older page, so a writer that dies at any instruction leaves the newer page
untouched. The sequence is stored last: a page with a sequence was once whole. Little-endian:

     0  u8  sequence     rises by one with every write; 0 = never written
     8  u4  length       of the payload, in bytes
    12  u4  crc          CRC-32 of sequence, length and payload
    16  u8  mark         equal to `sequence` once the page is marked; one aligned store, not under
                         the crc because it changes after the page exists
    24  ..  payload (commit_and_close_pages.py); a long one, JSON, is deflated

Rewriting 0.2 kB costs some microseconds; a temporary file and a rename cost 0.5–20 ms.
"""

from __future__ import annotations

import mmap
import struct
import zlib
from typing import NamedTuple

from duewheel.checkpoints.deflated import deflated, inflated
from duewheel.errors import DuewheelError

_HEAD = struct.Struct("<QII")
_MARK = struct.Struct("<Q")
_SEQUENCE_BYTES = 8
_PAYLOAD = _HEAD.size + _MARK.size
assert _HEAD.size == 16 and _PAYLOAD == 24


class Page(NamedTuple):
    """One whole page."""

    sequence: int  # how many pages had been written, this one included
    payload: bytes
    marked: bool  # whether `PagePair.mark` followed


def capacity(size: int) -> int:
    """Computes the payload bytes of a page of `size` bytes."""
    return size - _PAYLOAD


class PagePair:
    """The two pages at `offset`, `size` bytes each.

    Not thread-safe. One process writes at a time; readers in other processes may read at any
    moment, and get the newest whole page.
    """

    def __init__(self, mapped: mmap.mmap, offset: int, size: int) -> None:
        assert offset % 8 == 0 and size % 8 == 0
        self._mapped = mapped
        self._offsets = (offset, offset + size)
        self._capacity = capacity(size)

    def read(self) -> Page | None:
        """Returns the newest whole page; None if none is whole: `written` distinguishes damage from
        a new file.
        """
        # A writer that overtakes this reader can spoil both reads, but not many times in a row.
        for _ in range(100):
            for at in sorted(self._offsets, key=self._sequence_at, reverse=True):
                if (page := self._read_one(at)) is not None:
                    return page
            if not self.written():
                return None
        return None

    def write(self, payload: bytes) -> int:
        """Writes a new page, unmarked, and returns its sequence. The page is valid once its last
        byte is written.

        Raises:
            DuewheelError: the deflated payload is larger than a page.
        """
        assert payload[:1] != b"x", "_read_one takes such a payload as deflated"
        payload = deflated(payload)
        if len(payload) > self._capacity:
            raise DuewheelError(
                f"{len(payload)} bytes do not fit into a page of {self._capacity}: too many "
                "partitions or open hours for one data directory"
            )
        newest = self.read()
        sequence = newest.sequence + 1 if newest else 1
        at = self._offsets[sequence & 1]
        crc = _crc(sequence, payload)
        # The first 8 bytes come last, in one aligned store: with the new sequence before the new
        # payload, a kill could leave a page that only its checksum distinguishes from a whole one.
        self._store(at + _PAYLOAD, payload)
        head = _HEAD.pack(sequence, len(payload), crc)
        self._store(at + _SEQUENCE_BYTES, head[_SEQUENCE_BYTES:])
        self._store(at, head[:_SEQUENCE_BYTES])
        return sequence

    def mark(self, sequence: int) -> None:
        """Marks the page written as `sequence`."""
        at = self._offsets[sequence & 1]
        assert _HEAD.unpack_from(self._mapped, at)[0] == sequence, "only the newest page is marked"
        self._store(at + _HEAD.size, _MARK.pack(sequence))

    def marked(self) -> int:
        """Returns the sequence of the newest marked page, 0 without one. Verifies nothing, like
        `sequence`.
        """
        return max(int(_MARK.unpack_from(self._mapped, at + _HEAD.size)[0]) for at in self._offsets)

    def written(self) -> bool:
        """Returns whether a page was ever written: `read` must return one then."""
        return self.sequence() > 0

    def sequence(self) -> int:
        """Returns the sequence of the newest page, 0 before the first. Verifies no checksum: it
        only shows whether a page was written since.
        """
        return max(map(self._sequence_at, self._offsets))

    def _sequence_at(self, at: int) -> int:
        return int(_HEAD.unpack_from(self._mapped, at)[0])

    def _store(self, at: int, data: bytes) -> None:
        self._mapped[at : at + len(data)] = data

    def _read_one(self, at: int) -> Page | None:
        sequence, length, crc = _HEAD.unpack_from(self._mapped, at)
        if sequence == 0 or length > self._capacity:
            return None
        if self._offsets[sequence & 1] != at:  # `write` alternates by the sequence
            return None
        payload = self._mapped[at + _PAYLOAD : at + _PAYLOAD + length]
        if _crc(sequence, payload) != crc:
            return None
        if payload[:1] == b"x":
            try:
                payload = inflated(payload)
            except ValueError:
                return None
        (mark,) = _MARK.unpack_from(self._mapped, at + _HEAD.size)
        return Page(sequence, payload, mark == sequence)


def _crc(sequence: int, payload: bytes) -> int:
    return zlib.crc32(payload, zlib.crc32(struct.pack("<QI", sequence, len(payload))))
