"""The file `obstacles`: why deliveries are blocked, as far as dequeue knows.

Dequeue replaces it at its start and when a text changes; `status` reads it. It is a hint.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from duewheel.checkpoints.fs import HOST_FS
from duewheel.checkpoints.json_fields import read_record, swap_json, to_json

FILE_NAME = "obstacles"


class Obstacles(NamedTuple):
    """The obstacles at one moment."""

    # by topic: which partitions take no writes, and why; the newest topics
    targets: Mapping[str, str] = MappingProxyType({})
    # by timer topic: why all of its timers are parked
    timer_topics: Mapping[str, str] = MappingProxyType({})

    def write(self, directory: Path) -> None:
        """Replaces the file.

        Raises:
            OSError: the disk is full, or fails; the old file stays.
        """
        swap_json(directory / FILE_NAME, to_json(self), HOST_FS)

    @classmethod
    def read(cls, directory: Path) -> Obstacles:
        """Reads the file; without obstacles if it is missing or damaged."""
        return read_record(cls, directory / FILE_NAME) or cls()
