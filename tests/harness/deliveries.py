"""Deliveries of a few rows, for tests that encode, route and read them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from tests.harness.source_table import SourceRow, as_table, read_records
from tests.harness.timer_rows import suite_parameters

from duewheel.schemas.arrays import Bool, Int64
from duewheel.schemas.batches import ANY_TIME, NO_PARTITION, NO_POLICY, Deliveries, TimerBatch
from duewheel.schemas.columns import binary
from duewheel.schemas.hashing import key_hashes
from duewheel.schemas.request.acceptance_rules import compile_suite, load_suite
from duewheel.schemas.request.parser import Contract, parse
from duewheel.schemas.wire.record_codec import key_values
from duewheel.wheel.dequeue.routing import Routed, route
from duewheel.wheel.policies.policy import DueRows, Policy, RateQueue, postponed
from duewheel.wheel.slots import slot_of
from duewheel.wheel.target_rules import Target

NOW_MS = 1_800_000_000_000
PRECISION_MS, WINDOW_MS = 10, 60_000


def plain_deliveries(count: int) -> Deliveries:
    """Timers of one partition, from offset 0 on; a test replaces the columns that it is about. So a
    new column is written here, not in each of them.
    """
    zeros = np.zeros(count, np.int32)
    source = binary(b"timers-0@%d" % offset for offset in range(count))
    return Deliveries(
        targets=["orders"],
        target=zeros,
        target_partition=np.full(count, NO_PARTITION, np.int32),
        key_hash=zeros,
        due_ms=np.zeros(count, np.int64),
        source_partitions=[("timers", 0)],
        source_partition=zeros,
        origin_offset=np.arange(count),
        source=source,
        timer_id=source,
        key_value=key_values(binary([None] * count), binary([b"v"] * count)),
        headers=binary([b""] * count),
        header_count=zeros,
        roll_times=zeros,
        retries=zeros,
        level=zeros,
        dead_letter=np.zeros(count, np.bool_),
        is_copy=np.zeros(count, np.bool_),
        not_before_ms=np.full(count, ANY_TIME),
        policies=[],
        policy=np.full(count, NO_POLICY, np.int32),
        answer=np.zeros(count, np.bool_),
    )


def judged(
    deliveries: Deliveries,
    *policies: Policy,
    slot: int | None = None,
    rank: Int64 | None = None,
    window_ms: int = WINDOW_MS,
    now_ms: int = NOW_MS,
    pending: Bool | None = None,
    queues: dict[str, RateQueue] | None = None,
) -> Deliveries:
    """The deliveries as these policies leave them, in one slot: by default that of this moment."""
    count = len(deliveries)
    slots = np.full(count, slot_of(now_ms, PRECISION_MS) if slot is None else slot)
    ranks = np.arange(count) if rank is None else rank
    all_rows = np.ones(count, np.bool_) if pending is None else pending
    due_rows = DueRows(
        *(deliveries, slots, ranks, PRECISION_MS, window_ms, now_ms, all_rows),
        {} if queues is None else queues,
    )
    return postponed(due_rows, policies)


def rows(targets: Sequence[str], partitions: Sequence[int]) -> Deliveries:
    names = sorted(set(targets))
    return replace(
        plain_deliveries(len(targets)),
        targets=names,
        target=np.array([names.index(name) for name in targets], np.int32),
        target_partition=np.array(partitions, np.int32),
    )


def of_topics(deliveries: Deliveries, names: Sequence[str]) -> Deliveries:
    """The deliveries as rows of these timer topics."""
    topics = sorted(set(names))
    return replace(
        deliveries,
        source_partitions=[(topic, 3) for topic in topics],
        source_partition=np.array([topics.index(name) for name in names], np.int32),
    )


def due(late_ms: Sequence[int], topic: str = "timers") -> Deliveries:
    """Timers of this topic that are late by so much, each with a key of its own."""
    count = len(late_ms)
    sent = keyed(rows(["a"] * count, [0] * count), [b"%d" % number for number in range(count)])
    return of_topics(replace(sent, due_ms=NOW_MS - np.array(late_ms)), [topic] * count)


RULES = compile_suite(load_suite(), suite_parameters(forbidden_targets=["timers", "dead"]))
CONTRACT = Contract((1_000,), {}, "dead", RULES)
ROOM = Target(4, 1_000, batch_bytes=1_000)
DOWN = Target(4, 1_000, unavailable=frozenset([1, 2]), batch_bytes=1_000)


def keyed(deliveries: Deliveries, keys: Sequence[bytes | None]) -> Deliveries:
    column = binary(keys)
    values = binary([b"v"] * len(keys))
    return replace(deliveries, key_hash=key_hashes(column), key_value=key_values(column, values))


def routed(deliveries: Deliveries, known: Mapping[str, Target]) -> Routed:
    known = {"timers": ROOM, "dead": ROOM, **known}

    def look_up(topics: Sequence[str]) -> Mapping[str, Target]:
        return {topic: known[topic] for topic in topics}

    return route(deliveries, look_up, frozenset(), "dead", NOW_MS)


def topics(found: Routed) -> list[str]:
    return [found.deliveries.targets[index] for index in found.deliveries.target.tolist()]


def read_back(headers: list[tuple[str, bytes]], timestamp_ms: int = NOW_MS) -> TimerBatch:
    """One record at offset 40 of a timer partition, as ingest reads it."""
    row = SourceRow(40, timestamp_ms, [("own", b"1"), *headers], key=b"k", value=b"v")
    return parse(read_records(as_table([row])), CONTRACT)
