"""The progress of a shard in Kafka, as commands and the server read it, without a broker."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Event

import pytest
from tests.harness.launcher import wait_until
from tests.harness.local_world import NOW_MS

from duewheel import factory
from duewheel.checkpoints.progress import Progress
from duewheel.checkpoints.reshard_records import nothing, reassigned, sealed
from duewheel.checkpoints.state_file import State
from duewheel.errors import KafkaUnavailable
from duewheel.wheel.publisher_protocol import Seen


@dataclass
class NewestProgress:
    """The progress of the shard in Kafka; None: Kafka does not answer."""

    progress: Progress | None
    reads: int = 0
    may_answer: Event = field(default_factory=Event)

    @classmethod
    def of_files(cls, data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> NewestProgress:
        """The progress that the files mirror, read in the place of Kafka."""
        with State.open(data_dir) as state:
            mirror = state.mirror()
        assert mirror is not None
        kafka = cls(mirror.progress)
        kafka.may_answer.set()
        monkeypatch.setattr(factory, "progress_reader", lambda *_: kafka)
        return kafka

    def newest(self) -> Seen:
        self.reads += 1
        self.may_answer.wait()
        if self.progress is None:
            raise KafkaUnavailable("no broker answers")
        return Seen(self.progress, NOW_MS)

    def close(self) -> None:
        pass

    def becomes(self, progress: Progress | None) -> None:
        """Returns once it is read, and what follows from it is known."""
        self.progress = progress
        end = self.reads + 2
        wait_until(lambda: self.reads >= end, "the progress is read")


def removed(progress: Progress) -> Progress:
    """After a reshard to fewer shards."""
    return nothing(progress, 0, 2, 1)


def taken_over(progress: Progress) -> Progress:
    """By another data directory."""
    return replace(progress, owner="another")


def taken_by_others(progress: Progress) -> Progress:
    """After a reshard that gave the shard other partitions."""
    (only,) = reassigned([sealed(progress, 1, 1)], 1, lambda: 2)
    return only
