"""The lateness of deliveries since dequeue began, for the page of `duewheel serve`.

Dequeue counts it: wheel/dequeue/delivery_lateness.py.
"""

from __future__ import annotations

from itertools import accumulate

from duewheel.api.timers import Lateness
from duewheel.clock import Clock
from duewheel.config.settings import Settings
from duewheel.errors import DuewheelError
from duewheel.ops.files import open_state
from duewheel.runtime.shard_facts import ShardFacts
from duewheel.wheel.dequeue.duration_histogram import MILLISECONDS


def read_lateness(settings: Settings, clock: Clock) -> Lateness:
    """Reads the histogram of lateness, as dequeue last wrote it after a transaction."""
    try:
        with open_state(settings) as state:
            facts = ShardFacts(state, clock.now_ms())
            if facts.is_standby:
                return _unavailable("a standby delivers nothing")
            if not facts.dequeue.is_alive:
                return _unavailable(f"dequeue is {facts.dequeue.state}")
            counts = state.live.lateness(len(MILLISECONDS))
    except (OSError, DuewheelError) as error:
        return _unavailable(str(error))
    bounds = [ms / 1000 for ms in MILLISECONDS]
    return Lateness(available=True, reason=None, bounds_s=bounds, counts=[*accumulate(counts)])


def _unavailable(reason: str) -> Lateness:
    return Lateness(available=False, reason=reason, bounds_s=[], counts=[])
