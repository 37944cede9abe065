"""How far an import has read its source: a record in the state topic, one for each import.

The transaction that writes timers writes it, under the key `import:<name>`. The value is JSON:

    source    what identifies the source: one of the same name that differs is another source
    place     where to go on; its fields are those of the kind of source
    read      how many entries of the source lie before the place
    written   how many of them were written, as timers or cancels

Invariant: an entry of the source was read if it lies before `place`, in the source's own order.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from duewheel.checkpoints.json_fields import MISSHAPEN, integer, name
from duewheel.errors import ConfigError, RecoveryRefused

Place = Mapping[str, Any]


def key_of(import_name: str) -> bytes:
    """The key of the records of an import."""
    return b"import:" + import_name.encode()


@dataclass(frozen=True, slots=True)
class ImportPosition:
    """The position of one import. See the module's head.

    Attributes:
        source: identifies it.
        place: empty: at the beginning.
        read, written: counts.
    """

    source: Mapping[str, str]
    place: Place = field(default_factory=dict)
    read: int = 0
    written: int = 0

    def moved(self, place: Place, read: int, written: int) -> ImportPosition:
        """The position behind more entries.

        Args:
            place: behind them.
            read, written: how many more.
        """
        return replace(self, place=place, read=self.read + read, written=self.written + written)

    def encode(self) -> bytes:
        """Encodes the record's value."""
        value = {
            "source": dict(self.source),
            "place": dict(self.place),
            "read": self.read,
            "written": self.written,
        }
        return json.dumps(value).encode()

    @classmethod
    def decode(
        cls, value: bytes | None, import_name: str, source: Mapping[str, str]
    ) -> ImportPosition:
        """Decodes the position in this source; the beginning for None.

        Args:
            value: of the record.
            import_name: for an error's text.
            source: the present one.

        Raises:
            ConfigError: the import of this name has begun with another source.
            RecoveryRefused: the bytes are no such position.
        """
        if value is None:
            return cls(source)
        try:
            found = json.loads(value)
            begun = {name(field): name(text) for field, text in found["source"].items()}
            place = {name(field): each for field, each in found["place"].items()}
            position = cls(source, place, integer(found["read"]), integer(found["written"]))
        except MISSHAPEN as error:
            raise RecoveryRefused(
                f"the position of the import {import_name!r} cannot be read: {error!r}"
            ) from error
        differences = [
            f"{field}: {begun.get(field)}, now {source.get(field)}"
            for field in sorted({*begun, *source})
            if begun.get(field) != source.get(field)
        ]
        if differences:
            raise ConfigError(
                f"the import {import_name!r} was begun with another source "
                f"({'; '.join(differences)}): give that one, or another --name"
            )
        return position
