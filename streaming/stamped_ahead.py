"""Leaves records with timestamps far ahead of this host's clock in Kafka.

A timer topic has the brokers' timestamps, or ones close to them (topic_requirements.py). One that
was altered since may have any, and the slot of a delay follows from the timestamp: a thousand
records in hours of their own would cost the shard a thousand files, and a longer commit page with
each batch, until those hours come. So a partition ends early before such a record (early_ends.py),
until the clock has reached it: it requests the same slot then.
"""

from __future__ import annotations

import numpy as np
import structlog

from duewheel.checkpoints.commit_and_close_pages import Marks
from duewheel.clock import Clock, Interval
from duewheel.schemas.batches import TimerBatch

_DAY_MS = 86_400_000
_REMIND_MS = 60_000

_log = structlog.get_logger(__name__)


class StampedAhead:
    """Cuts batches before such records. Not thread-safe."""

    def __init__(self, clock: Clock, margin_ms: int) -> None:
        """
        Args:
            clock: this host's, which may be a day behind the brokers'.
            margin_ms: `timer.margin`, by which timestamps may be ahead of the brokers' clock.
        """
        self._clock = clock
        self._ahead_max_ms = _DAY_MS + margin_ms
        self._reminder = Interval(clock, _REMIND_MS)

    def cut(self, batch: TimerBatch) -> tuple[TimerBatch, Marks]:
        """Returns the rows that are taken, and where partitions end that have such a record."""
        latest_ms = self._clock.now_ms() + self._ahead_max_ms
        ahead = batch.timer & ~batch.rejected & (batch.timestamp_ms > latest_ms)
        if not ahead.any():
            return batch, {}
        ends = np.full(len(batch.partitions), np.iinfo(np.int64).max)
        np.minimum.at(ends, batch.partition[ahead], batch.offset[ahead])
        cut = {batch.partitions[n]: int(ends[n]) for n in np.unique(batch.partition[ahead])}
        if self._reminder.is_over(cut):
            _log.error(
                "a timer partition waits: a record's timestamp is more than a day ahead",
                at=[f"{topic}-{number}@{end}" for (topic, number), end in cut.items()],
                remedy="set message.timestamp.type=LogAppendTime; `duewheel reconfigure --skip` "
                "makes a dead letter of the record",
            )
        taken = np.flatnonzero(batch.offset < ends[batch.partition])
        return batch.take(taken), cut
