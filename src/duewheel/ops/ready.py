"""Why a shard is not ready, also if it has no files yet: for the probe of `duewheel serve`."""

from __future__ import annotations

from duewheel.checkpoints.recovery_decision import recovering
from duewheel.config.settings import Settings
from duewheel.errors import NoDataDirectory
from duewheel.ops.stats import open_state
from duewheel.runtime.readiness import ReadyBounds, not_ready


def not_ready_reasons(settings: Settings, now_ms: int) -> dict[str, str]:
    """Returns why the shard does not do its work, by name; empty if it does."""
    try:
        state = open_state(settings)
    except NoDataDirectory as error:
        return {"no_data_directory": str(error)}
    with state:
        reasons = not_ready(state, ReadyBounds.of(settings), now_ms)
        if state.needs_recovery or (not state.standby and recovering(state) is not None):
            reasons["recovering"] = "files are recovered, or messages are read again"
        return reasons
