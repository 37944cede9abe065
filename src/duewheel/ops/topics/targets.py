"""Whether timers may have a topic as their target now, and whether there is one."""

from __future__ import annotations

import re
from itertools import chain

from duewheel import factory
from duewheel.config.setting_names import CLOSED, PARAMETERS
from duewheel.config.settings import Settings
from duewheel.errors import DuewheelError, NoDataDirectory
from duewheel.ops.files import open_state
from duewheel.schemas.name_patterns import of_shell


def is_open_to_producers(settings: Settings, topic: str) -> bool | None:
    """Whether a timer may name this topic of duewheel's own as its target. So it is where the topic
    was added to the settings after the shard had begun, and no `duewheel reconfigure` has closed
    it. None: no shard has begun in the data directory.

    Raises:
        Unreadable, CorruptFile, OSError: the files cannot be read.
    """
    try:
        with open_state(settings) as state:
            mirror = state.mirror()
    except NoDataDirectory:
        return None
    values = {} if mirror is None else mirror.progress.epochs.newest.values
    closed = values.get(PARAMETERS, {}).get(CLOSED)
    return None if closed is None else topic not in closed


def is_missing(settings: Settings, target: str) -> bool:
    """Whether there is no such topic; False if this user may not know."""
    try:
        with factory.kafka_admin(settings) as admin:
            return target not in admin.partition_counts([target])
    except DuewheelError:
        return False


def doubts_about(settings: Settings, target: str) -> list[str]:
    """Why no timer can have this target now; it may get its topic, or be opened, later."""
    opened = chain.from_iterable(settings.timer.open_targets.values())
    doubts = []
    if re.search(of_shell(opened), target) is None:
        doubts.append(f"no timer topic is open for {target!r}")
    if is_missing(settings, target):
        doubts.append(f"Kafka has no topic {target!r}")
    return doubts
