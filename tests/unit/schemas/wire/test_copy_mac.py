"""Copies as they are written and read again; forged, altered and repeated ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from tests.harness.deliveries import CONTRACT, NOW_MS, rows
from tests.harness.record_batches import Record, batch, rows_of

from duewheel.kafka.log.columns import committed_records
from duewheel.kafka.log.leader_requests import Fetched
from duewheel.kafka.publish.held_queue import as_first_copies
from duewheel.schemas.batches import Deliveries, TimerBatch, TopicPartition
from duewheel.schemas.columns import binary, join, lengths
from duewheel.schemas.header_names import SERVICE
from duewheel.schemas.request.parser import parse
from duewheel.schemas.request.topic_settings import CHOICES, TopicContract
from duewheel.schemas.wire.copy_mac import HEADER_BYTES_MAX, KEY_BYTES, own_copies, signed
from duewheel.schemas.wire.kafka_records import KafkaRecords
from duewheel.schemas.wire.record_batch import bytes_alone, seal, split
from duewheel.schemas.wire.record_codec import framed_bytes
from duewheel.wheel.dequeue.requeue import rolled_copies, waiting_copies, waiting_letters

KEY, OTHER = bytes(range(KEY_BYTES)), bytes(KEY_BYTES)
TIMERS = ("timers", 0)
YEARS_MS = 100 * 366 * 86_400_000
OWN = framed_bytes(b"own") + framed_bytes(b"1")


def deliveries(count: int) -> Deliveries:
    """Timers that are due later, of the partition timers-0, each with a header of its own."""
    return replace(
        rows(["orders"] * count, [3] * count),
        due_ms=np.full(count, NOW_MS + YEARS_MS),
        origin_offset=np.arange(count) + 5,
        source=binary(b"timers-0@%d" % (offset + 5) for offset in range(count)),
        headers=binary([OWN] * count),
        header_count=np.ones(count, np.int32),
    )


def copies(key: bytes = KEY) -> Deliveries:
    """A timer that is delivered, a rolled, a parked one, and a dead letter that waits."""
    of = [np.arange(4) == row for row in range(4)]
    due = rolled_copies(deliveries(4), of[1])
    due = waiting_copies(due, of[2], np.full(4, NOW_MS + 900), of[2])
    due = replace(due, dead_letter=of[3])
    return signed(waiting_letters(due, of[3], NOW_MS, (1_000, 1_000, 1_000)), key)


def read_again(sent: Deliveries, place: TopicPartition = TIMERS) -> KafkaRecords:
    """The rows that go to the timer topic, as ingest fetches them, from offset 100 on."""
    own = sent.take(np.flatnonzero(sent.is_copy))
    ((only,),) = split(own, [len(own)], [1 << 20])
    return fetched(bytearray(seal(only.body, only.count, timestamp_ms=NOW_MS)), place)


def fetched(octets: bytearray, place: TopicPartition = TIMERS) -> KafkaRecords:
    octets[:8] = (100).to_bytes(8, "big")
    part = [Fetched(place, memoryview(bytes(octets)), [], 100, 110)]
    (records,) = committed_records(part, {place: (100, 110)})
    return records


def parsed(records: KafkaRecords, keys: Sequence[bytes] | None = (KEY,)) -> TimerBatch:
    return parse(records, replace(CONTRACT, copy_keys=None if keys is None else tuple(keys)))


@pytest.mark.parametrize("keys", [(KEY,), (OTHER, KEY), None])
def test_duewheels_copies_count_as_such(keys: tuple[bytes, ...] | None) -> None:
    batch = parsed(read_again(copies()), keys)
    assert batch.origin_offset.tolist() == [6, 7, 8]
    assert batch.roll_times.tolist() == [1, 0, 0]
    assert batch.retries.tolist() == [0, 1, 1]
    assert batch.rejected.tolist() == [False, False, True], "the dead letter stays one"
    assert batch.headers.to_pylist() == [OWN] * 3
    assert not batch.forged.any()


def test_a_rejected_copy_keeps_its_mac() -> None:
    """So its dead letter is a copy again when it is replayed."""
    records, closed = read_again(copies()), {"timers": TopicContract(targets=())}
    batch = parse(records, replace(CONTRACT, topics=closed, copy_keys=(KEY,)))
    assert batch.rejections() == {"target_not_allowed": 2, "waited": 1}
    assert [b"TIMER_COPY_MAC" in (each or b"") for each in batch.headers.to_pylist()] == [
        True,
        True,
        False,
    ]


@pytest.mark.parametrize("key", [KEY, b""], ids=["signed", "unsigned"])
def test_held_copies_of_a_topic_that_was_recreated_are_signed_again(key: bytes) -> None:
    sent = copies(key)
    own = sent.take(np.flatnonzero(sent.is_copy))
    ((held,),) = split(own, [len(own)], [1 << 20])
    moved = as_first_copies(TIMERS, held, key)
    records = fetched(bytearray(seal(moved.body, moved.count, timestamp_ms=NOW_MS)))
    batch = parsed(records, (key,) if key else None)
    assert not batch.forged.any()
    assert batch.origin_offset.tolist() == [100, 101, 102], "their own"
    assert batch.roll_times.tolist() == [1, 0, 0]
    assert batch.retries.tolist() == [0, 1, 1]
    assert batch.timer_id.to_pylist() == [b"timers-0@1", b"timers-0@2", b""]
    assert batch.rejected.tolist() == [False, False, True], "the dead letter stays one"
    assert batch.headers.to_pylist() == [OWN] * 3


def test_what_is_no_copy_gets_no_mac() -> None:
    plain = deliveries(3)
    assert signed(plain, KEY) is plain
    assert copies().headers[0].as_py() == OWN
    assert copies().header_count.tolist()[0] == 1


def test_a_mac_is_no_longer_than_it_is_expected_to_be() -> None:
    unsigned = rolled_copies(deliveries(1), np.array([True]))
    added = bytes_alone(signed(unsigned, KEY)) - bytes_alone(unsigned)
    assert 0 < added[0] <= HEADER_BYTES_MAX


def test_of_another_key_or_another_partition_none_is_a_copy() -> None:
    """Nor without a MAC. As ordinary timers they are due too late, or have no due time."""
    for records in (
        read_again(copies(OTHER)),
        read_again(copies(), ("timers", 1)),
        read_again(copies(), ("other", 0)),
        read_again(signed_by_nobody()),
    ):
        batch = parsed(records)
        assert batch.rejections() == {"delay_too_long": 2, "no_due_time": 1}
        assert batch.origin_offset.tolist() == [100, 101, 102]
        assert not batch.roll_times.any() and not batch.retries.any()
        assert batch.forged.all()


def signed_by_nobody() -> Deliveries:
    of = [np.arange(4) == row for row in range(4)]
    due = waiting_copies(
        rolled_copies(deliveries(4), of[1]), of[2], np.full(4, NOW_MS + 900), of[2]
    )
    return waiting_letters(replace(due, dead_letter=of[3]), of[3], NOW_MS, (1_000, 1_000, 1_000))


def test_each_changed_byte_is_noticed() -> None:
    """Of key, value, headers or MAC: no change leaves a record that counts as a copy."""
    timestamp_ms, key, value, headers = rows_of(read_again(copies()))[0][2]
    changed: list[Record] = [
        (timestamp_ms, b"k", value, headers),
        (timestamp_ms, key, None, headers),
        (timestamp_ms, key, b"w", headers),
        (timestamp_ms, key, value, [("own", b"2"), *headers[1:]]),
        (timestamp_ms, key, value, headers[1:]),
        (timestamp_ms, key, value, [*headers, ("TIMER_DELIVER_MS", b"1")]),
        (timestamp_ms, key, value, [headers[-1], *headers[:-1]]),
        (timestamp_ms, key, value, [*headers[:-1], ("TIMER_COPY_MAC", None)]),
        (timestamp_ms, key, value, [*headers[:-1], ("TIMER_COPY_MAC", bytes(15))]),
        (timestamp_ms, key, value, [headers[-1]]),
    ]
    for number in range(16):
        mac = bytearray(headers[-1][1] or b"")
        mac[number] ^= 1
        changed.append((timestamp_ms, key, value, [*headers[:-1], ("TIMER_COPY_MAC", bytes(mac))]))
    assert own_copies(fetched(batch([(timestamp_ms, key, value, headers)])), (KEY,)).all()
    for record in changed:
        assert not own_copies(fetched(batch([record])), (KEY,)).any(), record


@pytest.mark.parametrize("mode", CHOICES["headers"])
def test_headers_of_copies_mean_nothing_in_a_producers_record(mode: str) -> None:
    """It is the same timer without them, in topics of each mode."""
    soon: list[tuple[str, bytes | None]] = [("own", b"1"), ("TIMER_DELAY_MS", b"5")]
    forged: list[tuple[str, bytes | None]] = [(name, b"0") for name in sorted(SERVICE)]
    both = [(NOW_MS, b"k", b"v", [*soon, *more]) for more in ([], forged, [("TIMER_ORIGIN", b"7")])]
    topics = {"timers": TopicContract(headers=mode, target="orders", past_due="dead-letter")}
    under = replace(CONTRACT, topics=topics, copy_keys=(KEY,))
    timers = parse(fetched(batch(both)), under)
    assert timers.forged.tolist() == [False, True, True]
    assert not timers.rejected.any()
    for column in (timers.due_ms, timers.not_before_ms, timers.roll_times, timers.cancels):
        assert len(set(column.tolist())) == 1
    assert timers.origin_offset.tolist() == timers.offset.tolist()
    assert timers.headers.to_pylist() == [OWN] * 3


def test_a_forged_cancel_is_an_ordinary_one() -> None:
    chase: list[tuple[str, bytes | None]] = [
        *(("TIMER_DEL_UNIQKEY", b"id"), ("TIMER_ORIGIN", b"1")),
        *(("TIMER_CANCEL_SLOT", b"9"), ("TIMER_CANCEL_FLAGS", b"1")),
    ]
    found = parsed(fetched(batch([(NOW_MS, b"k", None, chase)])))
    assert (found.cancels.tolist(), found.timer.tolist()) == ([True], [False])
    assert (found.origin_offset[0], found.chase_flags[0]) == (100, 0)
    assert found.forged.all()


def test_passed_on_headers_of_a_delivery_are_no_forgery() -> None:
    """A consumer that sends its message again has TIMER_ROLL_TIMES, too."""
    again: list[tuple[str, bytes | None]] = [
        *(("TIMER_SOURCE", b"timers-0@1"), ("TIMER_ROLL_TIMES", b"3")),
        *(("TIMER_DELAY_MS", b"5"), ("REAL_TOPIC", b"orders")),
    ]
    found = parsed(fetched(batch([(NOW_MS, b"k", b"v", again)])))
    assert not found.forged.any() and not found.roll_times.any()


def test_long_headers_are_signed_as_they_are_written() -> None:
    """Lengths of one, two and three bytes, nulls, and many headers."""
    many = b"".join(framed_bytes(b"h%d" % n) + framed_bytes(b"x" * n) for n in range(300))
    long = framed_bytes(b"long") + framed_bytes(b"y" * 20_000) + framed_bytes(b"null") + b"\1"
    count = np.array([302, 302], np.int32)
    far = deliveries(2)
    far = replace(far, headers=join(binary([many, many]), binary([long, long])), header_count=count)
    records = read_again(signed(rolled_copies(far, np.ones(2, np.bool_)), KEY))
    found = parsed(records)
    assert found.roll_times.tolist() == [1, 1]
    assert lengths(found.headers).tolist() == [len(many + long)] * 2
