"""Makes copies: timers that return to their timer partition, in their place of the delivery order.

A copy has its request in the headers again, with the due time absolute, and the offset of its first
copy. Two kinds:

    rolled    due beyond the window; has the number of rolls
    waiting   due, but parked: its target takes no writes for now; or postponed by a policy
              (policies/policy.py). Has the instant before which it does not leave again, and how
              often in a row it was parked; a postponed one counts as parked once

A dead letter whose topic takes no writes returns unchanged, with four headers after its own: the
offset of its first copy, those of a waiting copy, and one that marks it as a dead letter: ingest
does not parse it again.

A timer whose target takes no writes waits for a second, then twice as long each time, up to five
minutes, then a tenth longer each time, up to an hour: about five minutes and a tenth of the time
waited before. A target that is closed for days costs each of its timers one copy per hour.

Timers of one key that were parked in one transaction equally often wait equally long, and keep
their order; one that was parked less often waits less, and may overtake them. The waits of other
timers are spread over a quarter of the time.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow.compute as pc

from duewheel.schemas.arrays import Bool, Int32, Int64
from duewheel.schemas.batches import ANY_TIME, Deliveries, topic_numbers
from duewheel.schemas.columns import EMPTY, Column, binary, choose, join, take
from duewheel.schemas.hashing import order_hashes
from duewheel.schemas.request.request_columns import COUNT_MAX
from duewheel.schemas.wire.record_codec import (
    LETTER_END,
    NO_ORIGIN,
    copy_headers,
    letter_headers,
    turn_header,
    waiting_headers,
)

Waits = tuple[int, int, int]  # ms: the first wait, the longest that is doubled, the longest
WAIT_MS: Waits = (1_000, 300_000, 3_600_000)
_TENTHS_MAX = 100  # 1.1**100 is 13,781: beyond the longest


def rolled_copies(deliveries: Deliveries, rows: Bool) -> Deliveries:
    """Makes rolled copies of the given rows."""
    headers, count = _headers(deliveries, deliveries.roll_times + 1)
    return _to_source(deliveries, rows, headers, count)


def first_copies(deliveries: Deliveries) -> Deliveries:
    """Makes a copy of every row, which has not rolled: of a recurring timer's next instant."""
    headers, count = _headers(deliveries, np.zeros_like(deliveries.roll_times))
    return _to_source(deliveries, np.ones(len(deliveries), np.bool_), headers, count)


def waiting_copies(
    deliveries: Deliveries, rows: Bool, not_before_ms: Int64, parked: Bool
) -> Deliveries:
    """Makes copies of the given rows, which leave no earlier than an instant: of `parked` rows,
    whose targets take no writes; the others are postponed.
    """
    headers, count = _headers(deliveries, deliveries.roll_times)
    # A postponed row has not failed: if it counted, its first wait for a target would be longer.
    retries = np.where(parked, _retries(deliveries), np.maximum(deliveries.retries, 1))
    waiting = waiting_headers(not_before_ms, retries.astype(np.int32))
    has_turn = deliveries.turn_ms != ANY_TIME
    turn = choose(has_turn, turn_header(deliveries.turn_ms), EMPTY)
    return _to_source(deliveries, rows, join(headers, waiting, turn), count + 2 + has_turn)


def waiting_letters(deliveries: Deliveries, rows: Bool, now_ms: int, wait_ms: Waits) -> Deliveries:
    """Makes copies of the given dead letters, which wait for the dead-letter topic."""
    not_before_ms = now_ms + waits_ms(deliveries, wait_ms)
    headers = letter_headers(deliveries.origin_offset, not_before_ms, _retries(deliveries))
    count = np.full(len(deliveries), len(LETTER_END), np.int32)
    return _to_source(deliveries, rows, headers, count)


def _retries(deliveries: Deliveries) -> Int32:
    return np.minimum(deliveries.retries + 1, COUNT_MAX).astype(np.int32)


def waits_ms(deliveries: Deliveries, wait_ms: Waits = WAIT_MS) -> Int64:
    """Computes the wait of each row whose topic takes no writes: the same at each computation."""
    first_ms, doubled_ms, longest_ms = wait_ms
    doublings = (doubled_ms // first_ms).bit_length()
    retries = deliveries.retries.astype(np.int64)
    doubled = np.minimum(first_ms << np.minimum(retries, doublings), doubled_ms)
    tenths = np.clip(retries - doublings, 0, _TENTHS_MAX)
    longest = np.minimum(doubled * 1.1**tenths, longest_ms).astype(np.int64)
    hashes = order_hashes(deliveries.key_hash, deliveries.timer_id)
    waits: Int64 = longest - hashes % (longest // 4)
    return waits


def _headers(deliveries: Deliveries, roll_times: Int32) -> tuple[Column, Int32]:
    """Encodes the request as headers. Partition and key stay: timers of a key keep their order."""
    default = np.asarray(pc.equal(deliveries.timer_id, deliveries.source))
    default = default & (deliveries.origin_offset != NO_ORIGIN)
    return copy_headers(
        take(binary(topic.encode() for topic in deliveries.targets), deliveries.target),
        deliveries.target_partition,
        deliveries.due_ms,
        choose(default, EMPTY, deliveries.timer_id),
        np.minimum(roll_times, COUNT_MAX).astype(np.int32),
        deliveries.origin_offset,
        deliveries.level,
    )


def _to_source(deliveries: Deliveries, rows: Bool, headers: Column, count: Int32) -> Deliveries:
    """Addresses the given rows to their timer partitions."""
    topics, topic_of = topic_numbers(deliveries.source_partitions, deliveries.targets)
    partition_of = np.array([number for _, number in deliveries.source_partitions], np.int32)
    source = deliveries.source_partition
    return replace(
        deliveries,
        targets=topics,
        target=_where(rows, topic_of[source].astype(np.int32), deliveries.target),
        target_partition=_where(rows, partition_of[source], deliveries.target_partition),
        headers=join(deliveries.headers, choose(rows, headers, EMPTY)),
        header_count=deliveries.header_count + _where(rows, count, np.zeros_like(count)),
        is_copy=deliveries.is_copy | rows,
    )


def _where(mask: Bool, yes: Int32, no: Int32) -> Int32:
    return np.where(mask, yes, no).astype(np.int32)
