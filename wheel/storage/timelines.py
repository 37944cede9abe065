"""Chooses the timeline of a data directory, by the setting `timer.timeline`."""

from __future__ import annotations

from collections.abc import Mapping

from duewheel.wheel.storage.timeline import Timeline
from duewheel.wheel.storage.wheel_timeline import WheelTimeline

# By the name in the setting.
TIMELINES: Mapping[str, type[Timeline]] = {"wheel": WheelTimeline}
