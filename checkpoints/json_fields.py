"""JSON that is read back: values of the kind that they should be, or ValueError.

A checksum proves that the bytes are those that were written; not that this version wrote them.
Records in Kafka and Spark's files do not even have one.
"""

from __future__ import annotations

import json
import re
import reprlib
from pathlib import Path
from typing import Any

from duewheel.checkpoints import fs

# What reading values of another shape raises: what is not there, or is something else.
MISSHAPEN = (ValueError, LookupError, TypeError, AttributeError, RecursionError)

_PARTITION = re.compile(r"[0-9]{1,10}")


def write_json(path: Path, value: object) -> None:
    """Replace a file by JSON behind its CRC-32, durably."""
    text = json.dumps(value, separators=(",", ":")).encode()
    fs.replace_file(path, fs.checked_line(text))


def read_json(path: Path) -> Any:
    """What `write_json` has written.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError, RecursionError: it is damaged, or no JSON.
    """
    text = fs.checked_text(path.read_bytes())
    if text is None:
        raise ValueError("it does not match its checksum")
    return json.loads(text)


def integer(value: object) -> int:
    """A whole number of 64 bits: a slot, an offset, a length.

    Raises:
        ValueError: it is none.
    """
    if type(value) is not int or not -(2**63) <= value < 2**63:
        raise ValueError(f"{reprlib.repr(value)} is no whole number of 64 bits")
    return value


def name(value: object) -> str:
    """Text that can be written again.

    Raises:
        ValueError: it is none.
    """
    if type(value) is not str:
        raise ValueError(f"{reprlib.repr(value)} is no text")
    value.encode()
    return value


def partition_number(text: str) -> int:
    """A partition's number, which is the key of a JSON object and so text.

    Raises:
        ValueError: it is none.
    """
    if not _PARTITION.fullmatch(text) or int(text) >= 2**31:
        raise ValueError(f"{reprlib.repr(text)} is no partition")
    return int(text)
