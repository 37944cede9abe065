"""Why the shard on this host is not ready, or its reply is late."""

from __future__ import annotations

from contextlib import suppress

from duewheel.clock import Clock
from duewheel.config.settings import Settings
from duewheel.errors import DuewheelError
from duewheel.ops.files import open_state
from duewheel.runtime.readiness import ReadyBounds, not_ready, not_ready_in
from duewheel.runtime.shard_facts import ShardFacts


def not_ready_reasons(settings: Settings, clock: Clock) -> dict[str, str]:
    """Why the shard does not do its work, by name; empty if it does."""
    try:
        return not_ready_in(settings.storage.data_dir, ReadyBounds.of(settings), clock.now_ms())
    except (FileNotFoundError, NotADirectoryError):
        return {"no_data_directory": str(settings.no_data_dir())}


def why_no_reply(settings: Settings, clock: Clock) -> list[str]:
    """Why the shard does not reply now; empty if it should, or works on another host."""
    with suppress(DuewheelError, OSError), open_state(settings) as state:
        facts = ShardFacts(state, clock.now_ms())
        found = not_ready(facts, ReadyBounds.of(settings))
        paused = [name for name, each in facts.processes.items() if each.state == "paused"]
        return [*found.values(), *(f"{name} is paused" for name in paused)]
    return []
