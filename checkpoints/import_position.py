"""How many lines of a file an import has sent: a record in the state topic, one for each import.

The transaction that writes timers writes it, under the key `import:<name>`. The value is JSON:

    lines     how many lines were read
    sha256    of these lines' bytes, each with a newline: a file that begins with other lines is
              another file
    written   how many of them were written, as timers or cancels
    ends      of copied topics, which may grow: where the first transaction found the end of each
              partition. Later records are not read; empty for a file
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256

from duewheel.checkpoints.json_fields import CommandPosition

_NOTHING = sha256().hexdigest()


def key_of(import_name: str) -> bytes:
    """The key of the records of an import."""
    return b"import:" + import_name.encode()


@dataclass(frozen=True, slots=True)
class ImportPosition(CommandPosition):
    """The position of one import; fields as in the module's head."""

    lines: int = 0
    sha256: str = _NOTHING
    written: int = 0
    ends: Mapping[tuple[str, int], int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not 0 <= self.written <= self.lines:
            raise ValueError(f"{self.written} of {self.lines} lines are written")

    @classmethod
    def decode(cls, value: bytes | None, import_name: str) -> ImportPosition:
        """Decodes a record's value; None is the beginning. The name is for the error.

        Raises:
            RecoveryRefused: the bytes are no such position.
        """
        remedy = "another --name begins at the first line, and sends those once more that are sent"
        return cls.decoded(value, f"the import {import_name!r}", remedy)
