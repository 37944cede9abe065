"""How many timer partitions a shard has room for.

All of them are in its progress record and in the commit and the close page, so a topic that does
not fit must not be read at all: what is taken from it could never be said to be delivered. Each
partition and each topic counts with the most that it may ever take in any of the three.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

# Of a partition: nine int64 and its number, in the record. Of a topic: its name, its id, brackets.
_PARTITION_BYTES = 80
_TOPIC_BYTES = 64
PARTITIONS_MAX = 50_000  # in topics with names of usual lengths: half a megabyte is for these
ROOM_BYTES = PARTITIONS_MAX * _PARTITION_BYTES + 512 * 1024


def needed_bytes(topic: str, partitions: int) -> int:
    """Of a topic, of which so many partitions are the shard's."""
    return _TOPIC_BYTES + 2 * len(topic.encode()) + _PARTITION_BYTES * partitions


def beyond_room(partitions: Mapping[str, int], order: Iterable[str]) -> dict[str, str]:
    """Which topics do not fit, and why.

    Args:
        partitions: how many of each topic are the shard's.
        order: the topics; what comes first has the room.
    """
    used, beyond = 0, {}
    for topic in order:
        needed = needed_bytes(topic, partitions.get(topic, 0))
        if used + needed > ROOM_BYTES:
            beyond[topic] = (
                f"{partitions.get(topic, 0)} partitions of it take up to {needed} bytes of the "
                f"shard's progress record, and {ROOM_BYTES - used} of {ROOM_BYTES} are left (some "
                f"{PARTITIONS_MAX} partitions): more shards have more room, `duewheel reshard`"
            )
        else:
            used += needed
    return beyond
