"""Records in JSON: one declaration of the fields, and a check of the type of each value read.

A record is a dataclass or a NamedTuple. Its annotations are the declaration: whole numbers, text,
truth values, enums, records, optional values of these, tuples, and mappings by text or partition.
A StateFile is a record in a file of its own, a CommandPosition one in the state topic.

A checksum proves that the bytes are unchanged, not that this version wrote them. Records in Kafka
and Spark's files have no checksum at all. Without these checks a value of another type would raise
an unrelated error later, or be written back.
"""

from __future__ import annotations

import functools
import json
import re
import reprlib
from collections.abc import Callable, Mapping
from enum import Enum
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, ClassVar, Self, TypeVar, get_args, get_origin, get_type_hints

from duewheel.checkpoints.fs import HOST_FS, FileSystem, checked_line, checked_text
from duewheel.errors import RecoveryRefused

T = TypeVar("T")

# The errors of reading a value of another shape: a missing key, another type.
MISSHAPEN = (ValueError, LookupError, TypeError, AttributeError, RecursionError)

_PARTITION = re.compile(r"[0-9]{1,10}")


class StateFile:
    """A record in a file of the data directory, as JSON after its CRC-32. Subclasses are frozen
    dataclasses; a `__post_init__` may refuse values with a ValueError.
    """

    __slots__ = ()

    file_name: ClassVar[str]
    durable: ClassVar[bool] = True  # whether a loss of power must leave the file as written

    def write(self, directory: Path, fs: FileSystem = HOST_FS) -> None:
        """Replaces the file.

        Raises:
            OSError: the disk is full, or fails; the old file stays.
        """
        replace = write_json if self.durable else swap_json
        replace(directory / self.file_name, to_json(self), fs)

    @classmethod
    def read(cls, directory: Path) -> Self | None:
        """Reads the file; None if it is missing, damaged or misshapen."""
        return read_record(cls, directory / cls.file_name)


class CommandPosition:
    """The position of a command in its source, as JSON in a record of the state topic. Subclasses
    are frozen dataclasses that begin by their defaults; a `__post_init__` may refuse values with a
    ValueError.
    """

    __slots__ = ()

    def encode(self) -> bytes:
        return json.dumps(to_json(self)).encode()

    @classmethod
    def decoded(cls, value: bytes | None, of: str, remedy: str) -> Self:
        """Decodes a record's value; None is the beginning. `of` and `remedy` are for the error.

        Raises:
            RecoveryRefused: the bytes are no such position.
        """
        if value is None:
            return cls()
        try:
            position: Self = from_json(cls, json.loads(value))
        except MISSHAPEN as error:
            text = f"the position of {of} cannot be read: {error!r}; {remedy}"
            raise RecoveryRefused(text) from error
        return position


def read_record(kind: type[T], path: Path) -> T | None:
    """Reads a record from a file of `write_json`; None if it is missing, damaged or misshapen."""
    try:
        record: T = from_json(kind, read_json(path))
    except (FileNotFoundError, *MISSHAPEN):
        return None
    return record


def to_json(value: Any) -> Any:
    """Converts a record, or a mapping of records, for `json.dumps`."""
    if isinstance(value, Mapping):
        topics: dict[Any, Any] = {}
        for key, each in value.items():
            if isinstance(key, tuple):  # a partition
                topics.setdefault(key[0], {})[key[1]] = to_json(each)
            else:
                topics[key] = to_json(each)
        return topics
    if names := _field_names(value):
        return {each: to_json(getattr(value, each)) for each in names}
    return value.value if isinstance(value, Enum) else value


def from_json(kind: Any, raw: object) -> Any:
    """Makes a value of this type from the result of `json.loads`. Ignores unknown fields; raises
    MISSHAPEN if a field is missing, or a value has another type.
    """
    return _reader(kind)(raw)


@functools.cache
def _reader(kind: Any) -> Callable[[Any], Any]:
    if kind in _SIMPLE:
        return _SIMPLE[kind]
    origin, args = get_origin(kind), get_args(kind)
    if origin is None:
        return _class_reader(kind)
    if origin is UnionType:
        (only,) = (_reader(each) for each in args if each is not NoneType)
        return lambda raw: None if raw is None else only(raw)
    if origin is tuple:
        return _tuple_reader(args)
    assert origin is Mapping, kind
    value = _reader(args[1])
    if args[0] is str:
        return lambda raw: {name(each): value(of) for each, of in raw.items()}
    return lambda raw: {
        (name(topic), partition_number(number)): value(of)
        for topic, numbers in raw.items()
        for number, of in numbers.items()
    }


def _class_reader(kind: Any) -> Callable[[Any], Any]:
    if issubclass(kind, Enum):
        simple = integer if issubclass(kind, int) else name
        return lambda raw: kind(simple(raw))
    hints = get_type_hints(kind)
    readers = {each: _reader(hints[each]) for each in _field_names(kind)}
    return lambda raw: kind(**{each: read(raw[each]) for each, read in readers.items()})


def _field_names(record: Any) -> tuple[str, ...]:
    """The fields of a NamedTuple or dataclass; `dataclasses` takes `health` too long to import."""
    names: tuple[str, ...] = getattr(record, "__match_args__", ())
    return names


def _tuple_reader(kinds: tuple[Any, ...]) -> Callable[[Any], Any]:
    readers = [_reader(kind) for kind in kinds if kind is not ...]

    def read(raw: object) -> tuple[Any, ...]:
        if type(raw) is not list:
            raise ValueError(f"{reprlib.repr(raw)} is no list")
        several = readers * len(raw) if ... in kinds else readers
        return tuple(one(each) for one, each in zip(several, raw, strict=True))

    return read


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


def _truth(value: object) -> bool:
    if type(value) is not bool:
        raise ValueError(f"{reprlib.repr(value)} is no truth value")
    return value


_SIMPLE: Mapping[Any, Callable[[Any], Any]] = {int: integer, str: name, bool: _truth}


def _text(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
