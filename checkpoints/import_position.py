"""How many lines of a file an import has sent: a record in the state topic, one for each import.

The transaction that writes timers writes it, under the key `import:<name>`. The value is JSON:

    lines     how many lines were read
    sha256    of these lines' bytes, each with a newline: a file that begins with other lines is
              another file
    written   how many of them were written, as timers or cancels
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from hashlib import sha256

from duewheel.checkpoints.json_fields import MISSHAPEN, from_json, to_json
from duewheel.errors import RecoveryRefused

_NOTHING = sha256().hexdigest()


def key_of(import_name: str) -> bytes:
    """The key of the records of an import."""
    return b"import:" + import_name.encode()


@dataclass(frozen=True, slots=True)
class ImportPosition:
    """The position of one import; fields as in the module's head."""

    lines: int = 0
    sha256: str = _NOTHING
    written: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.written <= self.lines:
            raise ValueError(f"{self.written} of {self.lines} lines are written")

    def encode(self) -> bytes:
        return json.dumps(to_json(self)).encode()

    @classmethod
    def decode(cls, value: bytes | None, import_name: str) -> ImportPosition:
        """Decodes a record's value; None is the beginning. The name is for the error.

        Raises:
            RecoveryRefused: the bytes are no such position.
        """
        if value is None:
            return cls()
        try:
            position: ImportPosition = from_json(cls, json.loads(value))
            return position
        except MISSHAPEN as error:
            raise RecoveryRefused(
                f"the position of the import {import_name!r} cannot be read: {error!r}; another "
                "--name begins at the first line, and sends those once more that are sent"
            ) from error
