"""Pages of a list of a topic's records, which dead letters and receipts share.

A list goes through the partitions in their order, and through each by offset. The page after a
record is named by its place, "partition@offset".
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from duewheel.errors import ConfigError

Place = tuple[int, int]  # partition and offset


def place_before(page: str | None) -> Place:
    """Returns the place after which a page begins; None is the first page.

    Raises:
        ConfigError: it names no place.
    """
    if page is None:
        return 0, -1
    match = re.fullmatch(r"(\d{1,9})@(\d{1,18})", page)
    if match is None:
        raise ConfigError(f"{page!r} is no page: give partition@offset of the last one in the list")
    return int(match[1]), int(match[2])


def ranges_after(
    after: Place, bounds: Mapping[int, tuple[int, int]]
) -> Iterator[tuple[int, int, int]]:
    """Yields partition, first offset and end of the records after a place; no range is empty.

    Args:
        bounds: first offset and end, by partition; the partitions rise.
    """
    for partition, (start, end) in bounds.items():
        if partition == after[0]:
            start = max(start, after[1] + 1)
        if partition >= after[0] and start < end:
            yield partition, start, end
