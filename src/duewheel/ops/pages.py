"""Pages of lists: of pending timers, and of the records of a topic.

A list of records goes through the partitions in their order, and through each by offset. The page
after a record is named by its position, "partition@offset".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing
from typing import TypeVar

import structlog

from duewheel.deadline import Deadline
from duewheel.errors import ConfigError

log = structlog.get_logger(__name__)

R = TypeVar("R")
# Rows of a list, and the name of the page after them.
Parts = Generator[tuple[list[R], str], None, None]


def rows_of_parts(parts: Parts[R]) -> Iterator[R]:
    """Yields all rows."""
    with closing(parts):
        yield from (row for rows, _ in parts for row in rows)


def page_of_parts(
    parts: Parts[R], limit: int, within_s: float, name: Callable[[R], str]
) -> tuple[list[R], str | None]:
    """The first rows, and the page after them; None: there is none.

    A page ends early after `within_s`, because the next match may be far: with fewer rows, or none.

    Args:
        name: makes the name of the page after a row.
    """
    deadline, rows = Deadline(within_s), list[R]()
    with closing(parts):
        for found, reached in parts:
            rows += found
            if len(rows) > limit:  # a row after the last of this page: there is a next page
                return rows[:limit], name(rows[limit - 1])
            if deadline.is_over:
                return rows, reached
    return rows, None


def position_text(partition: int, offset: int) -> str:
    """The name of a position; `position_in` parses it."""
    return f"{partition}@{offset}"


def position_in(page: str | None) -> tuple[int, int]:
    """Partition and offset after which a page begins; None is the first page.

    Raises:
        ConfigError: it names no position.
    """
    if page is None:
        return 0, -1
    match = re.fullmatch(r"(\d{1,9})@(\d{1,18})", page)
    if match is None:
        raise ConfigError(f"{page!r} is no page: give partition@offset of the last one in the list")
    return int(match[1]), int(match[2])


def ranges_after(
    after: tuple[int, int], bounds: Mapping[int, tuple[int, int]]
) -> Iterator[tuple[int, int, int]]:
    """Yields partition, first offset and end of the records after a position; no range is empty.
    Logs if it leaves out offsets between the position and the first one.

    Args:
        bounds: first offset and end, by partition; the partitions rise.
    """
    for partition, (start, end) in bounds.items():
        if partition == after[0]:
            if 0 <= after[1] < start - 1:
                log.warning(
                    "the page does not begin after its position: the records between were "
                    "removed from the topic, or are before the first ones that are wanted",
                    page=position_text(*after),
                    first=position_text(partition, start),
                )
            start = max(start, after[1] + 1)
        if partition >= after[0] and start < end:
            yield partition, start, end
