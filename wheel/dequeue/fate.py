"""Decides the fate of each row that leaves the wheel, as one column, before anything is encoded.

    DELIVER      to its target. Also a reply, and a copy that was made before: rolled, or a chase
    PARK         its target partition takes no writes for now, its receipt has no place, or its
                 target, timer topic or tag is paused (checkpoints/pauses.py): a copy waits in its
                 timer topic (requeue.py), unless that refuses the copy
    POSTPONE     a policy lets it leave later (policies/policy.py): a copy waits likewise; if its
                 timer topic refuses the copy, the row is delivered now
    DEAD_LETTER  ingest has rejected it; or it has a Reason: it can never be published, or cannot
                 wait, and waiting for its target would delay every other row
    KEEP         such a row, while the dead-letter topic takes none: it waits in its timer topic

The column depends only on the rows, the time and the metadata of the topics. Encoding only reads it
(routing.py). Decided earlier, without metadata: rows that are out or cancelled are dropped
(pipeline.py), timers that are due beyond the window roll (roll_rule.py), late ones expire
(policies/expiry.py). Decided later: copies for a timer partition that takes no writes are held,
whole batches at a time (kafka/publish/held_queue).

Pure functions over columns: no client, any thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from duewheel.checkpoints.pauses import PausedTimers
from duewheel.schemas import header_names as names
from duewheel.schemas.arrays import Bool, Int32, Int64
from duewheel.schemas.batches import ANY_TIME, NEVER, NO_KEY, NO_POLICY, Deliveries
from duewheel.schemas.wire.record_codec import with_header
from duewheel.wheel import target_rules
from duewheel.wheel.dequeue import requeue
from duewheel.wheel.dequeue.partitioner import packed_partitions, to_unavailable, used_topics
from duewheel.wheel.dequeue.slow_rows import beyond_share
from duewheel.wheel.dequeue.too_large import too_large
from duewheel.wheel.policies.policy import returning
from duewheel.wheel.target_rules import NO_TARGET, Reason, Target

# The targets of these topics, and of all fetched before.
Fetch = Callable[[Iterable[str]], Mapping[str, Target]]


class Fate(IntEnum):
    """The fate of one row: see the module's head."""

    DELIVER = 0
    PARK = 1
    POSTPONE = 2
    DEAD_LETTER = 3
    KEEP = 4


@dataclass(frozen=True, slots=True)
class Fates:
    """The fate of each row.

    Attributes:
        fate: a Fate, as a number.
        reason: a Reason, as a number, of dead letters that ingest has not rejected.
        not_before_ms: when a copy may leave, of rows that are parked or postponed.
    """

    fate: Int32
    reason: Int32
    not_before_ms: Int64

    def are(self, *fates: Fate) -> Bool:
        """The rows with one of these fates."""
        rows: Bool = np.logical_or.reduce([self.fate == fate for fate in fates])
        return rows


def decide(
    deliveries: Deliveries,
    fetch: Fetch,
    refused: frozenset[bytes],
    dead_letter_topic: str,
    now_ms: int,
    wait_ms: requeue.Waits,
    without_receipt: Callable[[Deliveries, Fetch], Bool],
    paused: PausedTimers,
) -> Fates:
    """Decides the fate of each row.

    `fetch` is called for the topics that rows name and, only if they are needed, for timer topics
    and for `dead_letter_topic`; `refused` has the sources of records that a broker has refused.
    Parked rows wait from `now_ms`, as `wait_ms` says (requeue.py). `without_receipt`
    selects the rows whose receipt has no place for now. `paused` topics are those of now.

    Raises:
        Exception: whatever `fetch` raises.
    """
    targets = fetch(used_topics(deliveries))
    reason = why_not(deliveries, targets, list(refused))
    waits = without_receipt(deliveries, fetch) | _of_paused(deliveries, paused)
    later = returning(deliveries)
    leaving = (reason == Reason.NONE) & ~(waits | later)
    closed = without_target(deliveries, targets, leaving, paused, now_ms)
    closed &= reason == Reason.NONE
    reason[closed & deliveries.answer] = Reason.TARGET_UNAVAILABLE
    waits = (waits | closed) & (reason == Reason.NONE)
    later &= reason == Reason.NONE
    back, not_before_ms = waits | later, deliveries.not_before_ms
    fate = np.full(len(deliveries), Fate.DELIVER, np.int32)
    if back.any():
        # The later of the two: otherwise this row could overtake an earlier one of its key.
        retry_ms = np.where(waits, now_ms + requeue.waits_ms(deliveries, wait_ms), ANY_TIME)
        not_before_ms = np.maximum(retry_ms, np.where(later, not_before_ms, ANY_TIME))
        copies = requeue.waiting_copies(deliveries, back, not_before_ms, waits)
        no_copy = back & (why_not(copies, fetch(_timer_topics(deliveries)), []) != Reason.NONE)
        reason[no_copy & waits] = Reason.TARGET_UNAVAILABLE
        back &= ~no_copy
        fate[back] = Fate.POSTPONE
        fate[back & waits] = Fate.PARK
    letters = deliveries.dead_letter | (reason != Reason.NONE)
    fate[letters] = Fate.DEAD_LETTER
    if letters.any() and not fetch([dead_letter_topic])[dead_letter_topic].takes_letters:
        targets = fetch(_timer_topics(deliveries))
        exists = [not targets[topic].refusal for topic, _ in deliveries.source_partitions]
        fate[letters & np.array(exists, np.bool_)[deliveries.source_partition]] = Fate.KEEP
    return Fates(fate, reason, not_before_ms)


def without_target(
    deliveries: Deliveries,
    targets: Mapping[str, Target],
    leaving: Bool,
    paused: PausedTimers,
    now_ms: int,
) -> Bool:
    """Rows whose target partition takes no writes for now, whose target is not looked up yet, or
    that are beyond the share of slow targets (slow_rows.py, which the last three are for).

    Excluded are dead letters and copies, which have no other place to wait, and rows without a
    fixed partition as long as another one takes writes.
    """
    known = [targets.get(topic) for topic in deliveries.targets]
    rows = to_unresolved(deliveries, targets)
    bound = deliveries.dead_letter | deliveries.is_copy
    if any(one is not None and (one.unavailable or one.slow_by) for one in known):
        place = packed_partitions(deliveries, targets, lambda free: free[0])
        rows = rows | to_unavailable(deliveries, targets, place)
        leaving = leaving & ~(bound | deliveries.answer | rows)
        rows |= beyond_share(deliveries, known, place, leaving, paused, now_ms)
    return rows & ~bound


def to_unresolved(deliveries: Deliveries, targets: Mapping[str, Target]) -> Bool:
    """Rows whose target is not looked up yet."""
    each = (targets.get(topic) for topic in deliveries.targets)
    unresolved = np.array([target is not None and target.is_unknown for target in each], np.bool_)
    rows: Bool = unresolved[deliveries.target]
    return rows


def _of_paused(deliveries: Deliveries, paused: PausedTimers) -> Bool:
    """The timers of a paused timer topic or tag, and those for a paused target. Rolls, replies and
    dead letters go on: a pause of hours would otherwise fill the wheel, or hide errors.
    """
    if not any(paused):
        return np.zeros(len(deliveries), np.bool_)
    targets = np.array([topic in paused.targets for topic in deliveries.targets], np.bool_)
    sources = [topic in paused.timer_topics for topic, _ in deliveries.source_partitions]
    rows: Bool = targets[deliveries.target]
    rows |= np.array(sources, np.bool_)[deliveries.source_partition]
    for tag in paused.tags:
        rows |= with_header(deliveries.headers, names.TAG, tag.encode())
    return rows & ~(deliveries.dead_letter | deliveries.is_copy | deliveries.answer)


def _timer_topics(deliveries: Deliveries) -> list[str]:
    return [topic for topic, _ in deliveries.source_partitions]


def why_not(
    deliveries: Deliveries, targets: Mapping[str, Target], refused: Sequence[bytes]
) -> Int32:
    """The Reason why each row can never be published, as a number; dead letters have none. After
    the rules of its target come the broker's refusals and the policies.
    """
    reason = target_rules.why_not(
        [targets.get(topic, NO_TARGET) for topic in deliveries.targets],
        deliveries.target,
        deliveries.target_partition,
        deliveries.key_hash == NO_KEY,
        too_large(deliveries, targets),
    )

    def mark(rows: Bool, verdict: Reason) -> None:
        reason[rows & (reason == Reason.NONE)] = verdict

    if refused:
        sources = pa.array(refused, pa.large_binary())
        mark(np.asarray(pc.is_in(deliveries.source, value_set=sources)), Reason.RECORD_REFUSED)
    mark((deliveries.policy != NO_POLICY) & (deliveries.not_before_ms == NEVER), Reason.FORBIDDEN)
    reason[deliveries.dead_letter] = Reason.NONE
    return reason
