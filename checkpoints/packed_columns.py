"""JSON and columns of int64 in one value of bytes; large ones deflated.

    head       JSON, an object, one line; "columns" names the columns
    columns    one after the other, little-endian int64; NULL where there is no value

What is INFLATED_FROM bytes or longer is deflated, and so begins with another byte than "{". Below
that it is not worth the time: a record is written in each transaction.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from duewheel.schemas.arrays import Int64

NULL = int(np.iinfo(np.int64).min)
INFLATED_FROM = 64 * 1024
INFLATED_MAX = 64 * 1024 * 1024
_LEVEL = 1


def deflated(data: bytes) -> bytes:
    """The bytes, deflated if that is worth it. They begin with "{"."""
    return data if len(data) < INFLATED_FROM else zlib.compress(data, _LEVEL)


def inflated(data: bytes) -> bytes:
    """What `deflated` was given.

    Raises:
        ValueError: they are damaged, or would take more than INFLATED_MAX bytes.
    """
    if data[:1] == b"{":
        return data
    inflater = zlib.decompressobj()
    try:
        found = inflater.decompress(data, INFLATED_MAX)
    except zlib.error as error:
        raise ValueError(f"neither JSON nor deflated: {error}") from error
    if not inflater.eof:
        raise ValueError(f"cut short, or larger than {INFLATED_MAX} bytes")
    return found


def packed(head: str, columns: Mapping[str, Int64]) -> bytes:
    """Both in bytes, not deflated yet.

    Args:
        head: JSON text of an object; `columns` is added.
        columns: of one length.
    """
    names = json.dumps([*columns], separators=(",", ":"))
    body = b"".join(column.astype("<i8").tobytes() for column in columns.values())
    return f'{head[:-1]},"columns":{names}}}\n'.encode() + body


def unpacked(value: bytes) -> tuple[dict[str, Any], dict[str, Int64]]:
    """The head and the columns of what `packed` has made.

    Raises:
        ValueError, KeyError, TypeError: it is something else.
    """
    text, _, body = inflated(value).partition(b"\n")
    head = json.loads(text)
    names = head.get("columns", [])
    if len(body) % (8 * max(1, len(names))):
        raise ValueError(f"{len(body)} bytes are no {len(names)} columns")
    columns = np.frombuffer(body, "<i8").astype(np.int64).reshape(max(1, len(names)), -1)
    return head, dict(zip(names, columns, strict=False))
