"""Rows of timers for small worlds on real files: their partitions, and marks behind them."""

from __future__ import annotations

from collections.abc import Iterable

from duewheel.schemas.batches import TopicPartition
from duewheel.testing import TIMER_TOPIC, TimerRow

P0: TopicPartition = (TIMER_TOPIC, 0)
P1: TopicPartition = (TIMER_TOPIC, 1)


def ends_of(timers: Iterable[TimerRow]) -> dict[TopicPartition, int]:
    """The offset behind the last row of each partition; rows in the order of their offsets."""
    return {(TIMER_TOPIC, timer.partition): timer.offset + 1 for timer in timers}
