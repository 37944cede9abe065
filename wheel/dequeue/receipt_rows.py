"""Adds the receipts of its deliveries to a transaction, and to its messages headers with lateness.

A receipt (schemas/receipts.py) is a record of the same transaction as its message, so it exists
exactly if the delivery is committed, over kills, doubts and take-overs; nothing else counts or
stores them. The price: a timer whose receipt has no place for now waits for that, as for its target
(wheel/dequeue/fate.py).

The partition of a receipt follows from the id, as with Kafka's Java client: compaction finds all
receipts of an id, and they are in order.

Pure functions over columns: no client, any thread.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from duewheel.schemas import header_names as names
from duewheel.schemas.arrays import Bool, Int32, Int64
from duewheel.schemas.batches import Deliveries
from duewheel.schemas.columns import EMPTY, choose, decimals, join, take
from duewheel.schemas.hashing import key_hashes
from duewheel.schemas.receipts import receipt_bodies
from duewheel.schemas.wire.record_batch import split_records
from duewheel.schemas.wire.record_codec import Records, framed, header_name
from duewheel.wheel.dequeue.partitioner import Group
from duewheel.wheel.encoded import Part
from duewheel.wheel.target_rules import Target

# Rows are encoded ahead of their transaction. Once they are older than this, they are encoded
# again: after an outage of Kafka the headers would be wrong by its length.
LATENESS_ERROR_MAX_MS = 1_000


@dataclass(frozen=True, slots=True)
class Receipts:
    """Which deliveries have a receipt, and which a header with their lateness.

    Attributes:
        topic: of the receipts; None: there are none.
        without: timer topics whose deliveries have no receipt.
        lateness_headers: timer topics whose deliveries have the header TIMER_LATENESS_MS.
    """

    topic: str | None = None
    without: frozenset[str] = frozenset()
    lateness_headers: frozenset[str] = frozenset()

    def rows(self, deliveries: Deliveries) -> Int64:
        """The rows that have a receipt. Called once it is decided which rows are delivered."""
        if self.topic is None:
            return np.empty(0, np.int64)
        return np.flatnonzero(self._have_one(deliveries))

    def _have_one(self, deliveries: Deliveries) -> Bool:
        return delivered(deliveries) & ~_is_from(deliveries, self.without)

    def without_place(
        self, deliveries: Deliveries, fetch: Callable[[Sequence[str]], Mapping[str, Target]]
    ) -> Bool:
        """The rows whose receipt's partition takes no writes for now.

        `fetch` gives the target of the receipts topic; it is called if a row needs it.
        """
        rows: Bool = np.zeros(len(deliveries), np.bool_)
        if self.topic is None or not (need := self._have_one(deliveries)).any():
            return rows
        target = fetch([self.topic])[self.topic]
        if not target.partitions or target.unavailable.issuperset(range(target.partitions)):
            return need
        if target.unavailable:
            where = np.flatnonzero(need)
            partition = receipt_partitions(deliveries, where, target)
            rows[where] = np.isin(partition, list(target.unavailable))
        return rows

    def with_lateness(self, deliveries: Deliveries, now_ms: int) -> Deliveries:
        """The deliveries with the header in the rows that have one."""
        if not self.lateness_headers:
            return deliveries
        rows = delivered(deliveries) & _is_from(deliveries, self.lateness_headers)
        if not rows.any():
            return deliveries
        late_ms = np.maximum(now_ms - deliveries.due_ms, 0)
        header = join(header_name(names.LATENESS_MS), *framed(decimals(late_ms)))
        return replace(
            deliveries,
            headers=join(deliveries.headers, choose(rows, header, EMPTY)),
            header_count=(deliveries.header_count + rows).astype(np.int32),
        )

    def is_fresh(self, encoded_ms: int, now_ms: int) -> bool:
        """Whether the headers of rows that were encoded then are still right."""
        return not self.lateness_headers or now_ms - encoded_ms <= LATENESS_ERROR_MAX_MS


NO_RECEIPTS = Receipts()


def receipt_parts(
    deliveries: Deliveries,
    groups: Sequence[Group],
    destination: Int64,
    rows: Int64,
    partition: Int32,
    topic: str,
    target: Target,
) -> list[Part]:
    """The batches of the receipts.

    The deliveries are sorted by the partitions of their targets, which are the `groups`, and
    `destination` has each delivery's; `rows` are those with a receipt, and `partition` has each
    receipt's, which takes writes.
    """
    timer_id, source = take(deliveries.timer_id, rows), take(deliveries.source, rows)
    bodies = receipt_bodies(
        timer_id,
        source,
        deliveries.due_ms[rows],
        [(each.topic, each.partition) for each in groups],
        destination[rows],
    )
    if (partition[1:] < partition[:-1]).any():
        order: Int64 = np.argsort(partition, kind="stable")
        bodies, partition = take(bodies, order), partition[order]
    numbers, firsts = np.unique(partition, return_index=True)
    ends = [*firsts[1:].tolist(), len(partition)]
    limits = [target.batch_bytes] * len(ends)
    return [
        Part(topic, number, batch, None, target.codec)
        for number, batches in zip(
            numbers.tolist(), split_records(Records(bodies), ends, limits), strict=True
        )
        for batch in batches
    ]


def receipt_partitions(deliveries: Deliveries, rows: Int64, target: Target) -> Int32:
    """The partition of the receipt of each of these rows, whether it takes writes or not."""
    partition: Int32 = key_hashes(take(deliveries.timer_id, rows)) % target.partitions
    return partition


def delivered(deliveries: Deliveries) -> Bool:
    """The rows that go to their targets, once it is decided which do."""
    rows: Bool = ~(deliveries.dead_letter | deliveries.is_copy | deliveries.answer)
    return rows


def _is_from(deliveries: Deliveries, topics: Collection[str]) -> Bool:
    """Which rows are from one of these timer topics."""
    chosen = [topic in topics for topic, _ in deliveries.source_partitions]
    return np.array(chosen, np.bool_)[deliveries.source_partition]
