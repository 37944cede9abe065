"""The file that says which timer topics are read: for `status`, and never a reason to fail."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from duewheel.checkpoints.process_role import Role
from duewheel.checkpoints.timer_topics_file import FILE_NAME, TopicSet
from duewheel.clock import SystemClock
from duewheel.config.keys_and_defaults import StorageSection, TimerSection
from duewheel.config.settings import Settings
from duewheel.ops.shard.status import read_status
from duewheel.wheel.storage.data_directory import DataDirectory

FOUND = TopicSet(("a", "b"), {"c": "it is gone"}, {"b": "retention.ms is 1"})


def test_what_is_written_is_read(tmp_path: Path) -> None:
    assert TopicSet.read(tmp_path) is None
    FOUND.write(tmp_path)
    assert TopicSet.read(tmp_path) == FOUND


@pytest.mark.parametrize("text", [b"", b"00000000 {}\n", b"\xff", b"d3b7a1c2 []"])
def test_what_is_not_whole_says_nothing(tmp_path: Path, text: bytes) -> None:
    (tmp_path / FILE_NAME).write_bytes(text)
    assert TopicSet.read(tmp_path) is None


def test_status_tells_it(tmp_path: Path) -> None:
    settings = Settings(
        timer=TimerSection(topics=("a",), slots=80_000, roll_window=timedelta(minutes=1)),
        storage=StorageSection(data_dir=tmp_path / "data"),
    )
    DataDirectory.start(settings.storage.data_dir, settings.wheel, Role.DEQUEUE).stop()
    assert read_status(settings, SystemClock()).timer_topics is None
    FOUND.write(settings.storage.data_dir)
    told = read_status(settings, SystemClock()).timer_topics
    assert told is not None
    assert told.as_json() == {
        "read": ["a", "b"],
        "left_out": {"c": "it is gone"},
        "faulty": {"b": "retention.ms is 1"},
        "far_ahead": {},
    }
