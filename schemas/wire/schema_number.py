"""The number of a value's schema, as the serializers of schema registries write it.

    0, number      in the value: a byte 0, the number in 4 bytes from 1 on (int32, big-endian), and
                   then the body
    0, number      likewise in the header __value_schema_id; the value is the body
    1, UUID        in that header: 16 bytes in the place of the number

After number or UUID, Protobuf has the place of the message in its file.
"""

from __future__ import annotations

from collections.abc import Iterable
from uuid import UUID

import numpy as np

from duewheel.schemas.arrays import Bool
from duewheel.schemas.wire.spans import Spans

HEADER = "__value_schema_id"
_BYTES = 5  # of 0 and the number


def with_schema_number(values: Spans) -> Bool:
    """Which values begin with the number of a schema; a null does not."""
    framed = values.length >= _BYTES
    rows = np.flatnonzero(framed)
    octets = np.asarray(values.octets)
    first = octets[values.start[rows, None] + np.arange(_BYTES)]
    framed[rows] = (first[:, 0] == 0) & (first[:, 1] < 0x80) & first[:, 1:].any(1)
    return framed


def schema_and_body(
    headers: Iterable[tuple[str, bytes | None]], value: bytes
) -> tuple[int | UUID, bytes] | None:
    """The schema of a value and its body, which begins with Protobuf's place; None: it names no
    schema. Of several headers the first counts, as for the deserializers.
    """
    named = next((each for name, each in headers if name == HEADER and each is not None), b"")
    if named[:1] == b"\1" and len(named) > 16:
        return UUID(bytes=named[1:17]), named[17:] + value
    for place, body in ((named, value), (value, b"")):
        if place[:1] == b"\0" and len(place) >= _BYTES:
            number = int.from_bytes(place[1:_BYTES], signed=True)
            if number > 0:
                return number, place[_BYTES:] + body
    return None
