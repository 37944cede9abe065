"""Counts of rows by topic, for metrics: those of TOPICS_MAX topics by name, the others as OTHER.

One shard has the timer topics of many teams. A count of all together rises as long as one of them
writes bad messages, and then shows no fault of another.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

import numpy as np

from duewheel.schemas.arrays import Int32, Int64
from duewheel.schemas.batches import TopicPartition, topic_numbers
from duewheel.wheel.inspect.pending_counts import OTHER, TOPICS_MAX

Reasons = Mapping[str, Mapping[str, int]]  # counts by topic, of each by reason


def reasons_of(
    partitions: Sequence[TopicPartition],
    partition: Int32,
    names: Sequence[str],
    reason: Int32 | Int64,
) -> Reasons:
    """Counts rows by topic and reason.

    Args:
        partition: of each row, an index of `partitions`.
        names: of reasons; two may be the same.
        reason: of each row, an index of `names`.
    """
    if not len(partition):
        return {}
    topics, number = topic_numbers(partitions)
    cells = np.bincount(number[partition] * len(names) + reason)
    counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for cell in np.flatnonzero(cells).tolist():
        topic, name = divmod(cell, len(names))
        counts[topics[topic]][names[name]] += int(cells[cell])
    return counts


def rows_of(partitions: Sequence[TopicPartition], partition: Int32) -> Mapping[str, int]:
    """Counts rows by topic; `partition` as in `reasons_of`."""
    if not len(partition):
        return {}
    topics, number = topic_numbers(partitions)
    counts = np.bincount(number[partition])
    return {topics[topic]: int(counts[topic]) for topic in np.flatnonzero(counts).tolist()}


def with_rows(counts: Mapping[str, int], more: Mapping[str, int]) -> Mapping[str, int]:
    """Returns counts by topic, with more rows added."""
    if not any(more.values()):
        return counts
    total = Counter(counts)
    for topic, count in more.items():
        if count:
            total[_name_in(total, topic)] += count
    return total


def with_reasons(counts: Reasons, more: Reasons) -> Reasons:
    """Returns counts by topic and reason, with more rows added."""
    if not more:
        return counts
    total = dict(counts)
    for topic, reasons in more.items():
        name = _name_in(total, topic)
        total[name] = Counter(total.get(name, {})) + Counter(reasons)
    return total


def _name_in(counts: Mapping[str, object], topic: str) -> str:
    """The name under which a topic counts: those that came first keep theirs."""
    return topic if topic in counts or len(counts) < TOPICS_MAX else OTHER
