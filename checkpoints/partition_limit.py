"""Bounds the timer partitions of a shard by the room in its records.

The progress record, the commit page and the close page have every partition. So ingest must not
read a topic that does not fit: no progress could say that its timers are delivered. Each partition
and each topic counts with the most bytes that it can ever take in any of the three.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

# A partition has nine int64 and its number in the record; a topic has its name, its id, brackets.
_PARTITION_BYTES = 80
_TOPIC_BYTES = 64
PARTITIONS_MAX = 50_000  # with topic names of usual length, for which half a megabyte is reserved
ROOM_BYTES = PARTITIONS_MAX * _PARTITION_BYTES + 512 * 1024


def needed_bytes(topic: str, partitions: int) -> int:
    """Computes the bytes of a topic with `partitions` partitions in the shard."""
    return _TOPIC_BYTES + 2 * len(topic.encode()) + _PARTITION_BYTES * partitions


def beyond_room(
    partitions: Mapping[str, int], order: Iterable[str], room_bytes: int = ROOM_BYTES
) -> dict[str, str]:
    """Returns the topics that do not fit, each with the reason; the first ones of `order` get the
    room. `partitions` has the number of the shard's partitions by topic.
    """
    used, beyond = 0, {}
    for topic in order:
        needed = needed_bytes(topic, partitions.get(topic, 0))
        if used + needed > room_bytes:
            beyond[topic] = (
                f"{partitions.get(topic, 0)} partitions of it take up to {needed} bytes of the "
                f"shard's progress record, and {room_bytes - used} of {room_bytes} are left (some "
                f"{PARTITIONS_MAX} partitions): more shards have more room, `duewheel reshard`"
            )
        else:
            used += needed
    return beyond
