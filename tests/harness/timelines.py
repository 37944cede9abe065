"""The timeline of the tests' data directories, and what only tests of the wheel look at."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest

from duewheel.wheel.slots import TimelineKind, WheelConfig
from duewheel.wheel.storage.data_directory import DataDirectory
from duewheel.wheel.storage.timelines.kinds import FILES, timeline_class
from duewheel.wheel.storage.timelines.timeline import Timeline
from duewheel.wheel.storage.timelines.timer_wheel import TimerWheel
from duewheel.wheel.storage.timelines.wheel_timeline import WheelTimeline

KIND: TimelineKind = (
    "rocksdb" if os.environ.get("DUEWHEEL_TIMER__TIMELINE") == "rocksdb" else "wheel"
)
"""`make test-rocksdb` sets the variable, which a process reads as a setting."""
FILE = FILES[KIND]

# A directory that a test opens by itself has its timeline by the default of its geometry.
*_others, _ = WheelConfig.__init__.__defaults__ or ()
WheelConfig.__init__.__defaults__ = (*_others, KIND)

wheel_only = pytest.mark.skipif(KIND != "wheel", reason="it looks at the wheel's ring or chains")


def timeline() -> type[Timeline]:
    """The class that the tests' data directories have."""
    return timeline_class(KIND)


def wheel_of(directory: DataDirectory) -> TimerWheel:
    """The ring of a directory whose timeline is the wheel."""
    assert isinstance(directory.timeline, WheelTimeline)
    return directory.timeline.wheel


def copy_timeline(path: Path, target: Path) -> None:
    """Copies a data directory's timeline, in which a process may work, to another folder."""
    if KIND == "wheel":
        shutil.copy(path / FILE, target)
        return
    with suppress(shutil.Error):  # its files come and go
        shutil.copytree(path / FILE, target / FILE)


def spoil_timeline(path: Path) -> None:
    """Replaces the bytes of a data directory's timeline by others."""
    files = [path / FILE] if KIND == "wheel" else (path / FILE).rglob("*")
    for each in files:
        if each.is_file():
            each.write_bytes(Random(2).randbytes(each.stat().st_size))
