"""Deflates large values that begin with "{", such as JSON.

A value of DEFLATED_FROM bytes or more is deflated, and so begins with another byte. For a smaller
one that would cost more time than it saves: each transaction writes a record.
"""

from __future__ import annotations

import zlib

DEFLATED_FROM = 64 * 1024
INFLATED_MAX = 64 * 1024 * 1024
_LEVEL = 1


def deflated(data: bytes) -> bytes:
    """Deflates bytes that begin with "{", from DEFLATED_FROM bytes on."""
    assert len(data) <= INFLATED_MAX, "`inflated` refuses it"
    return data if len(data) < DEFLATED_FROM else zlib.compress(data, _LEVEL)


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
