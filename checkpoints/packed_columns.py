"""Encodes JSON and columns of int64 as one value of bytes; large values are deflated.

    head       JSON, an object, one line; "columns" names the columns
    columns    one after the other, little-endian int64; NULL for a missing value

A value of INFLATED_FROM bytes or more is deflated, and so begins with another byte than "{". For a
smaller one that would cost more time than it saves: each transaction writes a record.
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
    """Deflates bytes that begin with "{", from INFLATED_FROM bytes on."""
    return data if len(data) < INFLATED_FROM else zlib.compress(data, _LEVEL)


def inflated(data: bytes) -> bytes:
    """Returns the argument of `deflated`.

    Raises:
        ValueError: the bytes are damaged, or would inflate to more than INFLATED_MAX bytes.
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
    """Encodes head and columns, not deflated yet.

    Args:
        head: JSON text of an object; `columns` is added.
        columns: of one length.
    """
    names = json.dumps([*columns], separators=(",", ":"))
    body = b"".join(column.astype("<i8").tobytes() for column in columns.values())
    return f'{head[:-1]},"columns":{names}}}\n'.encode() + body


def unpacked(value: bytes) -> tuple[dict[str, Any], dict[str, Int64]]:
    """Decodes the head and the columns of a `packed` value.

    Raises:
        ValueError, KeyError, TypeError: the value has another form.
    """
    text, _, body = inflated(value).partition(b"\n")
    head = json.loads(text)
    names = head.get("columns", [])
    if len(body) % (8 * max(1, len(names))):
        raise ValueError(f"{len(body)} bytes are no {len(names)} columns")
    columns = np.frombuffer(body, "<i8").astype(np.int64).reshape(max(1, len(names)), -1)
    return head, dict(zip(names, columns, strict=False))
