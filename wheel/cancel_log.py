"""The cancel log: what is to be left out when its slot is delivered, in two files per hour.

    cancels/<hour>     records of the timer log's 52 bytes, magic 4: of their fields only the write
                       time, the hash of the id, and where the request lies mean something
    requests/<hour>    the request as a stored message: the id of the timers that it is to meet, its
                       place in Kafka, and key, value and headers for its answer

The hour is that of the earliest open slot when they are written: it never falls. Each hour's files
are one *segment*. Committed records never change; how much of a segment counts is in the commit
page. Ingest appends, dequeue reads, and unlinks the oldest segments once all in them is over and
no log on disk has a timer that they may have left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from duewheel.errors import CorruptFile
from duewheel.schemas import columns
from duewheel.schemas.columns import Column
from duewheel.schemas.timers import Int32, Int64, TimerBatch
from duewheel.wheel.hour_files import HourFiles
from duewheel.wheel.layout import (
    MAGIC_ABANDONED,
    MAGIC_CANCEL,
    NO_POSITION,
    RECORD,
    RECORD_BYTES,
    id_hash_of,
    pack_reserved,
)
from duewheel.wheel.message_store import MessageStore, StoredMessages, pieces
from duewheel.wheel.placing import seal, stored_messages
from duewheel.wheel.timer_log import Records

FOLDER = "cancels"
REQUESTS_FOLDER = "requests"
FOLDERS = (FOLDER, REQUESTS_FOLDER)

Lengths = tuple[int, int]  # committed bytes of a segment's two files


@dataclass(frozen=True, slots=True)
class CancelRows:
    """Cancels read back, in the order in which they were written.

    Attributes:
        topic: number of the timer topic, as in the `topics` file.
        partition, offset: where the cancel lies there.
        id_hash, timer_id: of the timers that it is to meet.
        hour, position, size: its record in the cancel log, and bytes of its request there.
    """

    topic: Int32
    partition: Int32
    offset: Int64
    id_hash: Int64
    timer_id: Column
    hour: Int64
    position: Int64
    size: Int64

    def __len__(self) -> int:
        return len(self.offset)

    def take(self, rows: Int64) -> CancelRows:
        """Those rows, in the given order."""
        return CancelRows(
            self.topic[rows],
            self.partition[rows],
            self.offset[rows],
            self.id_hash[rows],
            columns.take(self.timer_id, rows),
            self.hour[rows],
            self.position[rows],
            self.size[rows],
        )


class CancelLog:
    """The segments of one data directory. Not thread-safe."""

    def __init__(self, directory: Path) -> None:
        self.files = HourFiles(directory / FOLDER)
        self.requests = MessageStore(directory, REQUESTS_FOLDER)

    @property
    def folders(self) -> tuple[HourFiles, HourFiles]:
        """Records and requests, in the order of a segment's lengths."""
        return self.files, self.requests.files

    def write(
        self, hour: int, lengths: Lengths, batch: TimerBatch, source_ids: Int32, now_ms: int
    ) -> Lengths:
        """Append behind `lengths`; returns the new ones.

        Args:
            hour: the segment.
            lengths: of it so far.
            batch: cancels and reschedules only.
            source_ids: topic number of each of `batch.partitions`.
            now_ms: the write time.
        """
        # Whatever target the row names, the request has none.
        no_target = np.zeros(max(len(batch.targets), 1), np.int32)
        requests = stored_messages(batch, source_ids, no_target)
        size = columns.lengths(requests)
        records = np.zeros(len(batch), RECORD)
        records["size"] = RECORD_BYTES
        records["prev_pos"] = NO_POSITION
        records["magic"] = MAGIC_CANCEL
        records["write_time"] = now_ms
        records["offset_py"] = lengths[1] + np.cumsum(size) - size
        records["size_py"] = size
        records["reserved"] = pack_reserved(np.zeros(len(batch), np.int64), batch.id_hash)
        octets = seal(requests, records)
        self.requests.files.write(hour, octets, lengths[1])
        self.files.write(hour, records.tobytes(), lengths[0])
        return lengths[0] + records.nbytes, lengths[1] + int(size.sum())

    def read(self, hour: int, start: int, end: int) -> Iterator[CancelRows]:
        """The cancels of a segment between two positions of its records, a bounded number at once.

        Raises:
            CorruptFile: records or requests are damaged, or missing.
        """
        records = self._records(hour, start, end)
        alive = np.flatnonzero(records["magic"] != MAGIC_ABANDONED)
        position = start + alive * RECORD_BYTES
        first = 0
        for piece in pieces(records[alive]):
            requests = self.requests.read(hour, piece)
            prefix = requests.prefix
            yield CancelRows(
                topic=prefix["source_topic"].astype(np.int32),
                partition=prefix["source_partition"].astype(np.int32),
                offset=prefix["source_offset"].astype(np.int64),
                id_hash=id_hash_of(piece["reserved"]),
                timer_id=requests.timer_id,
                hour=np.full(len(piece), hour, np.int64),
                position=position[first : first + len(piece)],
                size=piece["size_py"].astype(np.int64),
            )
            first += len(piece)

    def abandoned(self, hour: int, start: int, end: int) -> Int64:
        """Hashes of the ids in abandoned records between two positions."""
        records = self._records(hour, start, end)
        return id_hash_of(records["reserved"][records["magic"] == MAGIC_ABANDONED])

    def requests_at(self, hour: int, positions: Int64) -> StoredMessages:
        """The requests of the records at these positions.

        Raises:
            CorruptFile: they are damaged.
        """
        found = [self.files.read(hour, at, RECORD_BYTES) for at in positions.tolist()]
        return self.requests.read(hour, np.frombuffer(b"".join(found), RECORD))

    def _records(self, hour: int, start: int, end: int) -> Records:
        records = np.frombuffer(self.files.read(hour, start, end - start), RECORD)
        known = (records["magic"] == MAGIC_CANCEL) | (records["magic"] == MAGIC_ABANDONED)
        bad = (records["size"] != RECORD_BYTES) | ~known
        if np.any(bad):
            at = start + int(np.flatnonzero(bad)[0]) * RECORD_BYTES
            raise CorruptFile(self.files.path(hour), at, "this is no record of a cancel")
        return records

    def abandon(self, hour: int, positions: Int64) -> None:
        """Say of the records at these positions that they are of no effect any more."""
        for at in positions.tolist():
            record = np.frombuffer(self.files.read(hour, at, RECORD_BYTES), RECORD).copy()
            record["magic"] = MAGIC_ABANDONED
            self.files.write(hour, record.tobytes(), at)

    def unlink_below(self, hour: int) -> None:
        """Remove the segments below `hour`."""
        for folder in self.folders:
            folder.unlink_below(hour)

    def forget_below(self, hour: int) -> None:
        """Let go of segments below `hour`."""
        for folder in self.folders:
            folder.forget_below(hour)

    def close(self) -> None:
        """Let go of every file."""
        for folder in self.folders:
            folder.close()
