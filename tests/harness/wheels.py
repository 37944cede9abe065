"""The wheel of a data directory, for tests that look at its entries."""

from __future__ import annotations

from duewheel.wheel.storage.data_directory import DataDirectory
from duewheel.wheel.storage.timer_wheel import TimerWheel
from duewheel.wheel.storage.wheel_timeline import WheelTimeline


def wheel_of(directory: DataDirectory) -> TimerWheel:
    """The ring of a directory whose timeline is the wheel."""
    assert isinstance(directory.timeline, WheelTimeline)
    return directory.timeline.wheel
