"""Reads JSON files, and checks the type of each value.

A checksum proves that the bytes are unchanged, not that this version wrote them. Records in Kafka
and Spark's files have no checksum at all. Without these checks a value of another type would raise
an unrelated error later, or be written back.
"""

from __future__ import annotations

import json
import re
import reprlib
from pathlib import Path
from typing import Any

from duewheel.checkpoints.fs import FileSystem, checked_line, checked_text

# The errors of reading a value of another shape: a missing key, another type.
MISSHAPEN = (ValueError, LookupError, TypeError, AttributeError, RecursionError)

_PARTITION = re.compile(r"[0-9]{1,10}")


def write_json(path: Path, value: object, fs: FileSystem) -> None:
    """Replaces a file by JSON after its CRC-32, durably."""
    fs.replace_file(path, checked_line(_text(value)))


def swap_json(path: Path, value: object, fs: FileSystem) -> None:
    """Replaces a file like `write_json`, without a sync: for content that a new start does not
    need.
    """
    fs.swap_file(path, checked_line(_text(value)))


def read_json(path: Path) -> Any:
    """Reads a file of `write_json`.

    Raises:
        FileNotFoundError: the file is missing.
        ValueError, RecursionError: the file is damaged, or no JSON.
    """
    text = checked_text(path.read_bytes())
    if text is None:
        raise ValueError("the content does not match its checksum")
    return json.loads(text)


def integer(value: object) -> int:
    """Returns the value, a whole number of 64 bits; raises ValueError for another one."""
    if type(value) is not int or not -(2**63) <= value < 2**63:
        raise ValueError(f"{reprlib.repr(value)} is no whole number of 64 bits")
    return value


def name(value: object) -> str:
    """Returns the value, text that can be encoded as UTF-8; raises ValueError for another one."""
    if type(value) is not str:
        raise ValueError(f"{reprlib.repr(value)} is no text")
    value.encode()
    return value


def partition_number(text: str) -> int:
    """Parses a partition's number from the key of a JSON object."""
    if not _PARTITION.fullmatch(text) or int(text) >= 2**31:
        raise ValueError(f"{reprlib.repr(text)} is no partition")
    return int(text)


def _text(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
