"""Encodes a batch's columns as bytes in slot order: stored messages and log records.

The checksum of a message covers its log record, and the record has the positions. So: 1. messages
without checksums (`stored_messages`)  2. positions by their sizes (`RowPositions`)  3. records
(`log_records`)  4. checksums (`seal`). This module reads and writes no file.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from duewheel.schemas import columns
from duewheel.schemas.arrays import Bool, Int32, Int64
from duewheel.schemas.batches import TimerBatch
from duewheel.schemas.columns import Column
from duewheel.schemas.hashing import topic_hash
from duewheel.schemas.header_names import CHASE_FLAG_RESCHEDULE
from duewheel.wheel.slots import DELAY_MS_MAX
from duewheel.wheel.storage.byte_layouts import (
    FLAG_DEAD_LETTER,
    FLAG_KEEP,
    FLAG_RESCHEDULE,
    FLAG_SEED,
    PREFIX,
    PREFIX_BYTES,
    RECORD,
    RECORD_BYTES,
    RUN_RECORDS_MAX,
    head_checks,
    pack_magic,
    pack_reserved,
)
from duewheel.wheel.storage.message_store import (
    CHECKED_AT_ONCE,
    as_column,
    at_every_byte,
    checksums,
)
from duewheel.wheel.storage.runs import Runs
from duewheel.wheel.storage.timer_log import Records

_U1, _U2 = 1 << 8, 1 << 16  # numpy would silently truncate a larger value in the prefix


@dataclass(frozen=True, slots=True)
class RowPositions:
    """The positions of the rows of a batch, in slot order."""

    slot: Int64  # rising
    log_position: Int64  # of the row's record in its hour's log
    message_position: Int64  # in its hour's messages
    prev_pos: Int64
    run_start: Int64  # indexes of the rows that begin a run

    def runs(self) -> Runs:
        """The batch's runs, one per slot."""
        ends = np.append(self.run_start[1:], len(self.slot))[: len(self.run_start)]
        count = ends - self.run_start
        assert count.max(initial=0) < RUN_RECORDS_MAX, "a batch is far smaller than a run may be"
        return Runs(
            self.slot[self.run_start],
            self.log_position[self.run_start],
            self.log_position[ends - 1],
            self.prev_pos[self.run_start],
            count,
        )

    def distance(self) -> Int64:
        """Computes the number of records from the first of each row's run to the row."""
        lengths = np.diff(np.append(self.run_start, len(self.slot)))
        return np.arange(len(self.slot)) - np.repeat(self.run_start, lengths)


def stored_messages(batch: TimerBatch, source_ids: Int32) -> Column:
    """Encodes the stored message of each row, its checksums still zero. `source_ids` has the number
    of each of `batch.partitions` in the file `topics`.
    """
    prefix = np.zeros(len(batch), PREFIX)
    target = columns.take(columns.binary(map(str.encode, batch.targets)), batch.target)
    partitions = np.array([number for _, number in batch.partitions], np.int32)
    id_size, target_size = columns.lengths(batch.timer_id), columns.lengths(target)
    assert id_size.max(initial=0) < _U1, "requests are bounded"
    for column in (target_size, batch.roll_times, batch.retries):
        assert 0 <= column.min(initial=0) <= column.max(initial=0) < _U2, "requests are bounded"
    replaces = batch.timer & batch.cancels | (batch.chase_flags & CHASE_FLAG_RESCHEDULE != 0)
    prefix["flags"] = (
        np.where(batch.rejected, FLAG_DEAD_LETTER, 0)
        | np.where(replaces, FLAG_RESCHEDULE, 0)
        | np.where(batch.keeps, FLAG_KEEP, 0)
        | np.where(batch.seed, FLAG_SEED, 0)
    )
    prefix["id_size"] = id_size
    prefix["source_offset"] = batch.offset
    prefix["origin_offset"] = batch.origin_offset
    prefix["due_ms"] = batch.due_ms
    prefix["source_topic"] = source_ids[batch.partition]
    prefix["source_partition"] = partitions[batch.partition]
    prefix["target_size"] = target_size
    prefix["target_partition"] = batch.target_partition
    prefix["key_hash"] = batch.key_hash
    prefix["key_value_size"] = columns.lengths(batch.key_value)
    prefix["header_count"] = batch.header_count
    prefix["roll_times"] = batch.roll_times
    prefix["retries"] = batch.retries
    return columns.join(as_column(prefix), batch.timer_id, target, batch.key_value, batch.headers)


def log_records(
    batch: TimerBatch,
    rolled: Bool,
    lookup_hash: Int64,
    positions: RowPositions,
    size: Int64,
    precision_ms: int,
    now_ms: int,
    key: str,
) -> Records:
    """Makes the log record of each row; rows in slot order, as `positions`. `size` is that of the
    stored message, in bytes; `key` that of the directory's hashes. The write time is clamped to the
    reach of the 4-byte delay.
    """
    assert np.all(positions.slot[1:] >= positions.slot[:-1]), "rows are in slot order"
    assert np.all(positions.prev_pos < positions.log_position), "a chain leads back"
    slot_ms = positions.slot * precision_ms
    write_time = np.clip(now_ms, slot_ms - DELAY_MS_MAX + 1, slot_ms + DELAY_MS_MAX - 1)
    topic_hashes = np.array([topic_hash(name, key) for name in batch.targets], np.int32)
    records = np.empty(len(batch), RECORD)
    records["size"] = RECORD_BYTES
    records["prev_pos"] = positions.prev_pos
    records["magic"] = pack_magic(rolled, batch.recurring, batch.level)
    records["write_time"] = write_time
    records["delay"] = slot_ms - write_time
    records["offset_py"] = positions.message_position
    records["size_py"] = size
    records["topic_hash"] = topic_hashes[batch.target]
    records["reserved"] = pack_reserved(positions.distance(), lookup_hash)
    return records


def seal(messages: Column, records: Records, id_hash: Int64) -> memoryview:
    """Fills the checksums into the bytes of `stored_messages`; returns these bytes. `id_hash` is
    that of each id, also of a default one.
    """
    starts, octets = columns.offsets(messages)[:-1], columns.data(messages)
    prefix = at_every_byte(octets, PREFIX)
    for first in range(0, len(records), CHECKED_AT_ONCE):
        part = slice(first, first + CHECKED_AT_ONCE)
        own = prefix[starts[part]]
        own_hash = np.where(own["id_size"] > 0, id_hash[part], 0)
        prefix["head_check"][starts[part]] = head_checks(records[part], own, own_hash)
    prefix["crc"][starts] = checksums(records, messages)  # the last: it covers head_check, too
    return memoryview(octets.data)


assert PREFIX.fields is not None and PREFIX.fields["crc"][1] == 0, "it is read there"
assert PREFIX_BYTES % 8 == 0
