"""The `topics` file: numbers topic names; stored messages hold four bytes instead of a name.

A line per name: its CRC-32 as 8 hex digits, a blank, the name. The line's number, from 0, is the
id. Only ingest appends, before the batch that uses the id is committed; dequeue looks again when it
meets an id that it does not know. A last line without its end or with a wrong checksum is an append
that a kill cut short: nothing refers to it, and the next append writes over it.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from duewheel.checkpoints import files
from duewheel.errors import CorruptFile
from duewheel.schemas.timers import Int32

FILE_NAME = "topics"


class TopicNames:
    """Names by id and ids by name. Not thread-safe."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / FILE_NAME
        self._fd = files.open_file(self.path)
        self._names: list[str] = []
        self._ids: dict[str, int] = {}
        self._bytes = 0
        self.refresh()

    def refresh(self) -> None:
        """Read the names that have been appended since."""
        data = self.path.read_bytes()
        while (end := data.find(b"\n", self._bytes)) >= 0:
            name = files.checked_text(data[self._bytes : end])
            if name is None:
                if data.find(b"\n", end + 1) >= 0:
                    raise CorruptFile(self.path, self._bytes, "a topic name fails its checksum")
                return
            self._ids[name.decode()] = len(self._names)
            self._names.append(name.decode())
            self._bytes = end + 1

    def ids(self, names: list[str]) -> Int32:
        """The ids of `names`, numbering those that are new."""
        for name in names:
            if name not in self._ids:
                encoded = name.encode()
                line = files.checked_line(encoded)
                files.write_at(self._fd, line, self._bytes)
                self._ids[name] = len(self._names)
                self._names.append(name)
                self._bytes += len(line)
        return np.array([self._ids[name] for name in names], np.int32)

    def names(self, highest_id: int = -1) -> list[str]:
        """All names by id that have been read, `highest_id` at least among them.

        Raises:
            CorruptFile: no such id was ever written.
        """
        if highest_id >= len(self._names):
            self.refresh()
        if highest_id >= len(self._names):
            raise CorruptFile(self.path, self._bytes, f"no topic has the id {highest_id}")
        return self._names

    def close(self) -> None:
        """Let go of the file."""
        files.close(self._fd)
