"""The `topics` file: numbers the timer topics, so that a stored message has its source in 4 bytes.

The file has a line for every timer topic that the shard has ever had. Target topics are not
numbered: their names come from producers, in any number, and are in the messages.

A line: CRC-32 of the rest as 8 hex digits, a blank, the id, a blank, the name. Ids count the lines
from 0. A deleted or recreated timer topic keeps its id under another name (`retire`).

- Only ingest appends, before it commits the batch with the new id; dequeue reads the file again
  when it needs an id that it has not loaded.
- A last line without its newline, or with a wrong checksum, is an append that a kill cut short:
  nothing refers to it, and the next append overwrites it.
- The commit page has the number of names that batches may refer to. With fewer names in the file
  one id would stand for two topics (`require`).
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from duewheel.checkpoints.fs import HOST_FS, FileSystem, checked_line, checked_text
from duewheel.errors import CorruptFile
from duewheel.schemas.arrays import Int32
from duewheel.schemas.batches import RETIRED, TopicPartition
from duewheel.wheel.storage.message_store import Prefixes

FILE_NAME = "topics"


def public_name(name: str) -> str:
    """Returns Kafka's name of a topic, also of a retired one."""
    return name.partition(RETIRED)[0]


class TopicNames:
    """Names by id and ids by name. Not thread-safe."""

    def __init__(self, directory: Path, fs: FileSystem = HOST_FS) -> None:
        self.path = directory / FILE_NAME
        self._fs = fs
        self._fd: int | None = None  # opened by the first append
        self._names: list[str] = []
        self._ids: dict[str, int] = {}
        self._bytes = 0
        self._is_read = False

    def make_file(self) -> None:
        """Makes the file, unless it exists."""
        self._opened()

    def _opened(self) -> int:
        if self._fd is None:
            self._fd = self._fs.open_file(self.path)
        return self._fd

    def refresh(self) -> None:
        """Reads the names that were appended since; a missing file has none.

        Raises:
            CorruptFile: a line before the last one fails its checksum.
        """
        self._is_read = True
        try:
            data = self.path.read_bytes()
        except FileNotFoundError:
            data = b""
        while (end := data.find(b"\n", self._bytes)) >= 0:
            text = checked_text(data[self._bytes : end])
            if text is None:
                if data.find(b"\n", end + 1) >= 0:
                    raise CorruptFile(self.path, self._bytes, "a topic name fails its checksum")
                return
            number, _, name = text.decode().partition(" ")
            if number != str(len(self._names)):
                raise CorruptFile(self.path, self._bytes, f"topic id {number} in another's line")
            self._ids[name] = len(self._names)
            self._names.append(name)
            self._bytes = end + 1

    def __len__(self) -> int:
        return len(self._names)

    def require(self, count: int) -> None:
        """Refuses a file with fewer than `count` names.

        Raises:
            CorruptFile: the last ones are lost or damaged, and messages refer to them.
        """
        if len(self) < count:
            self.refresh()
        if len(self) < count:
            detail = f"{len(self)} topic names can be read, {count} are in use"
            raise CorruptFile(self.path, self._bytes, detail)

    def ids(self, names: list[str]) -> Int32:
        """Returns the ids of `names`; appends new ones."""
        if not self._is_read:
            self.refresh()
        for name in names:
            if name not in self._ids:
                line = checked_line(f"{len(self)} {name}".encode())
                # At the end of the whole lines: this overwrites a line that a kill has cut short.
                self._fs.write_at(self._opened(), line, self._bytes)
                self._ids[name] = len(self._names)
                self._names.append(name)
                self._bytes += len(line)
        return np.array([self._ids[name] for name in names], np.int32)

    def names(self, highest_id: int = -1) -> list[str]:
        """Returns the names by id, up to `highest_id` at least.

        Raises:
            CorruptFile: the file has no such id.
        """
        if highest_id >= len(self._names):
            self.refresh()
        if highest_id >= len(self._names):
            raise CorruptFile(self.path, self._bytes, f"no topic has the id {highest_id}")
        return self._names

    def sources(self, prefix: Prefixes) -> tuple[list[TopicPartition], Int32]:
        """Returns the source partitions of messages, and each message's index among them.

        Raises:
            CorruptFile: the file has no such topic.
        """
        # Unsigned: a prefix that is not verified may have any numbers.
        topic, partition = (
            prefix[field].astype(np.uint32).astype(np.uint64)
            for field in ("source_topic", "source_partition")
        )
        codes, source = np.unique(topic << np.uint64(32) | partition, return_inverse=True)
        found = [(code >> 32, code & 0xFFFFFFFF) for code in codes.tolist()]
        names = self.names(max((number for number, _ in found), default=-1))
        return [(names[number], of) for number, of in found], source.astype(np.int32)

    def retire(self, name: str) -> None:
        """Renames a topic, durably, to a name that Kafka does not allow; `public_name` returns the
        old one. Later rows under the old name are of another topic.
        """
        self.refresh()
        if name not in self._ids:
            return
        number = self._ids[name]
        names = [*self._names]
        names[number] = f"{name}{RETIRED}{number}"
        lines = [checked_line(f"{n} {each}".encode()) for n, each in enumerate(names)]
        self._fs.replace_file(self.path, b"".join(lines))
        self.close()
        self.forget()

    def cut_damaged(self) -> None:
        """Drops the first line that fails its checksum and all lines after it. Called by a
        recovery, which keeps no file if files refer to a dropped line (`require`).
        """
        try:
            self.refresh()
        except CorruptFile as error:
            self._fs.cut(self._opened(), error.offset)

    def forget(self) -> None:
        """Drops the loaded names; the next call reads the file again."""
        self._names, self._ids, self._bytes, self._is_read = [], {}, 0, False

    def close(self) -> None:
        if self._fd is not None:
            self._fs.close(self._fd)
            self._fd = None
