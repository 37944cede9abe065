"""The cancel log: what is to be left out when its slot is delivered, in two files per hour.

    cancels/<hour>     records of the timer log's 52 bytes, magic 4: of their fields only the write
                       time, the hash of the id, and where the request lies mean something;
                       prev_pos is a check of the others
    requests/<hour>    the request as a stored message: the id of the timers that it is to meet, its
                       place in Kafka, and key, value and headers for its answer; without these
                       where a copy has brought it again (bringing_again.py)

The hour is that of the earliest open slot when they are written: it never falls. Each hour's files
are one *segment*. Committed records never change; how much of a segment counts is in the commit
page. Ingest appends, dequeue reads, and unlinks the oldest segments once all in them is over and
no log on disk has a timer that they may have left out.

The check is there because records are passed over by their hash alone: the checksum of a request
is looked at where the hash is a wanted one, and a damaged hash would be no cancel, without a word.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from pathlib import Path

import numpy as np

from duewheel.errors import CorruptFile
from duewheel.schemas import columns
from duewheel.schemas.columns import Column
from duewheel.schemas.timers import Bool, Int32, Int64, TimerBatch
from duewheel.wheel.hour_files import HourFiles
from duewheel.wheel.layout import (
    MAGIC_AGAIN,
    MAGIC_CANCEL,
    MAGIC_CUT_OFF,
    PREFIX,
    RECORD,
    RECORD_BYTES,
    cancel_checks,
    id_hash_of,
    pack_reserved,
)
from duewheel.wheel.message_store import MessageStore, StoredMessages, as_column, pieces
from duewheel.wheel.placing import seal, stored_messages
from duewheel.wheel.timer_log import Records

FOLDER = "cancels"
REQUESTS_FOLDER = "requests"
FOLDERS = (FOLDER, REQUESTS_FOLDER)

_RECORDS_AT_ONCE = 1 << 15  # read in one go: 1.7 MB, which stay in the processor's cache

Lengths = tuple[int, int]  # committed bytes of a segment's two files


@dataclass(frozen=True, slots=True)
class CancelRows:
    """Cancels read back, in the order in which they were written.

    Attributes:
        topic: number of the timer topic, as in the `topics` file.
        partition, offset: where the cancel lies there.
        id_hash, timer_id: of the timers that it is to meet.
        hour, position, size: its record in the cancel log, and bytes of its request there.
        again: a copy has brought it again: it has no answer.
    """

    topic: Int32
    partition: Int32
    offset: Int64
    id_hash: Int64
    timer_id: Column
    hour: Int64
    position: Int64
    size: Int64
    again: Bool

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
            self.again[rows],
        )

    @classmethod
    def joined(cls, parts: list[CancelRows]) -> CancelRows:
        """The rows of all parts, of which there is one, one part after the other."""
        joined = {
            field.name: np.concatenate([getattr(part, field.name) for part in parts])
            for field in fields(cls)
            if field.name != "timer_id"
        }
        return cls(timer_id=columns.concat([part.timer_id for part in parts]), **joined)


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
        batch = replace(batch, targets=[""] * len(batch.targets))
        requests = stored_messages(batch, source_ids)
        return self._append(hour, lengths, requests, batch.id_hash, MAGIC_CANCEL, now_ms)

    def write_again(self, hour: int, lengths: Lengths, rows: CancelRows, now_ms: int) -> Lengths:
        """Append cancels that have been written before, for copies; returns the new lengths.

        Args:
            hour, lengths, now_ms: as for `write`.
            rows: as they were read.
        """
        prefix = np.zeros(len(rows), PREFIX)
        prefix["id_size"] = columns.lengths(rows.timer_id)
        prefix["source_offset"] = prefix["origin_offset"] = rows.offset
        prefix["source_topic"], prefix["source_partition"] = rows.topic, rows.partition
        requests = columns.join(as_column(prefix), rows.timer_id)
        magic = MAGIC_CANCEL | MAGIC_AGAIN
        return self._append(hour, lengths, requests, rows.id_hash, magic, now_ms)

    def _append(
        self,
        hour: int,
        lengths: Lengths,
        requests: Column,
        id_hash: Int64,
        magic: int,
        now_ms: int,
    ) -> Lengths:
        size = columns.lengths(requests)
        records = np.zeros(len(requests), RECORD)
        records["size"] = RECORD_BYTES
        records["magic"] = magic
        records["write_time"] = now_ms
        records["offset_py"] = lengths[1] + np.cumsum(size) - size
        records["size_py"] = size
        records["reserved"] = pack_reserved(np.zeros(len(records), np.int64), id_hash)
        records["prev_pos"] = cancel_checks(records)
        octets = seal(requests, records)
        self.requests.files.write(hour, octets, lengths[1])
        self.files.write(hour, records.tobytes(), lengths[0])
        return lengths[0] + records.nbytes, lengths[1] + int(size.sum())

    def read(self, hour: int, start: int, end: int) -> Iterator[CancelRows]:
        """The cancels of a segment between two positions of its records, a bounded number at once.

        Raises:
            CorruptFile: records or requests are damaged, or missing.
        """
        for at, records in self.stretches(hour, start, end):
            yield from self.rows(hour, at, np.arange(len(records)), records)

    def rows(self, hour: int, at: int, rows: Int64, records: Records) -> Iterator[CancelRows]:
        """Some cancels of a stretch, a bounded number at once; none that is cut off.

        Args:
            hour, at: the segment, and where the stretch begins in it.
            rows, records: which of the stretch these are, and their records.

        Raises:
            CorruptFile: requests are damaged, or missing.
        """
        first, position = 0, at + rows * RECORD_BYTES
        for piece in pieces(records):
            requests = self.requests.read(hour, _as_written(piece))
            prefix = requests.prefix
            cancels = CancelRows(
                topic=prefix["source_topic"].astype(np.int32),
                partition=prefix["source_partition"].astype(np.int32),
                offset=prefix["source_offset"].astype(np.int64),
                id_hash=id_hash_of(piece["reserved"]),
                timer_id=requests.timer_id,
                hour=np.full(len(piece), hour, np.int64),
                position=position[first : first + len(piece)],
                size=piece["size_py"].astype(np.int64),
                again=(piece["magic"] & MAGIC_AGAIN) != 0,
            )
            yield cancels.take(np.flatnonzero((piece["magic"] & MAGIC_CUT_OFF) == 0))
            first += len(piece)

    def cut_off(self, hour: int, start: int, end: int) -> Int64:
        """Hashes of the ids in records between two positions that are cut off."""
        found = [
            id_hash_of(records["reserved"][(records["magic"] & MAGIC_CUT_OFF) != 0])
            for _, records in self.stretches(hour, start, end)
        ]
        return np.concatenate([np.empty(0, np.int64), *found])

    def requests_at(self, hour: int, positions: Int64) -> StoredMessages:
        """The requests of the records at these positions.

        Raises:
            CorruptFile: they, or the records, are damaged.
        """
        found = [self._read(hour, at, RECORD_BYTES).tobytes() for at in positions.tolist()]
        return self.requests.read(hour, _as_written(np.frombuffer(b"".join(found), RECORD)))

    def stretches(self, hour: int, start: int, end: int) -> Iterator[tuple[int, Records]]:
        """The records between two positions, a bounded number at once, and where these begin.

        Raises:
            CorruptFile: they are damaged, or missing.
        """
        for at in range(start, end, _RECORDS_AT_ONCE * RECORD_BYTES):
            yield at, self._read(hour, at, min(_RECORDS_AT_ONCE * RECORD_BYTES, end - at))

    def _read(self, hour: int, at: int, size: int) -> Records:
        """The records in these bytes; none whose check is wrong."""
        records = np.frombuffer(self.files.read(hour, at, size), RECORD)
        known = (records["magic"] & ~(MAGIC_AGAIN | MAGIC_CUT_OFF)) == MAGIC_CANCEL
        bad = (records["size"] != RECORD_BYTES) | ~known
        bad |= records["prev_pos"] != cancel_checks(records)
        if np.any(bad):
            bad_at = at + int(np.flatnonzero(bad)[0]) * RECORD_BYTES
            raise CorruptFile(self.files.path(hour), bad_at, "this is no record of a cancel")
        return records

    def cut(self, hour: int, positions: Int64) -> None:
        """Say of the records at these positions that they are of no effect any more.

        Raises:
            CorruptFile: one is damaged: a new check would hide it.
        """
        for at in positions.tolist():
            record = self._read(hour, at, RECORD_BYTES).copy()
            record["magic"] |= MAGIC_CUT_OFF
            record["prev_pos"] = cancel_checks(record)
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


def _as_written(records: Records) -> Records:
    """The records as their checksums have them."""
    written = records.copy()
    written["magic"] &= ~MAGIC_CUT_OFF
    written["prev_pos"] = cancel_checks(written)
    return written
