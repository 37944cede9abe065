"""Ends a task's reading of the topics that have had their share of a batch's bytes.

A batch is planned by offsets, behind which may be any number of bytes: a record batch of 4 kB may
hold 16 MiB, a record a megabyte. Each topic of a task has an equal part of the task's bytes, and is
read no further once it has had them; so a topic of large records costs the others nothing. Each
topic has one record batch at least.

The bytes are counted when a record batch has been decompressed: a task exceeds its part by one
record batch of each topic at most.
"""

from __future__ import annotations

from duewheel.schemas.batches import OffsetRanges, TopicPartition


class ByteBudget:
    """The bytes of one task.

    Attributes:
        ranges: that are to be read. Their ends fall where a topic has had its part.
    """

    def __init__(self, ranges: OffsetRanges, bytes_max: int) -> None:
        """
        Args:
            ranges: planned ones of the task.
            bytes_max: of all records, decompressed.
        """
        self.ranges = dict(ranges)
        topics = {topic for topic, _ in ranges}
        self._left = dict.fromkeys(topics, bytes_max // max(len(topics), 1))
        self._reached = {partition: first for partition, (first, _) in ranges.items()}
        self._early: dict[TopicPartition, int] = {}

    def took(self, partition: TopicPartition, octets: int, reached: int) -> None:
        """A record batch is read.

        Args:
            partition: its.
            octets: of its records.
            reached: the offset behind it.
        """
        topic = partition[0]
        self._left[topic] -= octets
        self._reached[partition] = reached
        if self._left[topic] <= 0:
            for each, (first, until) in self.ranges.items():
                if each[0] == topic and self._reached[each] < until:
                    self.ranges[each] = first, self._reached[each]
                    self._early[each] = self._reached[each]

    @property
    def early_ends(self) -> dict[TopicPartition, int]:
        """Where partitions were read no further, below the ends of their planned ranges."""
        return dict(self._early)
