"""The live fields of a `state` file as of one read, without the file's pages.

`duewheel health` reads nothing else of the directory, and runs every few seconds: the module and
its imports are light. The identity is not checked. Fields of another format are of no consequence:
no process of this release then holds the locks, so the shard is not ready.
"""

from __future__ import annotations

from pathlib import Path

from duewheel.checkpoints.live_fields import FILE_NAME, LIVE_BYTES, LIVE_OFFSET, LiveFields
from duewheel.errors import CorruptFile


class LiveSnapshot:
    """The live fields of a data directory, for readers alone.

    Attributes:
        path: of the file.
        live: its fields.
    """

    def __init__(self, directory: Path) -> None:
        """
        Raises:
            FileNotFoundError: there is no such file.
            CorruptFile: the file is too short.
        """
        self.path = directory / FILE_NAME
        with self.path.open("rb") as file:
            file.seek(LIVE_OFFSET)
            fields = file.read(LIVE_BYTES)
        if len(fields) < LIVE_BYTES:
            raise CorruptFile(self.path, LIVE_OFFSET, f"only {len(fields)} bytes of live fields")
        self.live = LiveFields(memoryview(fields).cast("q"), _nothing)


def _nothing() -> None:
    """Makes nothing durable: the fields are a copy, which no caller may change."""
