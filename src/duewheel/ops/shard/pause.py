"""`duewheel pause` and `resume`: a flag in the shard's `state`, which its processes watch."""

from __future__ import annotations

from contextlib import suppress

from duewheel.api.shard import Paused
from duewheel.checkpoints.fs import HOST_FS
from duewheel.checkpoints.process_role import ProcessName, Role
from duewheel.config.settings import Settings
from duewheel.errors import DuewheelError
from duewheel.ops.files import open_files, open_state


def set_paused(settings: Settings, process: ProcessName, *, on: bool) -> Paused:
    """Pauses or resumes a process, now and across its restarts.

    Raises:
        Misconfigured: the data directory cannot be written here.
        Unreadable: it is not for this user.
    """
    with open_files(settings, HOST_FS) as directory:
        live, role = directory.state.live, Role.of(process)
        was_paused = live.paused(role)
        live.pause(role, on=on)
    return Paused(process=process, paused=on, was_paused=was_paused)


def is_paused(settings: Settings, process: ProcessName) -> bool:
    """Whether a process is paused in the data directory of this host; False if none can be read."""
    with suppress(DuewheelError, OSError), open_state(settings) as state:
        return state.live.paused(Role.of(process))
    return False
