"""The options and the output of lists that have pages."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import TypeVar

import click

from duewheel.api.model import Result
from duewheel.cli.arrow_output import write_table
from duewheel.cli.options import Command
from duewheel.cli.output import Printer, say

R = TypeVar("R", bound=Result)

_LIMIT = 100


def with_page(command: Command) -> Command:
    """Adds --limit, and --page, which names the last row that the user has."""
    command = click.option("--page", help="continue where the previous list has ended")(command)
    text = f"how many at most; by default {_LIMIT}, of arrow and parquet all"
    return click.option("--limit", type=click.IntRange(1), help=text)(command)


def show_page(
    read: Callable[[int], Iterator[R]],
    row: type[R],
    limit: int | None,
    output: Printer,
    line: Callable[[R], str],
    page_after: Callable[[R], str],
    *,
    of: str,
) -> None:
    """Prints the first `limit` rows. If there are no rows, a line on stderr says so; if there are
    more, it says which options list the next ones.

    Args:
        read: reads so many rows at most.
        row: their type.
        line: makes the text of a row.
        page_after: makes the --page after a row.
        of: the rows' name.
    """
    most = limit or (sys.maxsize - 1 if output.table_format else _LIMIT)
    rows = read(most + 1)
    last = show_rows(islice(rows, most), row, output, line)
    if last is None:
        say(f"no {of}")
    elif next(rows, None) is not None:
        say(f"more {of} follow: --page {page_after(last)}, or --limit")


def show_rows(
    rows: Iterable[R], row: type[R], output: Printer, line: Callable[[R], str]
) -> R | None:
    """Prints rows of a type, as lines or as columns; returns the last one."""
    if not output.table_format:
        return output.rows(rows, line)

    last = None

    def seen() -> Iterator[R]:
        nonlocal last
        for each in rows:
            last = each
            yield each

    write_table(output.table_format, row, seen())
    return last
