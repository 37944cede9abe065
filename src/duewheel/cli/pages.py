"""The options and the output of lists that have pages."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice

import click

from duewheel.cli.options import Command
from duewheel.cli.output import Printer, R, say


def with_page(most: int | None = None) -> Callable[[Command], Command]:
    """Adds --limit, `most` at most, and --page, the place of the last row that the user has."""

    def decorate(command: Command) -> Command:
        command = click.option("--page", help="continue where the previous list has ended")(command)
        limit = click.IntRange(1, most)
        return click.option("--limit", type=limit, default=100, help="how many at most")(command)

    return decorate


def show_page(
    rows: Iterator[R],
    limit: int,
    output: Printer,
    line: Callable[[R], str],
    place: Callable[[R], str],
    *,
    of: str,
) -> None:
    """Prints the first `limit` rows. If there are no rows, a line on stderr says so; if there are
    more, it says which options list the next ones.

    Args:
        line: makes the text of a row.
        place: makes the --page after a row.
        of: the rows' name.
    """
    last = output.rows(islice(rows, limit), line)
    if last is None:
        say(f"no {of}")
    elif next(rows, None) is not None:
        say(f"more {of} follow: --page {place(last)}, or --limit")
