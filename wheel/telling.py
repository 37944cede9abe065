"""What leaves as answers to cancels in one transaction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from duewheel.checkpoints.page_contents import Marks
from duewheel.schemas.timers import Deliveries, TopicPartition
from duewheel.wheel.answers import WORDS, answer_rows
from duewheel.wheel.cancel_log import CancelLog
from duewheel.wheel.tombstones import Tombstones


@dataclass(frozen=True, slots=True)
class Said:
    """Answers that may leave.

    Attributes:
        rows: the answers.
        answered: `a` once they are committed.
        words: how many of them there are, by word.
    """

    rows: Deliveries
    answered: Marks
    words: Mapping[str, int]


def ends_of(cancels: Tombstones, partitions: Sequence[TopicPartition]) -> Marks:
    """The offset behind the last one, of each partition that has any."""
    ends = np.zeros(len(partitions), np.int64)
    np.maximum.at(ends, cancels.partition, cancels.offset + 1)
    return {p: end for p, end in zip(partitions, ends.tolist(), strict=True) if end}


def answers_to(
    cancels: Tombstones, log: CancelLog, partitions: Sequence[TopicPartition], topic: str
) -> Said:
    """The answers to some cancels, of which there is one.

    Args:
        cancels: by partition, and in the order of offsets.
        log: has their requests.
        partitions: what each one's `partition` indexes.
        topic: where they go.

    Raises:
        CorruptFile: the cancel log is damaged.
    """
    parts = []
    for hour in np.unique(cancels.hour).tolist():
        of_hour = cancels.take(np.flatnonzero(cancels.hour == hour))
        requests = log.requests_at(hour, of_hour.position)
        homes = [partitions[index] for index in of_hour.partition.tolist()]
        words = [WORDS[index] for index in of_hour.word.tolist()]
        parts.append(answer_rows(requests, homes, words, topic))
    rows = parts[0]
    for part in parts[1:]:
        rows = rows.followed_by(part)
    counted = np.bincount(cancels.word, minlength=len(WORDS)).tolist()
    counts = {word.value: n for word, n in zip(WORDS, counted, strict=True) if n}
    return Said(rows, ends_of(cancels, partitions), counts)
