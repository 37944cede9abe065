"""The file of bounds below which the logs cannot decide a cancel.

A cancel is decided by the rows of its timer in the logs. Some rows are no evidence:

    since    rows in slots up to this one: they are from before a recovery, and may have been
             delivered elsewhere, or not at all
    blind    by timer partition: below this offset there may be copies of timers whose originals
             have no log any more. Every offset, until the partition's end in Kafka is loaded

Dequeue writes the file at a start that is no plain restart with the newest mirror
(wheel/recovery/startup.py), and before hours are unlinked (garbage_collection.py); an accepted loss
writes it, too (accept_loss.py). Each sets `blind` to every offset; the loop lowers it to the log
end in Kafka (wheel/dequeue/partition_ends.py). Ingest reads the file under engine.lock, for each
batch with cancels. Without the file each cancel is chased.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from duewheel.checkpoints.commit_and_close_pages import Marks
from duewheel.checkpoints.fs import FileSystem
from duewheel.checkpoints.json_fields import StateFile
from duewheel.schemas.batches import TopicPartition

FILE_NAME = "cancel_bounds"
EVERY_OFFSET = 2**62
_NO_SLOT = -(2**62)


@dataclass(frozen=True, slots=True)
class CancelBounds(StateFile):
    """The file's content; see the module's head. A partition without an entry has blind 0: it was
    added after the file was written, and no log with originals of its copies was unlinked since.
    """

    file_name: ClassVar[str] = FILE_NAME

    since: int = _NO_SLOT
    blind: Marks = field(default_factory=dict)

    @property
    def unknown_ends(self) -> list[TopicPartition]:
        """Partitions whose log end is not loaded yet."""
        return [partition for partition, offset in self.blind.items() if offset == EVERY_OFFSET]

    @classmethod
    def blind_of(cls, since: int, partitions: Iterable[TopicPartition]) -> CancelBounds:
        """Makes the bounds before any log end of these partitions is loaded."""
        return cls(since, dict.fromkeys(partitions, EVERY_OFFSET))

    def write_or_remove(self, directory: Path, fs: FileSystem) -> None:
        """Replaces the file; removes it on a full disk. Without the file each cancel is chased; an
        old file would let cancels be decided without the logs that are about to be unlinked.
        """
        try:
            self.write(directory, fs)
        except OSError:
            fs.discard(directory / FILE_NAME)
