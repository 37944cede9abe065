"""Ends a task's reading where its share of a batch's bytes is used.

A batch is planned by offsets, which do not show how many bytes the records have: a record batch of
4 kB may have 16 MiB, a record a megabyte. So a task reads its ranges in rounds. In a round each
topic that has unread offsets gets an equal part of the bytes that are left, and each of its
partitions an equal part of that; unused bytes are shared in the next round. So a topic of large
records costs the other topics nothing, and a partition with a backlog costs the other partitions
nothing.

The bytes are counted when a record batch has been decompressed. Some records take longer than their
bytes. A cancel counts as CANCEL_BYTES: 300,000 of one producer take the wheel 3 s, and the next
batch would wait. So does a timer with `keep`, which is looked up like a cancel. A header counts as
HEADER_BYTES, if the record's headers have fewer: a task reads one of 2 bytes no faster than 16
ordinary bytes. A topic may exceed its part by one record batch; its other partitions are then read
no further in this round. The order of the partitions differs from round to round, so no partition
always loses by this, or always comes last in a broker's answer.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator

import numpy as np

from duewheel.schemas.batches import OffsetRanges, TimerBatch, TopicPartition
from duewheel.schemas.columns import lengths

CANCEL_BYTES = 1 << 10
HEADER_BYTES = 16
MESSAGE_BYTES = 16 << 10  # as many count as a message of a quota


class ByteBudget:
    """The bytes of one task for its planned ranges: `bytes_max` of all records, decompressed."""

    def __init__(self, ranges: OffsetRanges, bytes_max: int) -> None:
        self._ends = {partition: until for partition, (_, until) in ranges.items()}
        self._firsts = {partition: first for partition, (first, _) in ranges.items()}
        self._reached = dict(self._firsts)
        self._octets = Counter[str]()  # of each topic, of the offsets that were read
        self._left = bytes_max
        self._round: dict[TopicPartition, tuple[int, int]] = {}
        self._left_of_topic: dict[str, int] = {}
        self._left_of_partition: dict[TopicPartition, int] = {}
        # Of the topics whose part of the round is not used up, the partitions.
        self._going_on: dict[str, list[TopicPartition]] = {}

    def rounds(self) -> Iterator[OffsetRanges]:
        """The ranges of each round. `took` lowers their ends while they are read."""
        chance = random.Random(repr(self._reached))  # repeatable, and another one for other offsets
        while (unread := self._unread()) and (self._left > 0 or not self._round):
            of_topic: dict[str, list[TopicPartition]] = {}
            for each in unread:
                of_topic.setdefault(each[0], []).append(each)
            part = self._left // len(of_topic)
            self._left_of_topic, self._going_on = dict.fromkeys(of_topic, part), of_topic
            self._left_of_partition = {each: part // len(of_topic[each[0]]) for each in unread}
            order = chance.sample(unread, len(unread))
            self._round = {each: (self._reached[each], self._ends[each]) for each in order}
            yield self._round
            # Offsets that retention has deleted are passed without a record batch.
            for each, (_, until) in self._round.items():
                self._reached[each] = max(self._reached[each], until)

    def took(self, partition: TopicPartition, octets: int, reached: int, share: int = 0, /) -> None:
        """Counts a record batch that was read: the bytes of its records (0 where offsets have no
        committed record), the offset after its last one, and the share of the bytes that offsets
        within the range have.
        """
        self._reached[partition] = reached
        self._octets[partition[0]] += share
        self._count(partition, octets)

    def parsed(self, timers: TimerBatch) -> None:
        """Counts the cancels, the timers that keep, and the small headers, among records that were
        taken before.
        """
        small = np.maximum(HEADER_BYTES * timers.header_count - lengths(timers.headers), 0)
        asks = timers.cancels | timers.keeps
        number = len(timers.partitions)
        headers, requests = (
            np.bincount(timers.partition, weights, number).astype(np.int64)
            for weights in (small, asks)
        )
        for each in np.flatnonzero(headers + requests).tolist():
            partition = timers.partitions[each]
            self._octets[partition[0]] += int(headers[each])
            self._count(partition, int(headers[each] + requests[each] * CANCEL_BYTES))

    def _count(self, partition: TopicPartition, octets: int) -> None:
        topic = partition[0]
        self._left -= octets
        self._left_of_topic[topic] -= octets
        self._left_of_partition[partition] -= octets
        if self._left_of_topic[topic] <= 0:
            # Once: each count of a topic with 10,000 partitions would walk them all again.
            for each in self._going_on.pop(topic, ()):
                self._end_round_of(each)
        elif self._left_of_partition[partition] <= 0:
            self._end_round_of(partition)

    @property
    def early_ends(self) -> dict[TopicPartition, int]:
        """Where the reading of partitions ended, below the ends of their planned ranges."""
        return {each: self._reached[each] for each in self._unread()}

    @property
    def added_messages(self) -> dict[str, int]:
        """By topic, how many messages its bytes count as beyond the offsets that were read."""
        rows = Counter[str]()
        for partition, reached in self._reached.items():
            rows[partition[0]] += min(reached, self._ends[partition]) - self._firsts[partition]
        counted = {topic: -(-octets // MESSAGE_BYTES) for topic, octets in self._octets.items()}
        return {topic: n - rows[topic] for topic, n in counted.items() if n > rows[topic]}

    def _unread(self) -> list[TopicPartition]:
        return [each for each, end in self._ends.items() if self._reached[each] < end]

    def _end_round_of(self, partition: TopicPartition) -> None:
        first, until = self._round[partition]
        self._round[partition] = first, min(until, self._reached[partition])
