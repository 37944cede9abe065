"""Lines of a file that is imported: bounded in memory, the same at every read."""

from __future__ import annotations

import io

import pytest

from duewheel.api.requests import TimerFields
from duewheel.errors import ConfigError
from duewheel.ops.file_import.exactly_once import Choice
from duewheel.ops.file_import.line_reader import FileLine, lines_of, next_chunk
from duewheel.ops.file_import.line_records import LINE_BYTES_MAX, fields_of


def test_a_chunk_is_bounded_in_lines_and_in_bytes() -> None:
    lines = lines_of(io.BytesIO(b"a\n" * 5 + b"b" * 99 + b"\n" + b"c\n" * 3))
    sizes = []
    while chunk := next_chunk(lines, 3, 50):
        sizes.append(len(chunk))
    assert sizes == [3, 3, 3]

    lines = lines_of(io.BytesIO((b"b" * 99 + b"\n") * 3))
    assert [len(next_chunk(lines, 1_000, 150)) for _ in range(3)] == [2, 1, 0]


def test_the_rest_of_a_long_line_is_known() -> None:
    long = b" " * (LINE_BYTES_MAX + 1) + b'{"topic": "orders"}\n'
    first, rest, other = lines_of(io.BytesIO(long + b"{}\n"))
    assert (len(first.content), first.is_rest) == (LINE_BYTES_MAX + 1, False)
    assert rest == FileLine(b'{"topic": "orders"}\n', 1, is_rest=True)
    assert other == FileLine(b"{}\n", 2)
    assert b"".join(each.digested for each in (first, rest, other)) == long + b"{}\n"


def test_a_line_of_the_most_bytes_has_no_rest() -> None:
    whole = b" " * LINE_BYTES_MAX + b"\n"
    first, other = lines_of(io.BytesIO(whole + b"{}"))
    assert (first.content, other) == (whole, FileLine(b"{}", 2))
    assert (first.digested, other.digested) == (whole, b"{}\n")


def test_the_newline_is_no_part_of_the_most_bytes() -> None:
    most = b'{"topic": "a"}'.ljust(LINE_BYTES_MAX)
    for line in (most, most + b"\n"):
        assert fields_of(line, TimerFields()) == {"topic": "a"}
    for line in (most + b" ", most + b" \n"):
        with pytest.raises(ConfigError, match=f"more than {LINE_BYTES_MAX} bytes"):
            fields_of(line, TimerFields())


@pytest.mark.parametrize("name", ["", "\udcff", "a b", "a/b", "jobs\n", "x" * 201])
def test_a_name_that_no_key_can_have_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="1 to 200 of a-z"):
        Choice(name)
    assert Choice("jobs-2027.01_x").name
