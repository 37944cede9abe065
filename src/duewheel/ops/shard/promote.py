"""`duewheel promote`: makes the standby that runs in a data directory the shard's owner.

    1. writes the request into `state`, durably
    2. waits until the standby (wheel/dequeue/standby.py) has taken over and delivers

A standby that dies meanwhile reads the request at its next start. A command that fails
withdraws the request. The request expires, so that a killed command cannot depose a live owner
days later.
"""

from __future__ import annotations

import time

from duewheel.api.shard import Promoted
from duewheel.checkpoints.file_lock import lock_is_held
from duewheel.checkpoints.fs import HOST_FS
from duewheel.checkpoints.live_fields import PROMOTION_MS
from duewheel.checkpoints.process_role import Role
from duewheel.checkpoints.state_file import State
from duewheel.checkpoints.unfinished_recovery import recovering
from duewheel.clock import Clock
from duewheel.config.settings import Settings
from duewheel.deadline import polled
from duewheel.errors import ConfigError, RecoveryPending
from duewheel.ops.files import open_state


def promote_standby(settings: Settings, clock: Clock, wait_ms: int = PROMOTION_MS) -> Promoted:
    """Requests the promotion, and waits for it.

    Raises:
        ConfigError: no standby runs in the data directory, or it cannot be written here.
        RecoveryPending: after `wait_ms` the directory is still a standby, or still re-reads
            messages.
    """
    begun_s = time.monotonic()
    state = open_state(settings, HOST_FS)
    request = 0
    try:
        _require_standby(state)
        request = state.live.want_promotion(clock.now_ms())
        if not polled(lambda: not state.standby and recovering(state) is None, wait_ms / 1000):
            outcome = "not taken over" if state.standby else "not caught up"
            raise RecoveryPending(
                f"after {wait_ms // 1000} s the standby has {outcome}: see its log, and "
                "`duewheel status`"
            )
    finally:
        if request and state.standby:
            state.live.withdraw_promotion(request)
        state.release()
    took_s = round(time.monotonic() - begun_s, 3)
    data_dir = str(settings.storage.data_dir)
    return Promoted(shard=settings.shard.index, data_dir=data_dir, took_s=took_s)


def _require_standby(state: State) -> None:
    directory = state.path.parent
    if not state.standby:
        raise ConfigError(
            f"{directory} is no standby: it owns the shard, or is new. Call this where one runs"
        )
    if not lock_is_held(directory / Role.DEQUEUE.lock_name):
        raise ConfigError(
            f"no standby runs in {directory}: `duewheel run --take-over` starts it as the owner"
        )
