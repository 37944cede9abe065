"""Pages of a list of a topic's records, which `dlq list`, `receipts` and the API share.

A list goes through the partitions in their order, and through each by offset. The page behind a
record is named by its place, "partition@offset".
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from duewheel.errors import ConfigError

Place = tuple[int, int]  # partition and offset
BEFORE_ALL: Place = (0, -1)


def parsed_place(page: str) -> Place | None:
    """Parses "partition@offset"; returns None for anything else."""
    match = re.fullmatch(r"(\d{1,9})@(\d{1,18})", page)
    return None if match is None else (int(match[1]), int(match[2]))


def place_before(page: str | None) -> Place:
    """Returns the place behind which a page begins; None is the first page.

    Raises:
        ConfigError: it names no place.
    """
    place = BEFORE_ALL if page is None else parsed_place(page)
    if place is None:
        raise ConfigError(f"{page!r} is no page: take `next` of the page before")
    return place


def ranges_behind(
    after: Place, bounds: Mapping[int, tuple[int, int]]
) -> Iterator[tuple[int, int, int]]:
    """Yields what lies behind a place: partition, first offset, end. No range is empty.

    Args:
        after: the place.
        bounds: first offset and end, by partition, rising.
    """
    for partition, (start, end) in bounds.items():
        if partition == after[0]:
            start = max(start, after[1] + 1)
        if partition >= after[0] and start < end:
            yield partition, start, end
