"""The rows of an outbox that the newest transaction has sent: a record in the state topic, one for
each relay.

The transaction that writes their timers writes it, under the key `relay:<name>`. The value is JSON:

    part  how many transactions with rows the relay has committed
    rows  base64 of the rows in the newest one, which may still be in the table: for each its `seq`,
          8 bytes, big-endian, and its `id`, 16 bytes. Other rows may be between them
"""

from __future__ import annotations

import struct
from base64 import b64decode, b64encode
from collections.abc import Iterable
from dataclasses import dataclass
from uuid import UUID

from duewheel.checkpoints.json_fields import CommandPosition

_ROW = struct.Struct(">q16s")


def key_of(relay: str) -> bytes:
    """The key of the records of a relay."""
    return b"relay:" + relay.encode()


@dataclass(frozen=True, slots=True)
class RelayPosition(CommandPosition):
    """The position of one relay; fields as in the module's head."""

    part: int = 0
    rows: str = ""

    def __post_init__(self) -> None:
        if self.part < 0 or len(b64decode(self.rows, validate=True)) % _ROW.size:
            raise ValueError(f"part {self.part} of rows of {_ROW.size} bytes")

    @property
    def named_rows(self) -> list[tuple[int, UUID]]:
        """The rows: (seq, id)."""
        return [(seq, UUID(bytes=octets)) for seq, octets in _ROW.iter_unpack(b64decode(self.rows))]

    def after(self, rows: Iterable[tuple[int, UUID]]) -> RelayPosition:
        """The position once one more transaction has sent these rows: (seq, id)."""
        packed = b"".join(_ROW.pack(seq, row_id.bytes) for seq, row_id in rows)
        return RelayPosition(self.part + 1, b64encode(packed).decode())

    @classmethod
    def decode(cls, value: bytes | None, relay: str) -> RelayPosition:
        """Decodes a record's value; None is the beginning. The name is for the error.

        Raises:
            RecoveryRefused: the bytes are no such position.
        """
        remedy = (
            "another --name sends all rows of the table, those too that are sent (docs/outbox.md)"
        )
        return cls.decoded(value, f"the relay {relay!r}", remedy)
