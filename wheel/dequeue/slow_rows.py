"""Bounds the rows of one transaction for targets whose settings make appends slow.

Each such append delays all rows of the transaction; kafka/targets/slow_targets.py names the
settings. So all slow targets together have the share of a transaction below, and its timer topics
an equal part of it. Rows beyond it are parked, and come back later: their own messages are late,
and no others. A timer topic that was in a slow transaction is alone in its next ones: else the
others would rest for its rows (kafka/targets/resting_timer_topics.py).

Pure functions over columns: no client, any thread.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from duewheel.checkpoints.pauses import PausedTimers
from duewheel.schemas.arrays import Bool, Int64
from duewheel.schemas.batches import Deliveries, topic_numbers
from duewheel.schemas.columns import lengths
from duewheel.wheel.target_rules import Target

# The share of a transaction: appends cost up to 25 ms each, compression 4 s per MiB.
_PARTITIONS_MAX = 8
_BYTES_MAX = 128 * 1024
_BATCHES_MAX = 16  # of one partition, if its topic takes small ones only


def beyond_share(
    deliveries: Deliveries,
    targets: Sequence[Target | None],
    place: Int64,
    leaving: Bool,
    paused: PausedTimers,
    now_ms: int,
) -> Bool:
    """Selects the rows of slow targets beyond the share. Of one partition these are always the
    last rows of a timer topic, so none overtakes another of its timer partition.

    Args:
        targets: by index, as rows name them.
        place: of each row, a number of its topic-partition.
        leaving: rows that leave now, unless they are selected.
        paused: has the timer topics whose rows are all selected, and those that are alone.
        now_ms: draws the timer topics that have the share, if not all can.
    """
    beyond = np.zeros(len(deliveries), np.bool_)
    limit = [0 if one is None or not one.slow_by else _bytes_max(one) for one in targets]
    if not any(limit):
        return beyond
    row_limit = np.array(limit, np.int64)[deliveries.target]
    beyond = leaving & (row_limit > 0)
    topics, topic_of = topic_numbers(deliveries.source_partitions)
    topic = topic_of[deliveries.source_partition]
    able = [t for t in np.unique(topic[beyond]).tolist() if topics[t] not in paused.slow_of]
    turn = _turn(able, [topics[each] in paused.slow_alone for each in able], now_ms)
    size = lengths(deliveries.key_value) + lengths(deliveries.headers)
    for each in turn:
        rows = np.flatnonzero(beyond & (topic == each))
        _, first, partition = np.unique(place[rows], return_index=True, return_inverse=True)
        rank = np.argsort(np.argsort(first))[partition]  # partitions in the order of first rows
        over = np.cumsum(size[rows] / row_limit[rows]) > 1 / len(turn)
        over |= rank >= _PARTITIONS_MAX // len(turn)
        over[0] &= each != turn[0]  # one large row may leave
        beyond[rows] = over
    return beyond


def _turn(able: Sequence[int], alone: Sequence[bool], now_ms: int) -> Sequence[int]:
    """The timer topics that have the share now: one that is alone, or several others."""
    others = [each for each, is_alone in zip(able, alone, strict=True) if not is_alone]
    first = now_ms % max(1, len(others))
    together = [*others[first:], *others[:first]][:_PARTITIONS_MAX]
    turns = [[each] for each, is_alone in zip(able, alone, strict=True) if is_alone]
    turns += [together] * bool(together)
    return turns[now_ms // 10 % len(turns)] if turns else []


def _bytes_max(target: Target) -> int:
    return min(_BYTES_MAX, _BATCHES_MAX * target.batch_bytes_max)
