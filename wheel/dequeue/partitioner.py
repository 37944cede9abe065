"""Chooses the partition of each delivery, as Kafka's clients choose it, and groups rows by it.

- The requested one; else by the key's hash; else a random one of those that take writes, the same
  for all such rows of a topic in one call.
- A dead letter whose key's partition takes no writes goes to another one.
- `to_unavailable` finds the rows whose partition takes no writes for now; their fate: fate.py.
- `narrow_cuts` divides rows that write to more partitions than a transaction may have.

Pure functions over columns: no client, any thread.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from duewheel.schemas.arrays import Bool, Int64, rank_among_equals
from duewheel.schemas.batches import NO_PARTITION, Deliveries, topic_numbers
from duewheel.wheel.encoded import Writes
from duewheel.wheel.target_rules import Target, key_partition

_PARTITION_BITS = 32


@dataclass(frozen=True, slots=True)
class Group:
    """Rows first … end − 1 of the routed deliveries go to one partition."""

    topic: str
    partition: int
    first: int
    end: int


def used_topics(deliveries: Deliveries) -> list[str]:
    """The topics that at least one row goes to, those of each timer topic in turn: few names may be
    looked up at a time, and one producer's would displace those of others.
    """
    if len(deliveries.targets) == 1 and len(deliveries):
        return deliveries.targets
    _, of_partition = topic_numbers(deliveries.source_partitions)
    count, source = len(deliveries.targets), of_partition[deliveries.source_partition]
    source, target = divmod(np.unique(source * count + deliveries.target), max(1, count))
    in_turn = target[np.argsort(rank_among_equals(source), kind="stable")]
    return list(dict.fromkeys(deliveries.targets[index] for index in in_turn.tolist()))


def to_unavailable(deliveries: Deliveries, targets: Mapping[str, Target], place: Int64) -> Bool:
    """Rows whose topic-partition (`packed_partitions`) takes no writes for now."""
    packed = [
        index << _PARTITION_BITS | number
        for index, topic in enumerate(deliveries.targets)
        if topic in targets
        for number in targets[topic].unavailable
    ]
    if not packed:
        return np.zeros(len(deliveries), np.bool_)
    return np.isin(place, packed)


def grouped(
    deliveries: Deliveries, targets: Mapping[str, Target], chance: random.Random
) -> tuple[Deliveries, list[Group], Int64]:
    """The rows sorted by topic-partition, in order within each; the bounds of each group; and the
    earlier place of each row.
    """
    place = packed_partitions(deliveries, targets, chance.choice)
    order: Int64 = np.arange(len(deliveries))
    if (place[1:] < place[:-1]).any():
        order = np.argsort(place, kind="stable")
        deliveries, place = deliveries.take(order), place[order]
    bounds = [0, *(np.flatnonzero(np.diff(place)) + 1).tolist(), len(place)]
    groups = [
        Group(
            deliveries.targets[place[first] >> _PARTITION_BITS],
            int(place[first]) & (1 << _PARTITION_BITS) - 1,
            first,
            end,
        )
        for first, end in itertools.pairwise(bounds)
        if end > first
    ]
    return deliveries, groups, order


def narrow_cuts(writes: Writes, partitions_max: int) -> list[int]:
    """The rows before which a cut makes the fewest parts that write to at most so many partitions;
    a row that alone writes to more is a part.
    """
    order = np.argsort(writes.row, kind="stable")
    row, partition = writes.row[order], writes.partition[order]
    cuts, first = list[int](), 0
    while True:
        _, firsts = np.unique(partition[first:], return_index=True)
        if len(firsts) <= partitions_max:
            return cuts
        beyond = int(row[first + np.sort(firsts)[partitions_max]])
        cut = max(beyond, int(row[first]) + 1)
        first = int(np.searchsorted(row, cut))
        if first == len(row):
            return cuts
        cuts.append(cut)


def packed_partitions(
    deliveries: Deliveries,
    targets: Mapping[str, Target],
    pick: Callable[[Sequence[int]], int],
) -> Int64:
    """The topic-partition of each row, as one number; `pick` chooses the one for a topic's rows
    without key and request.
    """
    counts = np.ones(len(deliveries.targets), np.int64)
    sticky = np.zeros(len(deliveries.targets), np.int64)
    for index in np.unique(deliveries.target).tolist():
        target = targets[deliveries.targets[index]]
        if target.partitions:
            counts[index] = target.partitions
            sticky[index] = pick(target.available)
    of = deliveries.target
    free = key_partition(deliveries.key_hash, counts[of], sticky[of])
    if deliveries.dead_letter.any():
        # Without this a dead letter would wait although other partitions take writes.
        place = _packed(deliveries, free)
        astray = deliveries.dead_letter & to_unavailable(deliveries, targets, place)
        free = np.where(astray, sticky[of], free)
    requested = deliveries.target_partition
    return _packed(deliveries, np.where(requested == NO_PARTITION, free, requested))


def _packed(deliveries: Deliveries, partition: Int64) -> Int64:
    """Target and partition of each row in one number."""
    packed: Int64 = (deliveries.target.astype(np.int64) << _PARTITION_BITS) + partition
    return packed
