"""Headers, keys and values that nobody meant: each record becomes one timer or one dead letter, and
comes out of the wheel with the bytes that it came with.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st
from tests.harness.source_table import HEADERS, read_records
from tests.harness.timer_rows import suite_parameters
from tests.property.plain_contract import PlainRecord, check
from tests.property.plain_contract import table as records_table

from duewheel.ops.recovery.mirrored_rows import Kind, MirroredRows, rows_of
from duewheel.schemas.batches import NO_PARTITION
from duewheel.schemas.dead_letters import DeadLetter, Outgoing, why_no_target
from duewheel.schemas.header_names import COPY_MAC, DROP_IN, LEVELS_MS, REQUEST
from duewheel.schemas.name_patterns import TimerTopics
from duewheel.schemas.request.acceptance_rules import compile_suite, load_suite
from duewheel.schemas.request.parser import Contract, parse
from duewheel.schemas.request.preview import Rejection
from duewheel.schemas.request.topic_settings import TopicContract
from duewheel.schemas.wire.copy_mac import mac_header, own_copies
from duewheel.schemas.wire.varint import read_varint
from duewheel.wheel.roll_rule import roll_instants
from duewheel.wheel.slots import slot_of
from duewheel.wheel.storage.record_builder import stored_messages

Change = Callable[[st.DataObject, bytes], bytes]

DEAD = "dead.letters"
PARAMETERS = suite_parameters(
    max_delay_ms=40 * 86_400_000, forbidden_targets=["orders.delayed", DEAD]
)
RULES = compile_suite(load_suite(), PARAMETERS)
CONTRACT = Contract(LEVELS_MS, {"orders.delayed": TopicContract(target="orders")}, DEAD, RULES)
SAMPLES = {
    "DELAY": b"3",
    "TIMER_DELAY_SEC": b"3600",
    "TIMER_DELAY_MS": b"250",
    "TIMER_DELIVER_MS": b"2027-01-31T08:30:00.250+01:00",
    "deliverAfter": b"900000",
    "TIMER_WINDOW_MS": b"60000",
    "REAL_TOPIC": b"orders.paid",
    "REAL_QID": b"12",
    "UNIQ_KEY": b"order-4711",
    "TIMER_DEL_UNIQKEY": b"order-4711",
    "TIMER_RESCHEDULE": b"true",
    "TIMER_IF_PENDING": b"keep",
    "TIMER_CANCEL_OFFSET": b"17",
    "TIMER_CANCEL_SLOT": b"36000000000",
    "TIMER_CANCEL_FLAGS": b"3",
    "TIMER_ORIGIN": b"17",
    "TIMER_ROLL_TIMES": b"2",
    "TIMER_NOT_BEFORE_MS": b"1800000000250",
    "TIMER_RETRIES": b"4",
    "TIMER_SOURCE": b"orders.delayed-0@17",
    "trace": b"0123456789abcdef",
}
assert SAMPLES.keys() - {"trace"} <= REQUEST.keys()
FOREIGN = {
    "scheduler-epoch": b"1800000001",
    "scheduler-target-topic": b"orders.paid",
    "scheduler-target-key": b"key",
    "schedule_target_epoch": b"1800000001",
    "schedule_target_topic": b"orders.paid",
    "schedule_target_key": b"key",
    "schedule_target_partition": b"12",
    "schedule_target_partition_key": b"customer-9",
    "schedule_source_type": b"schedule",
    "schedule_schema_version": b"1.0.0",
    "kafka-scheduler-when": b"2027-01-31T08:30:00.250",
    "kafka-scheduler-topic": b"orders.paid",
    "kafka-scheduler-key": b"key",
    "kafka-scheduler-cron": b"*/5 * * * * *",
    "TIMER_WINDOW_MS": b"60000",
    "TIMER_RESCHEDULE": b"true",
    "TIMER_ORIGIN": b"5",
    "trace": b"0123456789abcdef",
}
assert FOREIGN.keys() - {"trace"} <= {*REQUEST, *(n for each in DROP_IN.values() for n in each)}
LONG = (b"9" * 10_000, b"0" * 100_000 + b"1", b"-" * 70_000, b"\xff" * 66_000)
TIMES_MS = st.sampled_from([0, -1, 1_800_000_000_000, 9_223_372_036_854_774, -62_135_596_800_000])


@st.composite
def records(draw: st.DrawFn) -> list[tuple[int, list[str]]]:
    return draw(
        st.lists(
            st.tuples(TIMES_MS, st.lists(st.sampled_from(sorted(SAMPLES)), max_size=5)),
            min_size=1,
            max_size=4,
        )
    )


def value_of(name: str, damage: Change, data: st.DataObject) -> bytes | None:
    kind = data.draw(st.sampled_from(["as it should be", "damaged", "damaged", "null", "long"]))
    sample = FOREIGN[name] if name in FOREIGN else SAMPLES[name]
    if kind == "damaged":
        return damage(data, sample)
    if kind == "long":
        return data.draw(st.sampled_from(LONG))
    return None if kind == "null" else sample


def table(rows: list[tuple[int, list[tuple[str, bytes | None]]]]) -> pa.Table:
    stamps = np.array([at for at, _ in rows]) * 1_000
    return pa.table(
        {
            "topic": ["orders.delayed"] * len(rows),
            "partition": pa.array(range(len(rows)), pa.int32()),
            "offset": pa.array([100 + i for i in range(len(rows))], pa.int64()),
            "timestamp": pa.array(stamps.tolist()).cast(pa.timestamp("us", "UTC")),
            "key": pa.array([name.encode() for name, _ in map(first, rows)], pa.binary()),
            "value": pa.array([value for _, value in map(first, rows)], pa.binary()),
            "headers": pa.array(
                [[{"key": n, "value": v} for n, v in headers] for _, headers in rows], HEADERS
            ),
        }
    )


def first(row: tuple[int, list[tuple[str, bytes | None]]]) -> tuple[str, bytes | None]:
    """A key and a value: those of the first header."""
    return row[1][0] if row[1] else ("", None)


def framed(octets: bytes, at: int) -> tuple[bytes | None, int]:
    size, at = read_varint(octets, at)
    return (None, at) if size < 0 else (octets[at : at + size], at + size)


def headers_in(octets: bytes) -> list[tuple[str, bytes | None]]:
    found, at = [], 0
    while at < len(octets):
        name, at = framed(octets, at)
        value, at = framed(octets, at)
        assert name is not None
        found.append((name.decode(), value))
    return found


@given(data=st.data(), asked=records())
def test_any_headers(
    damage: Change, data: st.DataObject, asked: list[tuple[int, list[str]]]
) -> None:
    rows = [(at, [(name, value_of(name, damage, data)) for name in names]) for at, names in asked]
    batch = parse(read_records(table(rows)), CONTRACT)
    assert len(batch) == len(rows)
    instants = roll_instants(batch.due_ms, batch.timestamp_ms, batch.id_hash, 86_400_000)
    slots = slot_of(np.where(batch.rejected, 0, batch.due_ms), 50)
    assert np.all(slots * 50 - np.where(batch.rejected, 0, batch.due_ms) < 50)
    assert instants.dtype == np.int64
    ids = np.arange(8, dtype=np.int32)
    stored: list[Any] = stored_messages(batch, ids).to_pylist()
    for i, (_, headers) in enumerate(rows):
        target = batch.targets[batch.target[i]]
        key_value = batch.key_value[i].as_py()
        key, at = framed(key_value, 0)
        value, at = framed(key_value, at)
        assert (key, value, at) == (first(rows[i])[0].encode(), first(rows[i])[1], len(key_value))
        found = headers_in(batch.headers[i].as_py())
        assert len(found) == batch.header_count[i]
        assert stored[i].endswith(batch.headers[i].as_py())
        if batch.rejected[i]:
            assert target == DEAD
            assert found[:-2] == headers
            assert [name for name, _ in found[-2:]] == ["TIMER_ERROR_CODE", "TIMER_ERROR"]
            assert batch.target_partition[i] == NO_PARTITION
        else:
            assert not batch.timer[i] or target not in (DEAD, "orders.delayed")
            assert found == [pair for pair in headers if pair[0] not in REQUEST]
            assert batch.due_ms[i] - batch.timestamp_ms[i] + 10**16 >= 0
            assert len(batch.timer_id[i].as_py()) < 2**16
            assert 0 <= batch.origin_offset[i] <= batch.offset[i]


CHASE = {
    name: SAMPLES[name]
    for name in (
        *("TIMER_DEL_UNIQKEY", "TIMER_ORIGIN", "TIMER_CANCEL_SLOT", "TIMER_CANCEL_FLAGS"),
        *("TIMER_CANCEL_OFFSET", "trace"),
    )
}


@given(data=st.data(), others=st.sets(st.sampled_from(sorted(SAMPLES)), max_size=2))
def test_any_chase(damage: Change, data: st.DataObject, others: set[str]) -> None:
    """What dequeue writes for a cancel, with one header changed and others beside: it is for timers
    below the record that it names, or a dead letter.
    """
    place = data.draw(st.sampled_from(sorted(CHASE)))
    headers: list[tuple[str, bytes | None]] = [*CHASE.items()]
    headers[list(CHASE).index(place)] = (place, value_of(place, damage, data))
    headers += [(name, SAMPLES[name]) for name in sorted(others - CHASE.keys())]
    rows = [PlainRecord("orders.delayed", 3, 1_800_000_000_000, b"key", None, headers)]
    batch = parse(read_records(records_table(rows, first_offset=100)), CONTRACT)
    check(rows, batch, CONTRACT, first_offset=100)
    (rejected,), (cancels,) = batch.rejected, batch.cancels
    assert cancels == (not rejected) and batch.timer[0] == rejected
    assert rejected or 0 <= batch.origin_offset[0] <= 100


@given(
    data=st.data(),
    mode=st.sampled_from(sorted(DROP_IN)),
    asked=st.lists(
        st.tuples(
            st.sampled_from([0, -1, 1_800_000_000_000, -62_135_596_800_000]),
            st.sampled_from([None, b"", b"order-4711", b"x" * 256]),
            st.sampled_from([None, b"", b"value"]),
            st.lists(st.sampled_from(sorted(FOREIGN)), max_size=6),
        ),
        min_size=1,
        max_size=2,
    ),
)
def test_any_headers_of_another_service(
    damage: Change,
    data: st.DataObject,
    mode: str,
    asked: list[tuple[int, bytes | None, bytes | None, list[str]]],
) -> None:
    topics = {"schedules": TopicContract(headers=mode, target="orders", past_due="dead-letter")}
    under = Contract(LEVELS_MS, topics, DEAD, RULES)
    rows = [
        PlainRecord(
            *("schedules", 3, at, key, value),
            [(name, value_of(name, damage, data)) for name in names],
        )
        for at, key, value, names in asked
    ]
    check(rows, parse(read_records(records_table(rows)), under), under)


LETTER: list[tuple[str, bytes | None]] = [
    ("trace", b"0123456789abcdef"),
    ("TIMER_ERROR_CODE", b"record_too_large"),
    ("TIMER_ERROR", b"too large"),
    ("REAL_TOPIC", b"orders"),
    ("REAL_QID", b"12"),
    ("TIMER_DUE_MS", b"1800000000000"),
    ("UNIQ_KEY", b"order-4711"),
    ("TIMER_SOURCE", b"orders.delayed-0@17"),
]


@given(data=st.data(), kept=st.sets(st.integers(0, len(LETTER) - 1), min_size=1))
def test_any_dead_letter(damage: Change, data: st.DataObject, kept: set[int]) -> None:
    place = data.draw(st.sampled_from(sorted(kept)))
    headers = [LETTER[i] for i in sorted(kept)]
    name, value = LETTER[place]
    other = data.draw(st.sampled_from([None, b"9" * 5_000, "١٢".encode(), b"4294967296"]))
    changed = other if data.draw(st.booleans()) else damage(data, value or b"")
    headers[sorted(kept).index(place)] = (name, changed)
    letter = DeadLetter(0, 5, 1_800_000_000_000, b"key", b"value", headers)
    found = letter.replayed(
        TimerTopics(("orders.delayed",)), partial(why_no_target, CONTRACT), None, None
    )
    if isinstance(found, Rejection):
        assert letter.again(found)
    else:
        assert isinstance(found, Outgoing)
        assert found.partition == NO_PARTITION or 0 <= found.partition < 2**31
        assert re.fullmatch("[a-zA-Z0-9._-]{1,249}", found.topic) and found.topic != DEAD


KEY = bytes(range(32))
PLACE = ("orders.delayed", 3)
UNDER = Contract(
    CONTRACT.levels_ms,
    CONTRACT.topics,
    CONTRACT.dead_letter_topic,
    CONTRACT.rules,
    copy_keys=(KEY,),
)


@given(
    data=st.data(),
    names=st.lists(st.sampled_from(sorted(SAMPLES)), max_size=6),
    change=st.sampled_from(["none", "before", "after"]),
)
def test_any_copy(damage: Change, data: st.DataObject, names: list[str], change: str) -> None:
    """Signed after the change, it is a copy with any headers; changed after it, no copy."""
    headers: list[tuple[str, bytes | None]] = [(name, SAMPLES[name]) for name in names]
    if headers and change == "before":
        name, value = headers[-1]
        headers[-1] = (name, damage(data, value or b""))
    mac = mac_header(KEY, PLACE, b"key", None, headers)
    ((_, signature),) = mac
    if change == "after":
        mac = [(COPY_MAC, damage(data, signature or b""))]
    rows = [PlainRecord(*PLACE, 1_800_000_000_000, b"key", None, [*headers, *mac])]
    records = read_records(records_table(rows, first_offset=100))
    (is_own,) = own_copies(records, [KEY])
    assert is_own == (mac[0][1] == signature)
    batch = parse(records, UNDER)
    assert len(batch) == 1 and (batch.origin_offset >= 0).all()


@given(data=st.data(), asked=records())
def test_any_mirrored_records(
    damage: Change, data: st.DataObject, asked: list[tuple[int, list[str]]]
) -> None:
    """Each is a row or counted; two that are equal stay two, as neighbours."""
    rows = [(at, [(name, value_of(name, damage, data)) for name in names]) for at, names in asked]
    others = Counter[str]()
    one = table(rows).set_column(1, "partition", pa.array([0] * len(rows), pa.int32()))
    found = rows_of(read_records(one), ("timers", 0), CONTRACT, others)
    assert len(found) == len(rows)
    assert sum(others.values()) == np.count_nonzero(found.kind == Kind.OTHER)
    assert np.all(found.timestamp_ms == [at for at, _ in rows])
    assert np.all(found.first_offset[found.kind == Kind.COPY] >= 0)
    assert len(MirroredRows.joined([found, found]).without_repeats()) >= len(set(found.record))
