"""Holds copies in the state topic while their timer partition is closed, and moves them later.

A partition is closed to copies (`closed_to_copies`) while

    it takes no writes          no leader, or too few replicas in sync
    its topic was recreated     TIMER_ORIGIN would name messages of another topic
    it has lost its end         its log ends below C: a copy would get an offset that ingest has
                                already read, and would never be read

The last two end when the operator accepts the loss (accept_loss.py).

A held record has the batch of one slot and partition, which may be a single copy; its copies move
together. checkpoints/held_copies.py has the format, and says why the order of copies matters. The
publisher's thread owns the queue.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import chain

import numpy as np
import structlog

from duewheel.checkpoints.held_copies import (
    Held,
    batch_of,
    key_of,
    named,
    partition_of,
    value_of,
)
from duewheel.checkpoints.progress import COPY_BYTES_MAX, Progress
from duewheel.kafka.log.reader import LogReader
from duewheel.kafka.log.records import Record
from duewheel.schemas.batches import TopicPartition
from duewheel.schemas.hashing import source_names
from duewheel.schemas.header_names import COPY_MAC, LETTER, ORIGIN, TIMER_ID
from duewheel.schemas.wire.batch_header import HEADER_BYTES
from duewheel.schemas.wire.batch_reader import CorruptBatch
from duewheel.schemas.wire.copy_mac import mac_header
from duewheel.schemas.wire.record_batch import Batch
from duewheel.schemas.wire.record_codec import NO_ORIGIN
from duewheel.schemas.wire.record_rows import rows_of
from duewheel.schemas.wire.single_record import Content, Header, batches, encode, joined, several
from duewheel.wheel.encoded import Part
from duewheel.wheel.target_rules import Target

_BYTES_AT_ONCE = 4 * 1024 * 1024
# The transaction waits until they are read and joined: deliveries of other timer topics are in it.
BATCHES_AT_ONCE = 256
# The sender sends one batch of a partition at a time, so records of the state topic share batches:
# each of 2,000 timer partitions may have one. The bound is below the default of max.message.bytes.
_HELD_BATCH_BYTES = 512 * 1024
READ_BYTES = 64 * 1024 * 1024  # that one transaction reads of the state topic
RECORD_BYTES = 1024  # that a record counts for beside its value: decoding takes as long

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Moved:
    """Copies on their way to their partitions, in one transaction."""

    parts: Sequence[Part] = ()
    deletions: Sequence[Batch] = ()  # tombstones of their records in the state topic
    held: Mapping[TopicPartition, Held] = field(default_factory=dict)  # still wait after the commit


def closed_to_copies(
    partitions: Iterable[TopicPartition],
    targets: Mapping[str, Target],
    progress: Progress,
    ends: Callable[[Sequence[TopicPartition]], Mapping[TopicPartition, int]],
) -> set[TopicPartition]:
    """The timer partitions that are closed to copies now: see the module's head. One whose end is
    missing in the answer of `ends` counts as closed.
    """
    every = list(partitions)
    open_ = [
        p
        for p in every
        if targets[p[0]].takes_writes(p[1]) and progress.has_topic(p[0], targets[p[0]].topic_id)
    ]
    log_ends = ends(open_) if open_ else {}
    known = {p: each.closed_mark for p, each in progress.partitions.items()}
    whole = [p for p in open_ if log_ends.get(p, -1) >= known.get(p, 0)]
    return set(every).difference(whole)


@dataclass(frozen=True, slots=True)
class Bounds:
    """Bounds of the copies that one transaction moves."""

    batches: int
    size: int  # in bytes, unless one batch alone has more

    @classmethod
    def beside(cls, parts: Sequence[Part], batches: int) -> Bounds:
        """Bounds above the copies that a transaction with these parts can add. Otherwise a backlog
        might never end: while it exists every cancel is chased, and the chases join it.
        """
        own = sum(len(part.batch.body) for part in parts)
        return cls(batches + len(parts), _BYTES_AT_ONCE + own)


def fetch_moves(
    reader: LogReader,
    state_partition: TopicPartition,
    progress: Progress,
    free: Collection[TopicPartition],
    bounds: Bounds,
) -> Moved:
    """Reads the oldest copies for open partitions, as many as one transaction takes.

    Args:
        state_partition: the shard's partition of the state topic.
        free: the timer partitions with held copies that are open.
    """
    held = progress.held
    if not free:
        return Moved(held=held)
    stable = reader.ends([state_partition], committed=True)
    end = reader.ends([state_partition], committed=False)
    start = min(held[partition].start_offset for partition in free)
    parts = reader.records({state_partition: (start, stable[state_partition])})
    records = chain.from_iterable(records for records, _ in parts)
    return taken_batches(records, progress, free, bounds, all_seen=stable == end)


def taken_batches(
    records: Iterable[Record],
    progress: Progress,
    free: Collection[TopicPartition],
    bounds: Bounds,
    *,
    all_seen: bool,
) -> Moved:
    """Takes the copies for open partitions from the records, within the bounds.

    `all_seen`: no open transaction hides records. Only then do missing copies count as lost;
    otherwise the next transaction searches the rest.
    """
    held = progress.held
    left = {partition: held[partition] for partition in free}
    parts, moved_keys, size, read, start = list[Part](), list[bytes](), 0, 0, 0
    for record in records:
        if read > READ_BYTES:
            break
        key, value, start = record.key or b"", record.value, record.offset + 1
        read += len(value or b"") + RECORD_BYTES
        partition = partition_of(key)
        if partition not in left or value is None or record.offset < left[partition].start_offset:
            continue  # moved already, and not compacted yet: moving it again would deliver twice
        batch = _batch(partition, value, progress)
        parts.append(Part(*partition, batch, None))
        moved_keys.append(key)
        left[partition] = replace(left[partition], copies=left[partition].copies - batch.count)
        if left[partition].copies <= 0:
            del left[partition]
        size += len(batch.body)
        if not left or size >= bounds.size or len(parts) >= bounds.batches:
            break
    else:  # all records were read
        if all_seen and left:
            text = "copies are lost: the state topic has lost their records"
            log.error(text, copies=named(left))
            left.clear()
    # Only open partitions: the copies of closed ones were read, but not moved.
    left = {partition: _above(of, start) for partition, of in left.items()}
    stay = {partition: of for partition, of in held.items() if partition not in free}
    deletions = [several(moved_keys, None)] if moved_keys else []
    return Moved(parts, deletions, stay | left)


def to_send(moved: Sequence[Part], targets: Mapping[str, Target]) -> list[Part]:
    """The same copies in few batches, in the order of their partition, in the codec of their topic.

    The sender sends one batch of a partition at a time. 46,000 batches of one copy delayed the
    transactions of all teams by a second each, for two minutes.
    """
    of_partition = dict[TopicPartition, list[Batch]]()
    for part in moved:
        of_partition.setdefault((part.topic, part.partition), []).append(part.batch)
    parts = list[Part]()
    for (topic, number), found in of_partition.items():
        target = targets[topic]
        try:
            few = list(joined(found, target.batch_bytes - HEADER_BYTES))
        except CorruptBatch as error:  # a broker refuses it, or ingest makes dead letters
            log.warning("held copies cannot be read, and are moved as they are", reason=str(error))
            few = found
        parts += [Part(topic, number, batch, None, target.codec, is_whole=True) for batch in few]
    return parts


def _batch(partition: TopicPartition, value: bytes, progress: Progress) -> Batch:
    batch, topic_id = batch_of(value)
    if progress.has_topic(partition[0], topic_id):
        return batch
    try:
        return as_first_copies(partition, batch, progress.epochs.newest.signing_key)
    except CorruptBatch as error:
        # More headers than a record may have: ingest makes a dead letter of it. An error here would
        # stop the deliveries of all, at every start.
        log.warning("held copies cannot be read, and are moved as they are", reason=str(error))
        return batch


def as_first_copies(partition: TopicPartition, batch: Batch, copy_key: bytes) -> Batch:
    """Copies for a timer topic that was recreated since: each becomes its timer's first record,
    keeps the timer's id, and is signed again.
    """
    records = []
    for number, (_, _, record_key, value, own) in enumerate(rows_of(batch.body, batch.count)):
        headers = _of_first_copy(partition, own)
        headers += mac_header(copy_key, partition, record_key, value, headers)
        records.append(encode(number, record_key, value, headers))
    return Batch(memoryview(b"".join(records)), batch.count)


def _of_first_copy(partition: TopicPartition, headers: Sequence[Header]) -> list[Header]:
    if headers[-1][0] == COPY_MAC:
        headers = headers[:-1]
    names = [name for name, _ in headers]
    at = len(names) - 1 - names[::-1].index(ORIGIN)  # an earlier one may be a producer's
    origin = headers[at][1]
    first = [*headers[:at], (ORIGIN, b"%d" % NO_ORIGIN), *headers[at + 1 :]]
    if names[-1] == LETTER or TIMER_ID in names or origin is None:
        return first
    source = source_names([partition], np.zeros(1, np.int32), np.array([int(origin)]))
    return [(TIMER_ID, source[0].as_py()), *first]


def _above(held: Held, offset: int) -> Held:
    """None of these copies is below the offset: the next transaction reads from there."""
    return replace(held, start_offset=max(held.start_offset, offset))


@dataclass(frozen=True, slots=True)
class Holding:
    """Batches of a transaction: those to send now, and those to hold."""

    now: Sequence[Part]
    records: Sequence[Batch]  # the batches to hold, each a record, in batches of the state topic
    held: Mapping[TopicPartition, Held]  # after the commit


def hold_closed(
    parts: Sequence[Part],
    closed: Collection[TopicPartition],
    held: Mapping[TopicPartition, Held],
    topic_ids: Mapping[str, str],
    end: Callable[[], int],
) -> Holding:
    """Turns batches for closed partitions into records of the state topic; also batches that
    would overtake held copies of their partition.

    Args:
        topic_ids: Kafka's ids of the timer topics whose offsets the copies name.
        end: reads the end of the state topic's partition: all of the records will be there or
            later. Called once at most.
    """
    if not closed and not held:
        return Holding(parts, (), held)
    now, records, waits = list[Part](), list[Content](), dict(held)
    start = cache(end)
    for part in parts:
        partition = part.topic, part.partition
        if partition not in closed and partition not in waits:
            now.append(part)
            continue
        assert len(part.batch.body) <= COPY_BYTES_MAX, "fate.py has seen to it"
        before = waits.get(partition) or Held(start(), 0)
        value = value_of(part.batch, topic_ids.get(partition[0]))
        records.append((key_of(partition, before), value, ()))
        waits[partition] = Held(before.start_offset, before.copies + part.batch.count)
    return Holding(now, list(batches(records, _HELD_BATCH_BYTES)), waits)


def log_held(before: Collection[TopicPartition], after: Collection[TopicPartition]) -> None:
    """Logs the timer partitions for which holding copies has begun or ended."""
    for topic, number in sorted(set(after).difference(before)):
        text = "a timer partition takes no writes, was recreated, or has lost its end: its copies"
        text += " are held"
        log.warning(text, topic=topic, partition=number)
    for topic, number in sorted(set(before).difference(after)):
        text = "all held copies of a timer partition are written to it"
        log.info(text, topic=topic, partition=number)
