"""Why the reply to a cancel may be late, as far as this host's data directory shows it."""

from __future__ import annotations

from duewheel.checkpoints.state_file import State
from duewheel.clock import SystemClock
from duewheel.config.settings import Settings
from duewheel.errors import DuewheelError
from duewheel.runtime import run_file
from duewheel.runtime.readiness import PROCESSES, ReadyBounds, not_ready, process_state


def is_starting(settings: Settings) -> bool:
    """Whether a `run` on this host is starting its processes; False if it works or fails."""
    processes = (run_file.read(settings.storage.data_dir) or {}).values()
    return any(not each.lives for each in processes) and not any(p.is_failing for p in processes)


def reasons(settings: Settings) -> list[str]:
    """Why the shard does not reply now; empty if it should, or works on another host."""
    try:
        state = State.open(settings.storage.data_dir)
    except (OSError, DuewheelError):
        return []
    with state:
        found = list(not_ready(state, ReadyBounds.of(settings), SystemClock().now_ms()).values())
        paused = [n for n in PROCESSES if process_state(state, n)[1] == "paused"]
    return [*found, *(f"{name} is paused" for name in paused)]
