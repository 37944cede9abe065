"""The `topics` file: numbers timer topics; stored messages hold four bytes of where they are from.

One line for every timer topic that the shard has ever had. Target topics are not numbered: their
names come from producers, without end, and lie in the messages.

The line: CRC-32 of the rest as 8 hex digits, a blank, the id, a blank, the name. Ids count
the lines from 0. Only ingest appends, before the batch that uses the id is committed; dequeue looks
again when it meets an id that it does not know. A last line without its end or with a wrong
checksum is an append that a kill cut short: nothing refers to it, and the next append writes over
it. How many names batches may refer to is in the commit page: if fewer are found, ids would be
given twice (`require`).

A timer topic that is gone, or was recreated, keeps its id under another name (`retire`).
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
    """What Kafka calls, or called, a topic."""
    return name.partition(RETIRED)[0]


class TopicNames:
    """Names by id and ids by name. Not thread-safe."""

    def __init__(self, directory: Path, fs: FileSystem = HOST_FS) -> None:
        self.path = directory / FILE_NAME
        self._fs = fs
        self._fd = fs.open_file(self.path)
        self._names: list[str] = []
        self._ids: dict[str, int] = {}
        self._bytes = 0
        self._is_read = False

    def refresh(self) -> None:
        """Read the names that have been appended since.

        Raises:
            CorruptFile: a line before the last one fails its checksum.
        """
        self._is_read = True
        data = self.path.read_bytes()
        while (end := data.find(b"\n", self._bytes)) >= 0:
            text = checked_text(data[self._bytes : end])
            if text is None:
                if data.find(b"\n", end + 1) >= 0:
                    raise CorruptFile(self.path, self._bytes, "a topic name fails its checksum")
                return
            number, _, name = text.decode().partition(" ")
            if number != str(len(self._names)):
                raise CorruptFile(self.path, self._bytes, f"topic {number} is in another's place")
            self._ids[name] = len(self._names)
            self._names.append(name)
            self._bytes = end + 1

    def __len__(self) -> int:
        return len(self._names)

    def require(self, count: int) -> None:
        """Refuse to go on with fewer than `count` names.

        Raises:
            CorruptFile: the last ones are lost or damaged, and messages refer to them.
        """
        if len(self) < count:
            self.refresh()
        if len(self) < count:
            detail = f"{len(self)} topic names can be read, {count} are in use"
            raise CorruptFile(self.path, self._bytes, detail)

    def ids(self, names: list[str]) -> Int32:
        """The ids of `names`, numbering those that are new."""
        if not self._is_read:
            self.refresh()
        for name in names:
            if name not in self._ids:
                line = checked_line(f"{len(self)} {name}".encode())
                self._fs.write_at(self._fd, line, self._bytes)
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

    def sources(self, prefix: Prefixes) -> tuple[list[TopicPartition], Int32]:
        """The source partitions of some messages, and each message's index among them.

        Raises:
            CorruptFile: no such topic was ever numbered.
        """
        codes = prefix["source_topic"].astype(np.int64) << 32 | prefix["source_partition"]
        found, source = np.unique(codes, return_inverse=True)
        names = self.names(int(found.max(initial=-1)) >> 32)
        return [(names[c >> 32], c & 0xFFFFFFFF) for c in found.tolist()], source.astype(np.int32)

    def retire(self, name: str) -> None:
        """Give the topic that has had this name until now one that no topic of Kafka's can have;
        `public_name` tells the old one. What comes under it is another topic. Durable.
        """
        self.refresh()
        if name not in self._ids:
            return
        number = self._ids[name]
        names = [*self._names]
        names[number] = f"{name}{RETIRED}{number}"
        lines = [checked_line(f"{n} {each}".encode()) for n, each in enumerate(names)]
        self._fs.replace_file(self.path, b"".join(lines))
        self._fs.close(self._fd)
        self._fd = self._fs.open_file(self.path)
        self.forget()

    def cut_damaged(self) -> None:
        """Drop the first line that fails its checksum and all behind it; for a recovery, which
        keeps nothing that refers to them.
        """
        try:
            self.refresh()
        except CorruptFile as error:
            self._fs.cut(self._fd, error.offset)

    def forget(self) -> None:
        """Read everything again when it is next needed."""
        self._names, self._ids, self._bytes, self._is_read = [], {}, 0, False

    def close(self) -> None:
        """Close the file."""
        self._fs.close(self._fd)
