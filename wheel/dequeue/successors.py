"""Recurring timers on their way out: each firing takes the copy of the next one with it.

A row is split where it leaves the wheel, before its fate is decided (fate.py):

    seed       its first copy; it fires nothing
    firing     a plain delivery with an id of its own, ID@DUE, and without the headers of the
               recurrence; and its successor, a copy of the next instant
    missed     its successor alone
    the last   the delivery alone; nothing, if it was missed
    no more    its instants cannot be computed: a dead letter with its request, so that a replay
               begins it again

So a successor waits for no target: whatever the fate of a firing is, they share the transaction.
Copies come after all rows, and go where rolled ones go (requeue.py), signed and held like them.

A loop over the recurring rows: their number in a chunk is bounded (slot_scan.py), and instants are
cached by their text (wheel/recurrence.py).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from duewheel.errors import ConfigError
from duewheel.schemas import header_names as names
from duewheel.schemas.arrays import Bool, Int64
from duewheel.schemas.batches import ANY_TIME, NO_PARTITION, NO_POLICY, Deliveries
from duewheel.schemas.columns import binary, choose, join, scatter, take
from duewheel.schemas.hashing import id_hashes, source_names
from duewheel.schemas.header_names import NAME_OF, Request
from duewheel.schemas.wire import single_record
from duewheel.schemas.wire.single_record import Header
from duewheel.wheel.dequeue import requeue
from duewheel.wheel.recurrence import numbers_in, parted, recurrence_of

BAD_RECURRENCE = "bad_recurrence"


@dataclass(frozen=True, slots=True)
class Recurring:
    """The recurring rows among some deliveries.

    Attributes:
        rows: their indexes, rising.
        seed: which of them are seeds.
        after_ms: of each seed; earlier instants are those of the timer that it replaces.
    """

    rows: Int64
    seed: Bool
    after_ms: Int64

    def within(self, leaves: Bool) -> Recurring:
        """These among the rows that leave, numbered as they are then."""
        kept = leaves[self.rows]
        place = np.cumsum(leaves) - 1
        return Recurring(place[self.rows[kept]], self.seed[kept], self.after_ms[kept])


@dataclass(slots=True)
class _Split:
    """The recurring rows by kind; each list has one entry per row."""

    fired: list[int]
    plain: list[tuple[bytes, int]]  # of those, the headers without the recurrence, and their number
    succeeded: list[int]
    due_ms: list[int]  # of those, the successor's
    refused: list[tuple[int, str]]
    missed: int = 0


def with_successors(
    deliveries: Deliveries, recurring: Recurring, source: Int64, now_ms: int
) -> tuple[Deliveries, Int64, int]:
    """Splits the recurring rows as the module's head says, and returns also the row that each comes
    from, and how many were missed. `source` is the offset of each row's record.
    """
    if not len(recurring.rows):
        return deliveries, np.arange(len(deliveries)), 0
    split = _split(deliveries, recurring, now_ms)
    leaving = np.ones(len(deliveries), np.bool_)
    leaving[recurring.rows] = False
    leaving[split.fired + [row for row, _ in split.refused]] = True
    successors = _successors(deliveries, split, source)
    rest = _refused(_fired(deliveries, split), split.refused)
    row: Int64 = np.flatnonzero(leaving)
    if not leaving.all():
        rest = rest.take(row)
    joined = replace(rest, targets=successors.targets).extended_by(successors)
    return joined, np.concatenate([row, np.array(split.succeeded, np.int64)]), split.missed


def _split(deliveries: Deliveries, recurring: Recurring, now_ms: int) -> _Split:
    split = _Split([], [], [], [], [])
    rows = [
        parted(headers or b"", count)
        for headers, count in zip(
            take(deliveries.headers, recurring.rows).to_pylist(),
            deliveries.header_count[recurring.rows].tolist(),
            strict=True,
        )
    ]
    numbers = numbers_in(own for own, _, _ in rows)
    for row, seed, after_ms, due_ms, (own, others, plain_count), id_hash in zip(
        recurring.rows.tolist(),
        recurring.seed.tolist(),
        recurring.after_ms.tolist(),
        deliveries.due_ms[recurring.rows].tolist(),
        rows,
        id_hashes(take(deliveries.timer_id, recurring.rows)).tolist(),
        strict=True,
    ):
        # The slot is closed: a clock that was set back since must not fire an instant again.
        present_ms = max(now_ms, due_ms)
        try:
            recurrence = recurrence_of(own, numbers)
            if seed:
                first_ms = recurrence.first(due_ms, after_ms, id_hash, present_ms)
                fires, next_ms = False, first_ms
                if first_ms is None:
                    raise ConfigError("it has no instant")
            else:
                fires, next_ms = recurrence.following(due_ms, id_hash, present_ms)
                split.missed += not (fires or recurrence.paused)
        except ConfigError as error:
            split.refused.append((row, str(error)))
            continue
        if fires:
            split.fired.append(row)
            split.plain.append((others, plain_count))
        if next_ms is not None:
            split.succeeded.append(row)
            split.due_ms.append(next_ms)
    return split


def firing_id(timer_id: bytes, due_ms: int) -> bytes:
    """The id of one firing.

    >>> firing_id(b"daily", 1_800_000_000_000)
    b'daily@1800000000000'
    """
    return b"%b@%d" % (timer_id, due_ms)


def _fired(deliveries: Deliveries, split: _Split) -> Deliveries:
    """The deliveries, the firings among them as plain timers."""
    rows, count = np.array(split.fired, np.int64), len(deliveries)
    if not len(rows):
        return deliveries
    mask = np.zeros(count, np.bool_)
    mask[rows] = True
    header_count = deliveries.header_count.copy()
    header_count[rows] = [plain for _, plain in split.plain]
    ids = take(deliveries.timer_id, rows).to_pylist()
    due_ms = deliveries.due_ms[rows].tolist()
    firing_ids = (firing_id(each or b"", due) for each, due in zip(ids, due_ms, strict=True))
    plain_headers = (headers for headers, _ in split.plain)
    return replace(
        deliveries,
        timer_id=choose(mask, scatter(binary(firing_ids), rows, count), deliveries.timer_id),
        headers=choose(mask, scatter(binary(plain_headers), rows, count), deliveries.headers),
        header_count=header_count,
    )


def _successors(deliveries: Deliveries, split: _Split, source: Int64) -> Deliveries:
    rows = np.array(split.succeeded, np.int64)
    taken = deliveries.take(rows)
    # Of the record that it follows: if a broker refuses the message of a firing, which has the
    # seed's, the copy is another record.
    own = source_names(taken.source_partitions, taken.source_partition, source[rows])
    copies = requeue.first_copies(
        replace(
            taken,
            due_ms=np.array(split.due_ms, np.int64),
            not_before_ms=np.full(len(rows), ANY_TIME),
            policy=np.full(len(rows), NO_POLICY, np.int32),
            retries=np.zeros(len(rows), np.int32),
        )
    )
    return replace(copies, source=own)


def _refused(deliveries: Deliveries, refused: list[tuple[int, str]]) -> Deliveries:
    """The deliveries, these rows as the dead letters that ingest would have made of them."""
    if not refused:
        return deliveries
    rows = np.array([row for row, _ in refused], np.int64)
    added = [_request_and_reason(deliveries, row, reason) for row, reason in refused]
    encoded = binary(b"".join(single_record.header(*each) for each in headers) for headers in added)
    header_count, dead_letter = deliveries.header_count.copy(), deliveries.dead_letter.copy()
    header_count[rows] += [len(headers) for headers in added]
    dead_letter[rows] = True
    target_partition = deliveries.target_partition.copy()
    not_before_ms, policy = deliveries.not_before_ms.copy(), deliveries.policy.copy()
    target_partition[rows], not_before_ms[rows], policy[rows] = NO_PARTITION, ANY_TIME, NO_POLICY
    return replace(
        deliveries,
        headers=join(deliveries.headers, scatter(encoded, rows, len(deliveries))),
        header_count=header_count,
        dead_letter=dead_letter,
        target_partition=target_partition,
        not_before_ms=not_before_ms,
        policy=policy,
    )


def _request_and_reason(deliveries: Deliveries, row: int, reason: str) -> list[Header]:
    topic = deliveries.targets[deliveries.target[row]].encode()
    request: list[Header] = [
        (NAME_OF[Request.TARGET_TOPIC], topic),
        (names.TIMER_ID, deliveries.timer_id[row].as_py()),
    ]
    if (partition := int(deliveries.target_partition[row])) != NO_PARTITION:
        request.append((NAME_OF[Request.TARGET_PARTITION], b"%d" % partition))
    return [
        *request,
        (names.ERROR_CODE, BAD_RECURRENCE.encode()),
        (names.ERROR, reason.encode()),
    ]
