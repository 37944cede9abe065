"""Maps the setting `timer.timeline` to the class and the files of a timeline."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from duewheel.checkpoints.fs import FileSystem
from duewheel.checkpoints.state_file import Damage
from duewheel.wheel.slots import TimelineKind
from duewheel.wheel.storage.timelines import timer_wheel
from duewheel.wheel.storage.timelines.timeline import Timeline
from duewheel.wheel.storage.timelines.wheel_timeline import WheelTimeline

# By kind: its file or folder in the data directory.
FILES: Mapping[TimelineKind, str] = {"wheel": timer_wheel.FILE_NAME, "rocksdb": "rocksdb"}


def timeline_class(kind: TimelineKind) -> type[Timeline]:
    """Returns the class of a kind."""
    if kind == "wheel":
        return WheelTimeline
    # Not at the top: it needs a library that the wheel does not.
    from duewheel.wheel.storage.timelines.rocksdb_timeline import RocksdbTimeline

    return RocksdbTimeline


def damage_without(path: Path) -> Damage:
    """Returns the damage to a data directory without a sound timeline of its kind. If one exists,
    damaged or of another kind, the logs are kept as far as they were synced, and verified.
    """
    is_left = any((path / name).exists() for name in FILES.values())
    return Damage.CACHE_LOST if is_left else Damage.FILES_LOST


def remove_timelines(path: Path, kinds: Iterable[TimelineKind], fs: FileSystem) -> None:
    """Removes the timelines of these kinds from the data directory at `path`. Under engine.lock."""
    for kind in kinds:
        found = path / FILES[kind]
        if found.is_dir():
            fs.remove_tree(found)
        elif found.exists():
            fs.remove(found)
