"""From stored messages back to deliveries: what leaves the wheel, column by column.

A timer goes to its real topic as it came, a rolled one back to its timer topic with its request in
the headers again: the due time absolute, the count of rolls, and where its first copy lay.

What is restored is also what one transaction takes: chunks that name too many topics are divided.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from duewheel.schemas.columns import EMPTY, Column, binary, choose, join, take
from duewheel.schemas.ids import source_names
from duewheel.schemas.record_tail import roll_headers
from duewheel.schemas.timers import Bool, Deliveries, Int32, Int64, TopicPartition
from duewheel.wheel.layout import FLAG_DEAD_LETTER
from duewheel.wheel.message_store import Prefixes, StoredMessages
from duewheel.wheel.slot_scan import Chunk
from duewheel.wheel.topic_names import TopicNames

# The broker's coordinator keeps an open transaction as one record: each topic's name once, and four
# bytes for each partition. That record must stay below message.max.bytes (1 MiB unless set), or no
# attempt at the transaction can ever succeed. A thousand of the longest names (249 bytes) are a
# quarter of it; of partitions there are at most as many as rows.
TOPICS_MAX = 1_000


@dataclass(frozen=True, slots=True)
class Restored:
    """A chunk, ready to be published.

    Attributes:
        chunk: where the rows are from.
        deliveries: the rows.
        sources: the source partitions that `source` indexes.
        source: row → index in `sources`.
        offset: source offset of each row: of the copy, if the timer was rolled before.
    """

    chunk: Chunk
    deliveries: Deliveries
    sources: list[TopicPartition]
    source: Int32
    offset: Int64

    def piece(self, first: int, end: int) -> Restored:
        """Rows `first` to `end` − 1 alone; copies nothing."""
        return Restored(
            self.chunk.piece(first, end),
            self.deliveries.slice(first, end),
            self.sources,
            self.source[first:end],
            self.offset[first:end],
        )


def restore(chunk: Chunk, messages: StoredMessages, topics: TopicNames) -> Restored:
    """Make deliveries of a chunk's stored messages.

    Raises:
        CorruptFile: a message names a topic that was never numbered.
    """
    prefix = messages.prefix
    sources, source = _sources(prefix, topics)
    origin_offset = prefix["origin_offset"].astype(np.int64)
    origin = source_names(sources, source, origin_offset)
    numbers, target = np.unique(prefix["target_topic"].astype(np.int32), return_inverse=True)
    names = topics.names(int(numbers[-1]))
    rolled = chunk.rolled
    deliveries = Deliveries(
        targets=[names[number] for number in numbers.tolist()],
        target=target.astype(np.int32),
        target_partition=prefix["target_partition"].astype(np.int32),
        key_hash=prefix["key_hash"].astype(np.int32),
        due_ms=prefix["due_ms"].astype(np.int64),
        source=origin,
        timer_id=choose(prefix["id_size"] == 0, origin, messages.timer_id),
        key_value=messages.key_value,
        headers=messages.headers,
        header_count=prefix["header_count"].astype(np.int32),
        roll_times=prefix["roll_times"].astype(np.int32),
        dead_letter=(prefix["flags"] & FLAG_DEAD_LETTER) != 0,
        rolled=rolled,
    )
    if rolled.any():
        deliveries = _rolled_back(deliveries, messages.timer_id, origin_offset, sources, source)
    return Restored(chunk, deliveries, sources, source, prefix["source_offset"].astype(np.int64))


def pieces(restored: Restored) -> Iterator[Restored]:
    """The same rows in as few pieces as each fits into one transaction: see TOPICS_MAX."""
    first, target = 0, restored.deliveries.target
    while first < len(target):
        _, met = np.unique(target[first:], return_index=True)
        end = len(target)
        if len(met) > TOPICS_MAX:
            end = first + int(np.sort(met)[TOPICS_MAX])
        yield restored.piece(first, end)
        first = end


def _sources(prefix: Prefixes, topics: TopicNames) -> tuple[list[TopicPartition], Int32]:
    """The source partitions of a chunk, and each row's index among them."""
    code = prefix["source_topic"].astype(np.int64) << 32
    codes, source = np.unique(code | prefix["source_partition"], return_inverse=True)
    names = topics.names(int(codes[-1]) >> 32)
    return [(names[c >> 32], c & 0xFFFFFFFF) for c in codes.tolist()], source.astype(np.int32)


def _rolled_back(
    deliveries: Deliveries,
    timer_id: Column,
    origin_offset: Int64,
    sources: list[TopicPartition],
    source: Int32,
) -> Deliveries:
    """The deliveries with rolled rows addressed to their timer topic, their request in the headers.

    Same partition, same key: order among timers of a key is that of their partition.
    """
    rolled = deliveries.rolled
    target_names = take(binary(t.encode() for t in deliveries.targets), deliveries.target)
    request, count = roll_headers(
        target_names,
        deliveries.target_partition,
        deliveries.due_ms,
        timer_id,
        deliveries.roll_times,
        origin_offset,
    )
    topics = list(dict.fromkeys([*deliveries.targets, *(topic for topic, _ in sources)]))
    topic_of = np.array([topics.index(topic) for topic, _ in sources], np.int32)
    partition_of = np.array([partition for _, partition in sources], np.int32)
    return Deliveries(
        targets=topics,
        target=np.where(rolled, topic_of[source], deliveries.target).astype(np.int32),
        target_partition=_where(rolled, partition_of[source], deliveries.target_partition),
        key_hash=deliveries.key_hash,
        due_ms=deliveries.due_ms,
        source=deliveries.source,
        timer_id=deliveries.timer_id,
        key_value=deliveries.key_value,
        headers=join(deliveries.headers, choose(rolled, request, EMPTY)),
        header_count=deliveries.header_count + _where(rolled, count, np.zeros_like(count)),
        roll_times=deliveries.roll_times,
        dead_letter=deliveries.dead_letter,
        rolled=rolled,
    )


def _where(mask: Bool, yes: Int32, no: Int32) -> Int32:
    return np.where(mask, yes, no).astype(np.int32)
