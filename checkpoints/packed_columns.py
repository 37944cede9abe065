"""Encodes JSON and columns of int64 as one value of bytes, which may be deflated (deflated.py).

head       JSON, an object, one line; "columns" names the columns
columns    one after the other, little-endian int64; NULL for a missing value
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from duewheel.checkpoints.deflated import inflated
from duewheel.schemas.arrays import Int64

NULL = int(np.iinfo(np.int64).min)


def packed(head: str, columns: Mapping[str, Int64]) -> bytes:
    """Encodes columns of one length, and a JSON object that gets their names as `columns`; not
    deflated yet.
    """
    names = json.dumps([*columns], separators=(",", ":"))
    body = b"".join(column.astype("<i8").tobytes() for column in columns.values())
    return f'{head[:-1]},"columns":{names}}}\n'.encode() + body


def unpacked(value: bytes) -> tuple[dict[str, Any], dict[str, Int64]]:
    """Decodes the head and the columns of a `packed` value; raises MISSHAPEN for another form."""
    text, _, body = inflated(value).partition(b"\n")
    head = json.loads(text)
    names = head.get("columns", [])
    if len(body) % (8 * max(1, len(names))):
        raise ValueError(f"{len(body)} bytes are no {len(names)} columns")
    columns = np.frombuffer(body, "<i8").astype(np.int64).reshape(max(1, len(names)), -1)
    return head, dict(zip(names, columns, strict=False))
