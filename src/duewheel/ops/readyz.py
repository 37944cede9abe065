"""What can be said of a shard whose files may be missing: ready or not, and its processes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from prometheus_client.core import Metric

from duewheel.api.shard import SupervisedProcess
from duewheel.clock import Clock
from duewheel.config.settings import Settings
from duewheel.errors import DuewheelError, NoDataDirectory, RecoveryPending
from duewheel.ops.open_files import Unreadable, files_identity, open_state
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
        name: SupervisedProcess(**one._asdict(), is_failing=one.is_failing)
        for name, one in processes.items()
    }


def shard_families(settings: Settings, clock: Clock) -> Iterator[Metric]:
    """The metrics of the shard; none without its files: `not_ready_reasons` says why."""
    with suppress(OSError, DuewheelError):
        yield from ShardMetrics(settings, clock).families()
