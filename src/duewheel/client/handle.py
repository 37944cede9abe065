"""Recall handles: the text by which a program cancels or reschedules a timer later.

A handle is text that is safe in URLs, headers and file names: base64 (RFC 4648 §5, no padding) of

    version   u1  1
    partition i4  of the timer topic                      big-endian
    offset    i8  of the timer's record
    due_ms    i8  epoch ms; for people, and to detect another record at this offset
    length    u1  of the topic's name
    topic         the timer topic, ASCII
    id            the timer's id, UTF-8; empty: the default one, "topic-partition@offset"
    checksum  u4  CRC-32 of a fixed word and all of the above

The checksum distinguishes a handle from other text, and detects changed or truncated handles. It is
no signature: a client with write access to the timer topic can cancel timers with or without a
forged handle. This module imports none of the engine's libraries.
"""

from __future__ import annotations

import base64
import binascii
import re
import struct
import zlib
from dataclasses import dataclass
from typing import Self

from duewheel.errors import InvalidTimer
from duewheel.schemas.header_names import ID_BYTES_MAX
from duewheel.schemas.name_patterns import may_name_topic

VERSION = 1
_HEAD = struct.Struct(">BiqqB")
_CHECKSUM = struct.Struct(">I")
_SEED = zlib.crc32(b"duewheel recall handle")
TEXT = r"^[A-Za-z0-9_-]{35,}$"  # of 26 bytes or more
_DUE_MS_MAX = 2**63 - 1  # ingest refuses later ones; capped here, the field cannot overflow


@dataclass(frozen=True, slots=True)
class RecallHandle:
    """Names one timer.

    >>> handle = RecallHandle("orders.delayed", 3, 17, 1_800_000_000_000, "order 8821")
    >>> RecallHandle.decode(handle.encode()) == handle
    True
    >>> RecallHandle.is_one(handle.encode()[:-1]), RecallHandle.is_one("order 8821")
    (False, False)

    Attributes:
        timer_topic, partition, offset: of the timer's record.
        due_ms: due time, epoch ms.
        id: the timer's id, given or default.
    """

    timer_topic: str
    partition: int
    offset: int
    due_ms: int
    id: str

    @property
    def place(self) -> str:
        """The record as topic-partition@offset, which is also the default id."""
        return f"{self.timer_topic}-{self.partition}@{self.offset}"

    def encode(self) -> str:
        """Encodes the handle as text; see the module's head."""
        topic = self.timer_topic.encode()
        timer_id = b"" if self.id == self.place else self.id.encode()
        due_ms = min(max(self.due_ms, -_DUE_MS_MAX), _DUE_MS_MAX)
        head = _HEAD.pack(VERSION, self.partition, self.offset, due_ms, len(topic))
        content = head + topic + timer_id
        checksum = _CHECKSUM.pack(zlib.crc32(content, _SEED))
        return base64.urlsafe_b64encode(content + checksum).decode().rstrip("=")

    @classmethod
    def decode(cls, text: str) -> Self:
        """Parses a handle.

        Raises:
            InvalidTimer: the text is no handle, a damaged one, or one of another version.
        """
        content = cls._content(text)
        if content is None:
            raise InvalidTimer(f"{text!r} is no recall handle, or was changed or cut short")
        if content[0] != VERSION:
            raise InvalidTimer(
                f"the recall handle has version {content[0]}, this is version {VERSION}: "
                "another version of duewheel has made it"
            )
        _, partition, offset, due_ms, length = _HEAD.unpack_from(content)
        topic, timer_id = (part.decode(errors="replace") for part in _split(content, length))
        if min(partition, offset) < 0 or not may_name_topic(topic):
            raise InvalidTimer("the recall handle has no valid partition and offset: it is forged")
        return cls(topic, partition, offset, due_ms, timer_id or f"{topic}-{partition}@{offset}")

    @classmethod
    def is_one(cls, text: str) -> bool:
        """Returns whether the text is an undamaged handle, of any version."""
        return cls._content(text) is not None

    @classmethod
    def _content(cls, text: object) -> bytes | None:
        """Returns the bytes before the checksum; None if that is wrong."""
        if not isinstance(text, str) or not re.fullmatch(TEXT, text):
            return None  # the decoder would skip other characters: two texts for one handle
        try:
            content = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
        except binascii.Error:
            return None
        if base64.urlsafe_b64encode(content).decode().rstrip("=") != text:
            return None  # unused bits of the last character were changed
        content, checksum = content[: -_CHECKSUM.size], content[-_CHECKSUM.size :]
        whole = _CHECKSUM.pack(zlib.crc32(content, _SEED)) == checksum
        return content if whole and len(content) >= _HEAD.size else None


def _split(content: bytes, length: int) -> tuple[bytes, bytes]:
    """Splits topic and id, which follow the fixed fields."""
    end = _HEAD.size + length
    return content[_HEAD.size : end], content[end:]


def id_bytes(timer_id: str) -> bytes:
    """Encodes a timer's id for a header.

    Raises:
        InvalidTimer: ingest would not accept the id.
    """
    try:
        encoded = timer_id.encode()
    except (AttributeError, UnicodeEncodeError) as error:
        raise InvalidTimer(f"the id {timer_id!r} is no text that UTF-8 can encode") from error
    if not 1 <= len(encoded) <= ID_BYTES_MAX:
        raise InvalidTimer(f"the id has {len(encoded)} bytes, not 1 to {ID_BYTES_MAX}")
    return encoded
