"""The file `timer-topics`: the topics that ingest reads, and the matching topics that it does not.

JSON after its CRC-32. Ingest replaces it at each change; only `status` reads it, because every
start lists the topics in Kafka again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from duewheel.checkpoints.commit_and_close_pages import names_from
from duewheel.checkpoints.fs import HOST_FS
from duewheel.checkpoints.json_fields import MISSHAPEN, name, read_json, write_json

FILE_NAME = "timer-topics"


@dataclass(frozen=True, slots=True)
class TopicSet:
    """The timer topics at one moment."""

    topics: tuple[str, ...]  # those that ingest reads, sorted
    # topics that match the pattern and are not read, with the reason
    left_out: Mapping[str, str] = field(default_factory=dict)
    # Topics with wrong settings that are read nevertheless, because timers were taken from them
    # before; with the problem.
    faulty: Mapping[str, str] = field(default_factory=dict)

    def write(self, directory: Path) -> None:
        """Replaces the file, durably."""
        left_out, faulty = dict(self.left_out), dict(self.faulty)
        content = {"topics": self.topics, "left_out": left_out, "faulty": faulty}
        write_json(directory / FILE_NAME, content, HOST_FS)

    @classmethod
    def read(cls, directory: Path) -> TopicSet | None:
        """Reads the file; None if it is missing or damaged."""
        try:
            raw = read_json(directory / FILE_NAME)
            topics = tuple(name(topic) for topic in raw["topics"])
            return cls(topics, names_from(raw["left_out"]), names_from(raw["faulty"]))
        except (FileNotFoundError, *MISSHAPEN):
            return None
