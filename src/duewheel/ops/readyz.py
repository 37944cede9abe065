"""The answer of `/readyz`: `ready` of `status` (runtime/readiness.py), also without files."""

from __future__ import annotations

from duewheel.config.settings import Settings
from duewheel.errors import NoDataDirectory, RecoveryPending
from duewheel.ops.open_files import Unreadable, files_identity, open_state
from duewheel.runtime.readiness import ReadyBounds, not_ready


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
        return not_ready(state, ReadyBounds.of(settings), now_ms)
