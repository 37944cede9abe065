"""The metrics of a shard, from the files on this host."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

from prometheus_client.core import Metric

from duewheel.clock import Clock
from duewheel.config.settings import Settings
from duewheel.errors import DuewheelError
from duewheel.runtime.shard_metrics import ShardMetrics


def shard_families(settings: Settings, clock: Clock) -> Iterator[Metric]:
    """The metrics by family; none without files: `not_ready_reasons` says why."""
    with suppress(OSError, DuewheelError):
        yield from ShardMetrics(settings, clock).families()
