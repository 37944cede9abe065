"""A shard without Kafka and Spark that takes rows of timers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tests.harness.timer_rows import TIMER_TOPIC, TimerRow, timer_batch

from duewheel.schemas.batches import TopicPartition
from duewheel.testing import LocalShard
from duewheel.wheel.append.engine import Appended


class TimerShard(LocalShard):
    """A LocalShard whose batches are given as rows."""

    def append(self, timers: Sequence[TimerRow], ends: Mapping[TopicPartition, int]) -> Appended:
        """Appends the rows of a batch that the engine does not have yet."""
        assert self.ingest is not None
        known = self.ingest.marks
        fresh = [t for t in timers if t.offset >= known.get((TIMER_TOPIC, t.partition), 0)]
        marks = {partition: max(end, known.get(partition, 0)) for partition, end in ends.items()}
        return self.ingest.append(timer_batch(fresh), marks)
