"""The file `timer-topics`: the topics that ingest reads, and the matching topics that it does not.

Ingest replaces it at each change; only `status` reads it, because every start lists the topics in
Kafka again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from duewheel.checkpoints.json_fields import StateFile

FILE_NAME = "timer-topics"


@dataclass(frozen=True, slots=True)
class TopicSet(StateFile):
    """The timer topics at one moment."""

    file_name: ClassVar[str] = FILE_NAME

    topics: tuple[str, ...]  # those that ingest reads, sorted
    # topics that match the pattern and are not read, with the reason
    left_out: Mapping[str, str] = field(default_factory=dict)
    # Topics that are read although their settings are wrong, because timers were taken from them
    # before, or may not be read; with the problem.
    faulty: Mapping[str, str] = field(default_factory=dict)
