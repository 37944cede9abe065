"""Bytes and slots: records, entries and stored messages built by hand; the rule of due times."""

from __future__ import annotations

import doctest
import struct
from datetime import UTC, datetime
from typing import Any

import google_crc32c
import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from duewheel.errors import ConfigError
from duewheel.schemas.batches import ACCEPTED, ANY_OFFSET, ANY_TIME, NO_SLOT, TimerBatch
from duewheel.schemas.columns import binary, lengths
from duewheel.schemas.hashing import topic_hash
from duewheel.wheel.append.placement import first_of_each, slot_order
from duewheel.wheel.slots import (
    DELAY_MS_MAX,
    HOUR_MS,
    WheelConfig,
    closable_slot,
    hour_of,
    last_slot_of_hour,
    slot_of,
)
from duewheel.wheel.storage import byte_layouts
from duewheel.wheel.storage.byte_layouts import (
    ENTRY,
    RECORD,
    distance_of,
    hour_from_name,
    hour_name,
    pack_reserved,
)
from duewheel.wheel.storage.record_builder import RowPositions, log_records, seal, stored_messages

KEY = "the directory's"

# ---- golden bytes --------------------------------------------------------------------------------


def test_a_slot_of_rip_43_is_read_as_one_of_ours() -> None:
    golden = bytes.fromhex("000000006affbefd 0000000000000000 0000000000000034 0000000e 00000000")
    (entry,) = np.frombuffer(golden, ENTRY)
    assert entry["time"] == 1_795_145_469
    assert (entry["first_pos"], entry["last_pos"], entry["num"], entry["magic"]) == (0, 52, 14, 0)
    # Their index: delivery time over precision, modulo twice the slots.
    assert int(entry["time"]) % (2 * 604_800) == 99_069


def test_entry_and_record_are_packed_big_endian() -> None:
    entry = np.array([(2**40 + 1, -1, 2**33, 7, 0x7FFFFFFF)], ENTRY)
    assert entry.tobytes() == struct.pack(">qqqii", 2**40 + 1, -1, 2**33, 7, 0x7FFFFFFF)
    fields = (52, -1, 1, 1_800_000_000_123, -5_000, 2**33, 210, -77, -(2**63))
    record = np.array([fields], RECORD)
    assert record.tobytes() == struct.pack(">iqiqiqiiq", *fields)
    assert len(record.tobytes()) == 52 and len(entry.tobytes()) == 32


BATCH = TimerBatch(
    partitions=[("timers", 3), ("late", 0)],
    partition=np.array([1, 0], np.int32),
    offset=np.array([2**40, 9]),
    origin_offset=np.array([2**40 - 5, 9]),
    due_ms=np.array([1_800_000_000_001, -1]),
    not_before_ms=np.array([1_800_000_000_002, ANY_TIME]),
    codes=["bad_header"],
    code=np.array([ACCEPTED, 0], np.int32),
    timer=np.array([True, True]),
    cancels=np.array([False, False]),
    named_offset=np.array([ANY_OFFSET, ANY_OFFSET]),
    targets=["orders", "dead"],
    target=np.array([0, 1], np.int32),
    target_partition=np.array([5, -1], np.int32),
    key_hash=np.array([77, -1], np.int32),
    id_hash=np.array([2**40 - 1, 5]),
    timer_id=binary([b"my id", b""]),
    key_value=binary([b"\x06key\x01", b"\x01\x0avalue"]),
    headers=binary([b"\x02h\x02v", b""]),
    header_count=np.array([1, 0], np.int32),
    roll_times=np.array([2, 0], np.int32),
    retries=np.array([3, 0], np.int32),
    level=np.array([0, 18], np.int32),
    timestamp_ms=np.array([0, 0]),
    chase_slot=np.array([NO_SLOT, NO_SLOT]),
    chase_flags=np.array([0, 0], np.int32),
    recurring=np.zeros(2, np.bool_),
    seed=np.zeros(2, np.bool_),
    forged=np.zeros(2, np.bool_),
    keeps=np.zeros(2, np.bool_),
)
ROLLED = np.array([False, True])
SLOT = 36_000_000_001  # precision 50
PLACES = RowPositions(
    slot=np.array([SLOT, SLOT]),
    log_position=np.array([104, 156]),
    message_position=np.array([1_000, 1_080]),
    prev_pos=np.array([52, 104]),
    run_start=np.array([0]),
)


def test_a_record_and_its_message_are_these_bytes() -> None:
    messages = stored_messages(BATCH, np.array([4, 6], np.int32))
    now_ms = 1_799_999_999_000
    records = log_records(BATCH, ROLLED, BATCH.id_hash, PLACES, lengths(messages), 50, now_ms, KEY)
    first = struct.pack(
        ">iqiqiqiiq",
        *(52, 52, 1, now_ms, 1_050, 1_000, 64 + 5 + 6 + 5 + 4),
        *(topic_hash("orders", KEY), 2**40 - 1),
    )
    second = struct.pack(
        ">iqiqiqiiq",
        *(52, 104, 18 << 8 | 3, now_ms, 1_050, 1_080, 64 + 4 + 7),
        *(topic_hash("dead", KEY), 1 << 40 | 5),
    )
    assert records.tobytes() == first + second

    def stored(record: bytes, fields: tuple[int, ...], id_hash: int, rest: bytes) -> bytes:
        prefix, check = struct.pack(">qqqiiHBBiiiiHH", *fields), 0x243F6A8885A308D3
        head = record + bytes(4) + bytes(8) + prefix + struct.pack(">q", id_hash)
        for (word,) in struct.iter_unpack(">Q", head):
            check = (check ^ word) * 0x9E3779B97F4A7C15 % 2**64
            check ^= check >> 32
        sealed = struct.pack(">I", check % 2**32) + prefix + rest
        return struct.pack(">I", google_crc32c.value(record + bytes(4) + sealed)) + sealed

    message = (2**40, 2**40 - 5, 1_800_000_000_001, 6, 0, 6, 0, 5, 5, 77, 5, 1, 2, 3)
    dead_letter = (9, 9, -1, 4, 3, 4, 1, 0, -1, -1, 7, 0, 0, 0)
    assert bytes(seal(messages, records, BATCH.id_hash)) == stored(
        first, message, 2**40 - 1, b"my id" + b"orders" + b"\x06key\x01" + b"\x02h\x02v"
    ) + stored(second, dead_letter, 0, b"dead" + b"\x01\x0avalue")


@given(
    slot=st.integers(0, 2**50),
    precision_ms=st.sampled_from([1, 7, 50, 1000]),
    now_ms=st.integers(-(2**52), 2**52),
)
def test_write_time_and_delay_always_add_up_to_the_slot(
    slot: int, precision_ms: int, now_ms: int
) -> None:
    places = RowPositions(*(np.array([n]) for n in (slot, 0, 0, -1, 0)))
    one, timer = BATCH.take(np.array([0])), np.array([False])
    (record,) = log_records(
        one, timer, one.id_hash, places, np.array([64]), precision_ms, now_ms, KEY
    )
    assert int(record["write_time"]) + int(record["delay"]) == slot * precision_ms
    if abs(now_ms - slot * precision_ms) < DELAY_MS_MAX:
        assert record["write_time"] == now_ms


@given(st.lists(st.tuples(st.integers(0, 2**24 - 1), st.integers(0, 2**40 - 1)), min_size=1))
def test_distance_and_hash_share_a_field(parts: list[tuple[int, int]]) -> None:
    distance, id_hash = np.array(parts).T
    reserved = pack_reserved(distance, id_hash).astype(">i8")
    assert np.array_equal(distance_of(reserved), distance)
    assert np.array_equal(reserved.astype(np.int64) & (2**40 - 1), id_hash)


@given(st.integers(-(2**40), 2**40), st.lists(st.integers(0, 3) | st.integers(0, 2**33)))
def test_rows_are_ordered_by_slot_then_as_they_came(lowest: int, above: list[int]) -> None:
    slots = lowest + np.array(above, np.int64)
    assert slot_order(slots).tolist() == sorted(range(len(above)), key=lambda row: above[row])


@given(st.lists(st.integers(0, 5)).map(sorted))
def test_runs_begin_where_the_slot_changes(slots: list[int]) -> None:
    first = first_of_each(np.array(slots, np.int64))
    assert [slots[i] for i in first] == sorted(set(slots))
    assert all(i == 0 or slots[i - 1] != slots[i] for i in first)
    places = RowPositions(*(np.array(slots, np.int64),) * 4, first)
    assert places.runs().count.sum() == len(slots)
    expected = [i - slots.index(slot) for i, slot in enumerate(slots)]
    assert places.distance().tolist() == expected


# ---- slots and hours -----------------------------------------------------------------------------

precisions = st.one_of(st.sampled_from([1, 7, 50, 999, 1000, 3_700_000]), st.integers(1, 10_000))
times = st.integers(-(2**41), 2**41)  # as slots of the longest precision, below 2**63 ms


@given(due_ms=times, precision_ms=precisions)
def test_a_slot_closes_at_its_last_due_time_never_before(due_ms: int, precision_ms: int) -> None:
    slot = slot_of(due_ms, precision_ms)
    assert (slot - 1) * precision_ms < due_ms <= slot * precision_ms
    assert slot_of(np.array([due_ms]), precision_ms).tolist() == [slot]
    closes_ms = slot * precision_ms
    assert closable_slot(closes_ms - 1, precision_ms) == slot - 1
    assert closable_slot(closes_ms, precision_ms) == slot


def test_the_example_in_the_documentation() -> None:
    assert [slot_of(due, 50) for due in (0, 1, 50, 51, 100)] == [0, 1, 1, 2, 2]
    assert [closable_slot(now, 50) for now in (99, 100, 149)] == [1, 2, 2]


@given(slot=times, precision_ms=precisions)
def test_an_hour_s_last_slot_is_its_last(slot: int, precision_ms: int) -> None:
    hour = hour_of(slot, precision_ms)
    assert hour * HOUR_MS <= slot * precision_ms < (hour + 1) * HOUR_MS
    assert hour_of(np.array([slot]), precision_ms).tolist() == [hour]
    last = last_slot_of_hour(hour, precision_ms)
    assert last >= slot
    assert hour_of(last, precision_ms) == hour
    assert hour_of(last + 1, precision_ms) > hour


@given(st.integers(0, 2_000_000))
def test_an_hour_is_found_again_by_its_file_name(hour: int) -> None:
    name = hour_name(hour)
    assert len(name) == 10
    assert hour_from_name(name) == hour
    assert hour_name(hour + 1) > name


def test_the_end_of_the_calendar_has_names() -> None:
    """A producer can choose it, where a topic permits any timestamp."""
    last = datetime(9999, 12, 31, 23, tzinfo=UTC)
    hours = [int(last.timestamp()) // 3600 + more for more in range(-1, 3)]
    found = [hour_name(hour) for hour in hours]
    assert found == ["9999123122", "9999123123", f"h{hours[2]}", f"h{hours[3]}"]
    assert [hour_from_name(name) for name in found] == hours


def test_file_names_are_hours_of_utc() -> None:
    assert hour_name(500_000) == "2027011508"
    with pytest.raises(ValueError, match="backup"):
        hour_from_name("backup")


# ---- geometry ------------------------------------------------------------------------------------


def test_the_defaults_hold_a_day_and_an_hour() -> None:
    config = WheelConfig()
    assert config.ring == 2 * config.slots
    assert config.ring * ENTRY.itemsize == 134_217_728


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"precision_ms": 0}, "must be positive"),
        ({"slots": 0}, "must be positive"),
        ({"window_ms": 0}, "must be positive"),
        ({"margin_ms": -1}, "must be positive"),
        ({"slots": 1_000}, "exceed slots × precision = 50000 ms"),
        ({"precision_ms": 1_000}, r"must stay below 2\*\*30 ms"),
    ],
)
def test_an_impossible_geometry_is_refused(values: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        WheelConfig(**values)


def test_the_examples_of_the_formats_are_right() -> None:
    found = doctest.testmod(byte_layouts)
    assert found.attempted > 0 and not found.failed
