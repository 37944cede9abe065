"""Bounds the timer partitions of a shard by the room in its records.

The progress record, the commit page and the close page have every partition. So ingest must not
read a topic that does not fit: no progress could say that its timers are delivered. Each partition
and each topic counts with the most bytes that it can ever take in any of the three.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import MappingProxyType

# A partition has nine int64 and its number in the record; a topic has its name, its id, brackets.
_PARTITION_BYTES = 80
_TOPIC_BYTES = 64
PARTITIONS_MAX = 50_000  # with topic names of usual length, for which half a megabyte is reserved
# Each append, each closing and each transaction writes all partitions: 1,000 cost a turn 25 ms.
TOPIC_PARTITIONS_MAX = 2_000
ROOM_BYTES = PARTITIONS_MAX * _PARTITION_BYTES + 512 * 1024


def needed_bytes(topic: str, partitions: int) -> int:
    """Computes the bytes of a topic with `partitions` partitions in the shard."""
    return _TOPIC_BYTES + 2 * len(topic.encode()) + _PARTITION_BYTES * partitions


def beyond_room(
    partitions: Mapping[str, int],
    kept: Mapping[str, int] = MappingProxyType({}),
    room_bytes: int = ROOM_BYTES,
    listed: Collection[str] = (),
) -> dict[str, str]:
    """Returns the topics that do not fit, each with the reason; the `listed` ones get the room,
    then the smallest: the owner of a topic, who may add partitions, displaces no other.

    `partitions` has the number of the shard's partitions by topic, `kept` the number that the
    records have already, which stay, also those of deleted topics.
    """
    used, beyond = sum(needed_bytes(topic, count) for topic, count in kept.items()), {}
    for topic in sorted(partitions, key=lambda t: (t not in listed, partitions[t], t)):
        count = partitions[topic]
        has = needed_bytes(topic, kept[topic]) if topic in kept else 0
        more = needed_bytes(topic, count) - has
        if count > TOPIC_PARTITIONS_MAX:
            beyond[topic] = (
                f"{count} partitions of it are this shard's, and one topic may have "
                f"{TOPIC_PARTITIONS_MAX} there: with more shards each has fewer, `duewheel reshard`"
            )
        elif more > 0 and used + more > room_bytes:
            beyond[topic] = (
                f"{count} partitions of it take up to {has + more} bytes of the shard's progress "
                f"record, and {room_bytes - used + has} of {room_bytes} are left (some "
                f"{PARTITIONS_MAX} partitions): more shards have more room, `duewheel reshard`"
            )
        else:
            used += more
    return beyond
