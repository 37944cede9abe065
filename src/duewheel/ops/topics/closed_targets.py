"""Whether timers may have a topic of duewheel's own as their target."""

from __future__ import annotations

from duewheel.checkpoints.fs import READING_FS
from duewheel.checkpoints.state_file import State
from duewheel.config.setting_names import CLOSED, PARAMETERS
from duewheel.config.settings import Settings
from duewheel.errors import DuewheelError


def is_open(settings: Settings, topic: str) -> bool:
    """Returns whether the shard in the data directory has begun without this topic, and no
    `duewheel reconfigure` has added it: a producer could let duewheel write there. Without a shard
    there it is not known, and False.
    """
    try:
        with State.open(settings.storage.data_dir, READING_FS) as state:
            mirror = state.mirror()
        values = {} if mirror is None else mirror.progress.epochs.newest.values
    except (DuewheelError, OSError):
        return False
    closed = values.get(PARAMETERS, {}).get(CLOSED)
    return closed is not None and topic not in closed
