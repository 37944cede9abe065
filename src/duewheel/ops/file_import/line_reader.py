"""Reads a file of lines in bounded parts.

A line above the bound (LINE_BYTES_MAX of a file) is read in parts, so that it needs no more memory
than another one. The first part is too long, and the others are the rest of a line: each is
refused, whatever it contains, because a rest may be a whole JSON object, though it was not written
as a line.
The parts have the number of their line; the position of an import counts them as lines.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from duewheel.api.requests import TimerFields
from duewheel.errors import ConfigError
from duewheel.ops.file_import.line_records import LINE_BYTES_MAX, Fields, fields_of


class Readable(Protocol):
    """A file, or a source that is read like one."""

    def readline(self, size: int, /) -> bytes:
        """The next line with its newline, or `size` bytes of it; nothing at the end."""


@dataclass(frozen=True, slots=True)
class FileLine:
    """A line, or a part of a long one."""

    content: bytes  # with the newline if there is one
    number: int  # of the line in the file, from 1
    is_rest: bool = False  # the line began in the part before
    bytes_max: int = LINE_BYTES_MAX  # without the newline

    @property
    def digested(self) -> bytes:
        """The bytes that stand for it in a digest: the last line of a file has a newline there,
        also before another line is added after it.
        """
        whole = len(self.content) <= self.bytes_max
        return self.content + b"\n" if whole and not self.content.endswith(b"\n") else self.content


def lines_of(file: Readable, bytes_max: int = LINE_BYTES_MAX) -> Iterator[FileLine]:
    """Reads the lines from the file's position to its end."""
    number, is_rest = 0, False
    while content := file.readline(bytes_max + 1):
        number += not is_rest
        yield FileLine(content, number, is_rest, bytes_max)
        is_rest = len(content) == bytes_max + 1 and not content.endswith(b"\n")


def fields_in(line: FileLine, defaults: TimerFields) -> Fields | None:
    """Parses a line as `fields_of`; None if it is empty.

    Raises:
        ConfigError: the line has no fields of a timer.
    """
    if line.is_rest:
        raise ConfigError(
            f"this is the rest of a line of more than {line.bytes_max} bytes: shorten it"
        )
    if not line.content.strip():
        return None
    return fields_of(line.content, defaults, line.bytes_max)


def next_chunk(lines: Iterator[FileLine], lines_max: int, bytes_max: int) -> list[FileLine]:
    """Takes the next lines, until they have `bytes_max` bytes or more, by the last one; none at the
    end.
    """
    chunk: list[FileLine] = []
    size = 0
    while len(chunk) < lines_max and size < bytes_max:
        line = next(lines, None)
        if line is None:
            break
        chunk.append(line)
        size += len(line.content)
    return chunk
