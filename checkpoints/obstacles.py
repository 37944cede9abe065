"""The file `obstacles`: why deliveries are blocked, as far as dequeue knows.

JSON after its CRC-32: {"targets": {topic: text}, "transaction": text}. Dequeue replaces it at its
start and when a text changes; `status` reads it. It is a hint, never synced.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from duewheel.checkpoints.fs import HOST_FS
from duewheel.checkpoints.json_fields import MISSHAPEN, name, read_json, swap_json

FILE_NAME = "obstacles"


class Obstacles(NamedTuple):
    """The obstacles at one moment."""

    # by topic: which partitions take no writes, and why; the newest topics
    targets: Mapping[str, str] = MappingProxyType({})
    transaction: str = ""  # why the transactional id cannot be taken; empty if it can

    def write(self, directory: Path) -> None:
        """Replaces the file.

        Raises:
            OSError: the disk is full, or fails; the old file stays.
        """
        value = {"targets": dict(self.targets), "transaction": self.transaction}
        swap_json(directory / FILE_NAME, value, HOST_FS)

    @classmethod
    def read(cls, directory: Path) -> Obstacles:
        """Reads the file; without obstacles if it is missing or damaged."""
        try:
            raw = read_json(directory / FILE_NAME)
            targets = {name(topic): name(text) for topic, text in raw["targets"].items()}
            return cls(targets, name(raw["transaction"]))
        except (FileNotFoundError, *MISSHAPEN):
            return cls()
