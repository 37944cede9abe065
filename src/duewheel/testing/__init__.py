"""The test kit: docs/testing.md.

service.py           the whole service in a test, on a clock that the test moves
local_shard.py       a shard without Kafka and Spark

This module imports neither Kafka's client nor the settings: it names the doubles of a shard alone.
"""

from duewheel.testing.clock import ManualClock
from duewheel.testing.local_shard import LocalShard
from duewheel.testing.unsynced import Unsynced

__all__ = ["LocalShard", "ManualClock", "Unsynced"]
