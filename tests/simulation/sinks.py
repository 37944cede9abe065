"""What a simulated ingest does with records: its tasks parse them, its sink takes the timers.

Reading, settings epochs, the bytes between both and the sink are the real ones. Only the contract
is not: what a user's record asks for follows from its place. Whether it is a copy, and what it says
then, follows from its bytes, like its key, value and headers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
from tests.simulation.kafka_model import Kafka
from tests.simulation.settings import mapped
from tests.simulation.timers import Copy, batch_of

from duewheel.checkpoints.commit_and_close_pages import Marks
from duewheel.checkpoints.config_epochs import Epoch, Epochs
from duewheel.checkpoints.disk_room import Room
from duewheel.clock import Clock
from duewheel.schemas.batches import TimerBatch
from duewheel.schemas.request.headers import USERS, forged_rows, header_groups, read_headers
from duewheel.schemas.request.recurrences import is_recurrence
from duewheel.schemas.request.request_columns import copies as said_of_copies
from duewheel.schemas.request.request_columns import kept_in_letters, waiting_letters
from duewheel.schemas.wire.copy_mac import own_copies
from duewheel.schemas.wire.kafka_records import KafkaRecords
from duewheel.streaming.batch_taker import BatchTaker
from duewheel.streaming.disk_guard import DiskGuard
from duewheel.streaming.epoch_parser import parse_by_epoch
from duewheel.streaming.offset_gaps import GapWatch
from duewheel.wheel.append.engine import Engine


def parser_of(epochs: Epochs, kafka: Kafka) -> Callable[[KafkaRecords], TimerBatch]:
    """What the tasks of a query do with records."""
    parsers = [partial(_parsed, kafka, epoch) for epoch in epochs.epochs]
    return partial(parse_by_epoch, parsers=parsers, epochs=epochs)


def _parsed(kafka: Kafka, epoch: Epoch, records: KafkaRecords) -> TimerBatch:
    numbers = [records.partitions[index][1] for index in records.partition.tolist()]
    places = zip(numbers, records.offset.tolist(), strict=True)
    copies = [_committed(kafka, number, offset) for number, offset in places]
    keys = [bytes.fromhex(key) for key in epoch.copy_keys]
    own = own_copies(records, keys) if keys else None
    headers = read_headers(records.headers, own=own)
    rows = headers.rows()
    recurring = np.array([copy.timer.recurs and copy.is_timer for copy in copies], np.bool_)
    kept = (headers.request == USERS) | (is_recurrence(headers) & recurring[rows])
    letters = waiting_letters(headers)
    if letters.any():
        kept |= kept_in_letters(headers, letters)
    encoded, count = header_groups(headers, kept)
    said = said_of_copies(headers.fields(), records.offset, np.ones(len(records), np.bool_))
    return replace(
        batch_of(copies, mapped(epoch.values)),
        partitions=records.partitions,
        partition=records.partition,
        offset=records.offset,
        key_value=records.key_value.column(),
        headers=encoded,
        header_count=count,
        timestamp_ms=records.timestamp_ms,
        origin_offset=said.origin_offset,
        not_before_ms=said.not_before_ms,
        retries=said.retries,
        chase_slot=said.chase_slot,
        chase_flags=said.chase_flags,
        forged=forged_rows(headers, own),
    )


def _committed(kafka: Kafka, number: int, offset: int) -> Copy:
    copy = kafka.partitions[number].records[offset]
    assert copy is not None, f"{number}@{offset} is read, but it is no committed record"
    return copy


def taker_of(engine: Engine, kafka: Kafka, clock: Clock) -> BatchTaker:
    """What takes batches, as ingest makes it."""

    def log_starts(topics: Sequence[str]) -> Marks:
        return {(t, n): part.start for t in topics for n, part in enumerate(kafka.partitions)}

    return BatchTaker(
        engine,
        GapWatch(log_starts, clock),
        clock,
        paused=lambda: False,
        guard=DiskGuard(lambda: Room(1 << 60, 0), lambda: False),
    )
