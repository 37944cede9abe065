"""Why a shard is not ready, or its reply is late: with its files, or without them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from prometheus_client.core import Metric

from duewheel.api.shard import SupervisedProcess
from duewheel.clock import Clock, SystemClock
from duewheel.config.settings import Settings
from duewheel.errors import DuewheelError, NoDataDirectory, RecoveryPending
from duewheel.ops.files import Unreadable, files_identity, open_state
from duewheel.runtime import run_file
from duewheel.runtime.readiness import ReadyBounds, not_ready
from duewheel.runtime.shard_facts import ShardFacts
from duewheel.runtime.shard_metrics import ShardMetrics


def not_ready_reasons(settings: Settings, now_ms: int) -> dict[str, str]:
    """Returns why the shard does not do its work, by name; empty if it does."""
    try:
        files_identity(settings)
    except NoDataDirectory as error:
        return {"no_data_directory": str(error)}
    except Unreadable as error:
        return {"unreadable": str(error)}
    except RecoveryPending:
        pass  # a reason of `not_ready`
    with open_state(settings) as state:
        return not_ready(ShardFacts(state, now_ms), ReadyBounds.of(settings))


def supervised(data_dir: Path) -> dict[str, SupervisedProcess] | None:
    """The processes as `duewheel run` sees them, by name; None without one."""
    processes = run_file.read(data_dir)
    if processes is None:
        return None
    return {
        name: SupervisedProcess.model_validate(one, from_attributes=True)
        for name, one in processes.items()
    }


def shard_families(settings: Settings, clock: Clock) -> Iterator[Metric]:
    """The metrics of the shard; none without its files: `not_ready_reasons` says why."""
    with suppress(OSError, DuewheelError):
        yield from ShardMetrics(settings, clock).families()


def is_starting(settings: Settings) -> bool:
    """Whether a `run` on this host is starting its processes; False if it works or fails."""
    processes = (supervised(settings.storage.data_dir) or {}).values()
    return any(not each.lives for each in processes) and not any(p.is_failing for p in processes)


def why_no_reply(settings: Settings) -> list[str]:
    """Why the shard does not reply now; empty if it should, or works on another host."""
    try:
        state = open_state(settings)
    except (OSError, DuewheelError):
        return []
    with state:
        facts = ShardFacts(state, SystemClock().now_ms())
        found = not_ready(facts, ReadyBounds.of(settings))
        paused = [name for name, each in facts.processes.items() if each.state == "paused"]
    return [*found.values(), *(f"{name} is paused" for name in paused)]
