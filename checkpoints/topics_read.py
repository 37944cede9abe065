"""The file `timer-topics`: which topics ingest reads, and which of those that match it does not.

JSON behind its CRC-32, replaced by ingest whenever something changes. Only `status` reads it: every
start asks Kafka again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from duewheel.checkpoints.commit_and_close import names_from
from duewheel.checkpoints.json_fields import MISSHAPEN, name, read_json, write_json

FILE_NAME = "timer-topics"


@dataclass(frozen=True, slots=True)
class TopicSet:
    """The timer topics as they are at one time.

    Attributes:
        topics: those that are read, sorted.
        left_out: those that match the pattern and are not read, and why.
        faulty: those with wrong settings that are read all the same, because timers were taken from
            them before; and what is wrong.
    """

    topics: tuple[str, ...]
    left_out: Mapping[str, str] = field(default_factory=dict)
    faulty: Mapping[str, str] = field(default_factory=dict)

    def write(self, directory: Path) -> None:
        """Replace the file, durably."""
        left_out, faulty = dict(self.left_out), dict(self.faulty)
        content = {"topics": self.topics, "left_out": left_out, "faulty": faulty}
        write_json(directory / FILE_NAME, content)

    @classmethod
    def read(cls, directory: Path) -> TopicSet | None:
        """What ingest wrote last; None if there is nothing, or nothing that is whole."""
        try:
            raw = read_json(directory / FILE_NAME)
            topics = tuple(name(topic) for topic in raw["topics"])
            return cls(topics, names_from(raw["left_out"]), names_from(raw["faulty"]))
        except (FileNotFoundError, *MISSHAPEN):
            return None
