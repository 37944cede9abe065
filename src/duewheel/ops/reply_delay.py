"""Why the reply to a cancel may be late, as far as this host's data directory shows it."""

from __future__ import annotations

from duewheel.checkpoints.state_file import State
from duewheel.clock import SystemClock
from duewheel.config.settings import Settings
from duewheel.errors import DuewheelError
from duewheel.ops.readyz import supervised
from duewheel.runtime.readiness import ReadyBounds, not_ready
from duewheel.runtime.shard_facts import ShardFacts


def is_starting(settings: Settings) -> bool:
    """Whether a `run` on this host is starting its processes; False if it works or fails."""
    processes = (supervised(settings.storage.data_dir) or {}).values()
    return any(not each.lives for each in processes) and not any(p.is_failing for p in processes)


def reasons(settings: Settings) -> list[str]:
    """Why the shard does not reply now; empty if it should, or works on another host."""
    try:
        state = State.open(settings.storage.data_dir)
    except (OSError, DuewheelError):
        return []
    with state:
        facts = ShardFacts(state, SystemClock().now_ms())
        found = not_ready(facts, ReadyBounds.of(settings))
        paused = [name for name, each in facts.processes.items() if each.state == "paused"]
    return [*found.values(), *(f"{name} is paused" for name in paused)]
