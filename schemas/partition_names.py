"""Partitions as Kafka's tools name them: `orders-3` is partition 3 of the topic orders."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

T = TypeVar("T")


def partition_name(partition: tuple[str, int]) -> str:
    """Returns the name of a partition.

    >>> partition_name(("a-b", 3))
    'a-b-3'
    """
    return f"{partition[0]}-{partition[1]}"


def partition_named(name: str) -> tuple[str, int]:
    """Returns the partition of a name that `partition_name` has made.

    >>> partition_named("a-b-3")
    ('a-b', 3)
    """
    topic, _, number = name.rpartition("-")
    return topic, int(number)


def by_name(values: Mapping[tuple[str, int], T]) -> dict[str, T]:
    """Returns the values by name of the partition, topics in order, each by number."""
    return {partition_name(partition): value for partition, value in sorted(values.items())}
