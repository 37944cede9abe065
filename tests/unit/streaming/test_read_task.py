"""The connections of a task's process."""

from __future__ import annotations

from dataclasses import replace

import pytest

from duewheel.streaming import read_task
from duewheel.streaming.task_share import TaskSettings


def test_the_reader_of_other_topics_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A task's process lives for months, and what is frozen in it is never collected."""
    open_ones: list[object] = []

    class Reader:
        def __init__(self, _: object, topics: list[str]) -> None:
            open_ones.append(topics)
            self.topics = topics

        def close(self) -> None:
            open_ones.remove(self.topics)

    monkeypatch.setattr(read_task, "LogReader", Reader)
    monkeypatch.setattr(read_task, "_process_reader", read_task.ProcessReader())
    settings = TaskSettings({}, ["a"], "", "", "")
    reader = read_task.reader_of(settings)
    assert read_task.reader_of(replace(settings, epochs="others")) is reader
    read_task.reader_of(replace(settings, topics=["a", "b"]))
    assert open_ones == [["a", "b"]]
