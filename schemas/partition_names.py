"""Partitions as Kafka's tools name them: `orders-3` is partition 3 of the topic orders, and
`orders-3@17` its record at offset 17.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TypeVar

T = TypeVar("T")

PARTITIONS_MAX = 2**31  # of a topic: Kafka numbers them by signed 32-bit integers
_OFFSET = r"@(?P<offset>[0-9]{1,19})"
_PARTITION = re.compile(r"(?P<topic>.+)-(?P<number>[0-9]{1,9})")
_RECORD = re.compile(rf"(?P<partition>.+){_OFFSET}")
RECORD_PATTERN = f"^{_PARTITION.pattern}{_OFFSET}$"
"""Matches the names that `record_named` takes, in a column."""
_SHOWN = 10


def partition_name(partition: tuple[str, int]) -> str:
    """Returns the name of a partition.

    >>> partition_name(("a-b", 3))
    'a-b-3'
    """
    return f"{partition[0]}-{partition[1]}"


def partition_named(name: str) -> tuple[str, int]:
    """Returns the partition of a name.

    >>> partition_named("a-b-3")
    ('a-b', 3)

    Raises:
        ValueError: it names none.
    """
    topic, number = _parts(_PARTITION, name)
    return topic, int(number)


def record_named(name: str) -> tuple[tuple[str, int], int]:
    """Returns partition and offset of a record's name.

    >>> record_named("a-b-3@17")
    (('a-b', 3), 17)

    Raises:
        ValueError: it names none.
    """
    partition, offset = _parts(_RECORD, name)
    return partition_named(partition), int(offset)


def record_if_named(name: str) -> tuple[tuple[str, int], int] | None:
    """As `record_named`, of a name that anyone may have written; None: it names none."""
    try:
        return record_named(name)
    except ValueError:
        return None


def _parts(pattern: re.Pattern[str], name: str) -> tuple[str, ...]:
    match = pattern.fullmatch(name)
    if match is None:
        raise ValueError(f"{name!r} is no name of a partition or record")
    return match.groups()


def some_of(names: Iterable[str]) -> str:
    """Returns the first names, for an error's text."""
    some = sorted(set(names))
    return ", ".join(some[:_SHOWN]) + (" …" if len(some) > _SHOWN else "")


def by_name(values: Mapping[tuple[str, int], T]) -> dict[str, T]:
    """Returns the values by name of the partition, topics in order, each by number."""
    return {partition_name(partition): value for partition, value in sorted(values.items())}
