"""The cancel log: the outcome of each cancel, from which dequeue writes replies and chases.

Two files per hour are one *segment*:

    cancels/<hour>     records in the timer log's 52 bytes: magic is 4 and the outcome, prev_pos a
                       check; of the other fields only offset_py, size_py and the id hash are used
    requests/<hour>    the request as a stored message: the id of the timers that it matches, its
                       position in Kafka, and key, value and headers for the reply

The hour is that of the earliest open slot at the write, so it never falls. The commit page has the
lengths of a segment. Of committed records only `cut_at` changes.

Threads: ingest appends under engine.lock, because an outcome depends on the closed slots. Dequeue
reads segments from front to back, once, and unlinks those with all replies committed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from duewheel.checkpoints.fs import HOST_FS, FileSystem
from duewheel.errors import CorruptFile
from duewheel.schemas import columns
from duewheel.schemas.arrays import Bool, Int32, Int64
from duewheel.schemas.batches import TimerBatch
from duewheel.schemas.header_names import Answer
from duewheel.wheel.storage.byte_layouts import (
    CUT_AT_BITS,
    LEVEL_MASK,
    MAGIC_CANCEL,
    RECORD,
    RECORD_BYTES,
    cancel_checks,
    level_of,
    pack_reserved,
    with_level,
)
from duewheel.wheel.storage.hour_files import HourFiles
from duewheel.wheel.storage.message_store import MessageStore, StoredMessages, split_by_limits
from duewheel.wheel.storage.record_builder import seal, stored_messages
from duewheel.wheel.storage.timer_log import Records

FOLDER = "cancels"
REQUESTS_FOLDER = "requests"
FOLDERS = (FOLDER, REQUESTS_FOLDER)

OUTCOMES = (
    *(Answer.CANCELLED, Answer.ALREADY_DELIVERED, Answer.UNKNOWN),
    *("chase", "chase, found"),
    *(Answer.KEPT, Answer.TAKEN),
)
"""Outcomes of a cancel: its reply; or, if the cancel is undecided, a chase, which dequeue writes
after copies that may be in flight (cancel_replies.py). `found`: it has cancelled a timer already.
The last two are replies to timers that `keep`. Files have the indexes: new ones come last.
"""
CANCELLED, ALREADY_DELIVERED, UNKNOWN, CHASE, CHASE_FOUND, KEPT, TAKEN = range(len(OUTCOMES))

_APPENDED = (1 << CUT_AT_BITS) - 1  # the bits of magic without `cut_at`

Lengths = tuple[int, ...]  # committed bytes of a segment's two files


def is_chase(outcome: Int32) -> Bool:
    """Returns which cancels are undecided."""
    chased: Bool = (outcome == CHASE) | (outcome == CHASE_FOUND)
    return chased


@dataclass(frozen=True, slots=True)
class CancelRows:
    """Cancels that were read, in the order of their writes."""

    outcome: Int32  # index in OUTCOMES
    # As stored. Three fields of the prefix have another meaning than in a timer. `origin_offset`:
    # offset of the user's cancel. `source_offset`: offset of this record, another one in a chase.
    # `due_ms`: first offset of the only timer that it matches, or ANY_OFFSET.
    requests: StoredMessages
    position: Int64  # of the record in its segment
    # Assignment epoch from which its partition is cut short before it: then it has no effect; 0:
    # none. An accepted loss sets it before the transaction that accepts, which may fail.
    cut_at: Int32

    def __len__(self) -> int:
        return len(self.outcome)


class CancelLog:
    """The segments of one data directory. Not thread-safe."""

    def __init__(self, directory: Path, fs: FileSystem = HOST_FS) -> None:
        self.files = HourFiles(directory / FOLDER, fs)
        self.requests = MessageStore(directory, fs, REQUESTS_FOLDER)

    @property
    def folders(self) -> tuple[HourFiles, HourFiles]:
        """Records and requests, in the order of a segment's lengths."""
        return self.files, self.requests.files

    def write(
        self,
        hour: int,
        lengths: Lengths,
        batch: TimerBatch,
        source_ids: Int32,
        outcome: Int32,
        now_ms: int,
    ) -> Lengths:
        """Appends cancels, reschedules, chases and timers with `keep` to a segment at `lengths`;
        returns the new lengths. `source_ids` has the number of each of `batch.partitions` in the
        file `topics`.
        """
        # The reply needs neither the target of a reschedule nor a due time.
        batch = replace(batch, targets=[""] * len(batch.targets), due_ms=batch.named_offset)
        requests = stored_messages(batch, source_ids)
        size = columns.lengths(requests)
        records = np.zeros(len(requests), RECORD)
        records["size"] = RECORD_BYTES
        records["magic"] = with_level(np.full(len(batch), MAGIC_CANCEL, np.int32), outcome)
        records["write_time"] = now_ms
        records["offset_py"] = lengths[1] + np.cumsum(size) - size
        records["size_py"] = size
        records["reserved"] = pack_reserved(np.zeros(len(records), np.int64), batch.id_hash)
        records["prev_pos"] = cancel_checks(records)
        octets = seal(requests, records, batch.id_hash)
        # Both files are uncommitted until the commit page has these lengths: a kill leaves bytes
        # that the next batch overwrites.
        self.requests.files.write(hour, octets, lengths[1])
        self.files.write(hour, records.tobytes(), lengths[0])
        return lengths[0] + records.nbytes, lengths[1] + int(size.sum())

    def read(self, hour: int, records: Records, position: Int64) -> CancelRows:
        """Reads the requests of these records; `position` is that of each.

        Raises:
            CorruptFile: requests are damaged, or missing.
        """
        return CancelRows(
            level_of(records["magic"]),
            self.requests.read(hour, _as_appended(records)),
            position,
            (records["magic"] >> CUT_AT_BITS).astype(np.int32),
        )

    def records(self, hour: int, start: int, end: int) -> Records:
        """Reads the records between two positions.

        Raises:
            CorruptFile: they are damaged, or missing.
        """
        records = np.frombuffer(self.files.read(hour, start, end - start), RECORD)
        known = (records["magic"] & _APPENDED & ~LEVEL_MASK) == MAGIC_CANCEL
        known &= level_of(records["magic"]) < len(OUTCOMES)
        bad = (records["size"] != RECORD_BYTES) | ~known
        bad |= records["prev_pos"] != cancel_checks(records)
        # A whole record in the place of another would have its reply written twice.
        expected = np.append(-1 if start else 0, _ends(records)[:-1])
        bad |= (records["offset_py"] != expected) & (expected >= 0)
        if np.any(bad):
            at = start + int(np.flatnonzero(bad)[0]) * RECORD_BYTES
            raise CorruptFile(self.files.path(hour), at, "this is no record of a cancel")
        return records

    def blocks(self, hour: int, length: int, rows_max: int = 1_000) -> Iterator[CancelRows]:
        """Reads all cancels in `length` bytes of a segment, a bounded part at a time.

        Raises:
            CorruptFile: records or requests are damaged, or missing.
        """
        step = rows_max * RECORD_BYTES
        for start in range(0, length, step):
            records, at = self.records(hour, start, min(start + step, length)), start
            for part in split_by_limits(records):  # a producer decides how large a request is
                yield self.read(hour, part, at + np.arange(len(part)) * RECORD_BYTES)
                at += part.nbytes

    def cut(self, hour: int, positions: Int64, cut_at: Int32) -> None:
        """Sets `cut_at` of the records at these positions: from that epoch on they get no reply.

        Raises:
            CorruptFile: a record is damaged: a new check would hide that.
        """
        for at, epoch in zip(positions.tolist(), cut_at.tolist(), strict=True):
            record = self.records(hour, at, at + RECORD_BYTES).copy()
            # Beside the check: a write that a full disk ends half-way has both, or none.
            record["magic"] = (record["magic"] & _APPENDED) | (epoch << CUT_AT_BITS)
            record["prev_pos"] = cancel_checks(record)
            self.files.write(hour, record.tobytes(), at)

    def unlink_below(self, hour: int) -> None:
        for folder in self.folders:
            folder.unlink_below(hour)

    def forget_below(self, hour: int) -> None:
        for folder in self.folders:
            folder.forget_below(hour)

    def close(self) -> None:
        for folder in self.folders:
            folder.close()


def _ends(records: Records) -> Int64:
    """Returns where the request of each record ends, which is where the next one begins."""
    ends: Int64 = records["offset_py"].astype(np.int64) + records["size_py"]
    return ends


def _as_appended(records: Records) -> Records:
    """Returns the records without later marks: the checksums of their requests cover that form."""
    appended = records.copy()
    appended["magic"] &= _APPENDED
    appended["prev_pos"] = cancel_checks(appended)
    return appended
