"""`duewheel status`: reports a shard from its data directory alone, without a request to Kafka.

It takes no lock and reads mapped pages, so it works beside running processes, and while Kafka is
down.
"""

from __future__ import annotations

from functools import partial

from duewheel.api.shard import BoundInForce, ShardView
from duewheel.clock import Clock
from duewheel.config.settings import Settings
from duewheel.errors import ConfigError, CorruptFile
from duewheel.ops.files import open_files, open_state
from duewheel.ops.shard.bounds_in_force import bounds_in_force
from duewheel.runtime.configured_facts import ConfiguredFacts
from duewheel.wheel.inspect.pending_counts import PendingTimers


def read_status(settings: Settings, clock: Clock) -> ShardView:
    """Reads the state of a shard.

    Raises:
        NoDataDirectory: the data directory does not exist yet.
    """
    with open_state(settings) as state:
        facts = _WithBounds(state, clock.now_ms(), settings, partial(_count, settings))
        return ShardView.model_validate(facts, from_attributes=True)


class _WithBounds(ConfiguredFacts):
    @property
    def bounds(self) -> dict[str, BoundInForce]:
        return bounds_in_force(self.settings)


def _count(settings: Settings) -> int | None:
    try:
        with open_files(settings) as directory:
            return PendingTimers(directory).count().total
    except (ConfigError, CorruptFile):
        return None  # a start refuses these settings, or files, too, and names the reason
