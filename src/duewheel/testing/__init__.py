"""Test doubles that ship with the package.

service.py           the whole service in a test, on a clock that the test moves: docs/testing.md
local_shard.py       a shard without Kafka and Spark, with publishers and batches of timers for it

This module imports neither Kafka's client nor the settings: it names the doubles of a shard alone.
"""

from duewheel.testing.clock import ManualClock
from duewheel.testing.local_shard import LocalShard
from duewheel.testing.publishers import Delivered, JournalPublisher, RecordingPublisher
from duewheel.testing.timer_rows import (
    TIMER_TOPIC,
    TimerRow,
    answer_value,
    chases_in,
    headers_of,
    suite_parameters,
    timer_batch,
)
from duewheel.testing.unsynced import Unsynced

__all__ = [
    "TIMER_TOPIC",
    "Delivered",
    "JournalPublisher",
    "LocalShard",
    "ManualClock",
    "RecordingPublisher",
    "TimerRow",
    "Unsynced",
    "answer_value",
    "chases_in",
    "headers_of",
    "suite_parameters",
    "timer_batch",
]
