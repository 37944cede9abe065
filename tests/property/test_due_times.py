"""When timers are due, at the edges of what can be asked for, against exact integers: Python's do
not overflow.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.harness.source_table import read_records
from tests.harness.timer_rows import suite_parameters
from tests.property.plain_contract import Header, PlainRecord, instant, table

from duewheel.schemas.batches import TimerBatch
from duewheel.schemas.request.acceptance_rules import compile_suite, load_suite
from duewheel.schemas.request.parser import Contract, parse
from duewheel.schemas.request.topic_settings import TopicContract
from duewheel.wheel.roll_rule import requested_slots
from duewheel.wheel.slots import closable_slot, hour_of
from duewheel.wheel.storage.byte_layouts import hour_name

pc: Any = pyarrow.compute

NOW_MS = 1_800_000_000_000
TEN_YEARS_MS = 3_653 * 86_400_000
YEAR_9999_MS = 253_402_300_799_999
RULES = compile_suite(
    load_suite(), suite_parameters(max_delay_ms=TEN_YEARS_MS, forbidden_targets=["dead"])
)
TOPIC = "timers"
PRECISIONS_MS = st.sampled_from([1, 50, 1_000])
WINDOW_MS = 86_400_000
# Some are near an edge of what is written in a header, stored, or accepted.
EDGES_MS = [0, NOW_MS, NOW_MS + TEN_YEARS_MS, YEAR_9999_MS, 10**15, 2**31, 2**62, 2**63, 2**64]
INSTANTS_MS = (
    st.builds(lambda edge, off: edge + off, st.sampled_from(EDGES_MS), st.integers(-3, 3))
    | st.builds(lambda slot: NOW_MS + 50 * slot, st.integers(-3, 3 * 10**6))
    | st.integers(-(2**65), 2**65)
)


def contract(**settings: Any) -> Contract:
    topics = {TOPIC: TopicContract(target="orders", **settings)}
    return Contract((1_000, 5_000), topics, "dead", RULES)


def read(
    *headers: Header, key: bytes | None = None, now_ms: int = NOW_MS, **settings: Any
) -> TimerBatch:
    record = PlainRecord(TOPIC, 0, now_ms, key, b"", [*headers])
    return parse(read_records(table([record])), contract(**settings))


def codes(batch: TimerBatch) -> set[str]:
    return set(batch.rejections())


def saturated(number: int) -> int:
    """What a header can say: 15 digits."""
    return max(-(10**15) + 1, min(number, 10**15 - 1))


@given(INSTANTS_MS, PRECISIONS_MS)
@example(NOW_MS, 50)
@example(0, 50)
@example(-1, 50)
@example(2**63, 50)
def test_a_timer_leaves_at_the_end_of_the_slot_that_holds_its_due_time(
    due_ms: int, precision_ms: int
) -> None:
    batch = read(("TIMER_DELIVER_MS", b"%d" % due_ms))
    asked_ms = saturated(due_ms)
    if asked_ms - NOW_MS > TEN_YEARS_MS:
        assert codes(batch) == {"delay_too_long"}
        return
    assert (codes(batch), batch.due_ms.tolist()) == (set(), [asked_ms])
    (slot,), (rolled,) = requested_slots(batch, precision_ms, WINDOW_MS)
    assert rolled == (asked_ms - NOW_MS > WINDOW_MS)
    if rolled:
        assert NOW_MS < slot * precision_ms <= NOW_MS + WINDOW_MS + precision_ms
    else:
        # Not a millisecond early, and less than a slot late.
        assert 0 <= int(slot) * precision_ms - asked_ms < precision_ms
        assert closable_slot(asked_ms - 1, precision_ms) < slot
    if asked_ms > NOW_MS:
        assert hour_name(hour_of(int(slot), precision_ms))


@given(
    st.sampled_from([("TIMER_DELAY_SEC", 1_000), ("TIMER_DELAY_MS", 1)]),
    INSTANTS_MS,
    st.integers(0, YEAR_9999_MS),
)
def test_delays_count_from_the_records_timestamp(
    unit: tuple[str, int], number: int, now_ms: int
) -> None:
    name, unit_ms = unit
    delay_ms = saturated(number) * unit_ms
    batch = read((name, b"%d" % number), now_ms=now_ms)
    if delay_ms > TEN_YEARS_MS:
        assert codes(batch) == {"delay_too_long"}
    else:
        assert (codes(batch), batch.due_ms.tolist()) == (set(), [now_ms + delay_ms])


@settings(max_examples=40)
@given(st.integers(-5, 5), st.integers(0, 10), st.integers(0, 2 * NOW_MS))
def test_past_due_is_what_is_due_at_the_records_timestamp_or_before(
    delay_ms: int, window_ms: int, now_ms: int
) -> None:
    """With a window: what would be, if it were due at its end."""
    headers: list[Header] = [
        ("TIMER_DELIVER_MS", b"%d" % (now_ms + delay_ms)),
        ("TIMER_WINDOW_MS", b"%d" % window_ms),
    ]
    past = delay_ms + window_ms <= 0
    assert codes(read(*headers, now_ms=now_ms)) == set()
    condemned = read(*headers, now_ms=now_ms, past_due="dead-letter")
    assert codes(condemned) == ({"past_due"} if past else set())
    # A copy was judged when it was none.
    copy = read(headers[0], ("TIMER_ORIGIN", b"3"), now_ms=now_ms, past_due="dead-letter", key=b"k")
    assert (codes(copy), copy.due_ms.tolist()) == (set(), [now_ms + delay_ms])


def test_the_topics_own_delay_is_for_messages_that_do_not_say_when() -> None:
    silent = read(("x", b""), delay_ms=700)
    assert (codes(silent), silent.due_ms.tolist()) == (set(), [NOW_MS + 700])
    assert read(("DELAY", b"0"), delay_ms=700).due_ms.tolist() == [NOW_MS + 700]
    assert read(("DELAY", b"1"), delay_ms=700).due_ms.tolist() == [NOW_MS + 1_000]
    assert codes(read(("DELAY", b"one"), delay_ms=700)) == {"bad_header"}
    too_long_ms = TEN_YEARS_MS + 1
    assert codes(read(delay_ms=too_long_ms)) == {"delay_too_long"}
    # Neither copies nor cancels have it.
    assert codes(read(("TIMER_ORIGIN", b"3"), delay_ms=700)) == {"no_due_time"}
    assert codes(read(("TIMER_DEL_UNIQKEY", b"id"), delay_ms=too_long_ms)) == set()


@pytest.mark.parametrize(
    ("value", "due_ms"),
    [
        (b"0", NOW_MS),  # at once, as a delay and as an instant
        (b"-1", NOW_MS - 1),
        (b"900000", NOW_MS + 900_000),
        (b"999999999999", None),  # a delay beyond the maximum
        (b"1000000000000", 10**12),  # an instant of 2001
        (b"1800000900000", NOW_MS + 900_000),
        (b"2027-01-15T08:15:00Z", NOW_MS + 900_000),
        (b"2000-01-01T00:00:00Z", 946_684_800_000),
        (b"9999-12-31T23:59:59.999Z", None),
        (b"15m", None),
    ],
)
def test_deliver_after(value: bytes, due_ms: int | None) -> None:
    batch = read(("deliverAfter", value))
    if due_ms is None:
        assert codes(batch) == ({"bad_header"} if value == b"15m" else {"delay_too_long"})
    else:
        assert (codes(batch), batch.due_ms.tolist()) == (set(), [due_ms])
    native = read(("deliverAfter", value), ("TIMER_DELIVER_MS", b"%d" % (NOW_MS + 1)))
    assert native.due_ms.tolist() == [NOW_MS + 1]


@pytest.mark.parametrize("text", [b"9999-12-31T23:59:59.999Z", b"0001-01-01T00:00:00+23:59"])
def test_the_ends_of_the_calendar(text: bytes) -> None:
    expected_ms = instant(text)
    assert expected_ms is not None
    near = read(("TIMER_DELIVER_MS", text), now_ms=max(0, expected_ms - 1))
    assert (codes(near), near.due_ms.tolist()) == (set(), [expected_ms])


# ---- windows -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "window", [b"-1", b"", b"5m", b"1.5", b"%d" % (TEN_YEARS_MS + 1), b"9" * 99]
)
def test_what_is_no_window(window: bytes) -> None:
    assert codes(read(("TIMER_DELAY_MS", b"5"), ("TIMER_WINDOW_MS", window))) == {"bad_window"}


def test_a_window_belongs_to_first_copies_with_a_due_time() -> None:
    headers: list[Header] = [("TIMER_DELIVER_MS", b"5"), ("TIMER_WINDOW_MS", b"5")]
    assert codes(read(*headers, ("TIMER_ORIGIN", b"3"))) == {"bad_window"}
    assert codes(read(headers[1])) == {"no_due_time"}


@pytest.mark.parametrize(
    ("way", "earliest_ms"),
    [
        (("DELAY", b"2"), NOW_MS + 5_000),
        (("TIMER_DELAY_SEC", b"7"), NOW_MS + 7_000),
        (("TIMER_DELAY_MS", b"7"), NOW_MS + 7),
        (("TIMER_DELIVER_MS", b"%d" % (NOW_MS + 8)), NOW_MS + 8),
        (("deliverAfter", b"9"), NOW_MS + 9),
    ],
)
def test_a_window_begins_at_the_due_time(way: Header, earliest_ms: int) -> None:
    assert read(way, ("TIMER_WINDOW_MS", b"0")).due_ms.tolist() == [earliest_ms]
    found = {int(read(way, ("TIMER_WINDOW_MS", b"3"), key=b"%d" % i).due_ms[0]) for i in range(60)}
    assert found == {earliest_ms + off for off in range(4)}


@given(st.integers(0, TEN_YEARS_MS), st.integers(0, TEN_YEARS_MS))
@example(1, TEN_YEARS_MS)
@example(TEN_YEARS_MS // 2, TEN_YEARS_MS - TEN_YEARS_MS // 2)
def test_the_maximum_delay_counts_to_the_end_of_the_window(delay_ms: int, window_ms: int) -> None:
    """Whether a timer is accepted is no matter of its hash."""
    batch = read(
        ("TIMER_DELAY_MS", b"%d" % delay_ms), ("TIMER_WINDOW_MS", b"%d" % window_ms), key=b"k"
    )
    if delay_ms + window_ms > TEN_YEARS_MS:
        assert codes(batch) == {"delay_too_long"}
    else:
        assert codes(batch) == set()
        assert delay_ms <= batch.due_ms[0] - NOW_MS <= delay_ms + window_ms


@settings(max_examples=40)
@given(st.binary(max_size=20) | st.none(), st.integers(0, 10**9), st.integers(0, 10**6))
def test_a_timer_that_is_read_again_is_due_when_it_was(
    key: bytes | None, window_ms: int, later_ms: int
) -> None:
    """The timers of a key move alike; those without a key each by its id; its time is no matter."""
    headers: list[Header] = [("UNIQ_KEY", b"a"), ("TIMER_WINDOW_MS", b"%d" % window_ms)]
    first = read(("TIMER_DELAY_MS", b"5"), *headers, key=key)
    again = read(("TIMER_DELAY_MS", b"5"), *headers, key=key, now_ms=NOW_MS + later_ms)
    assert again.due_ms[0] - first.due_ms[0] == later_ms
    if key is not None:
        other = read(("TIMER_DELAY_MS", b"5"), ("UNIQ_KEY", b"b"), headers[1], key=key)
        assert other.due_ms.tolist() == first.due_ms.tolist()


def test_a_million_timers_of_one_second_spread_evenly() -> None:
    """By their keys, by their ids, by where they lie: a third of them each."""
    count, window_ms = 1_000_000, 60_000
    row = np.arange(count)
    kind = row % 3
    names = pc.cast(pc.cast(pa.array(row), pa.string()), pa.binary())
    # Of each row: the due time, the window, its id.
    fixed = pa.array([b"%d" % NOW_MS, b"%d" % window_ms], pa.binary())
    picked = np.stack([np.full(count, 0), np.full(count, 1), row + 2], 1)
    header_names = pa.array(["TIMER_DELIVER_MS", "TIMER_WINDOW_MS", "UNIQ_KEY", "x"])
    named = np.stack([np.full(count, 0), np.full(count, 1), np.where(kind == 1, 2, 3)], 1)
    flat: Any = pa.StructArray.from_arrays(
        [
            header_names.take(pa.array(named.ravel())),
            pa.concat_arrays([fixed, names]).take(pa.array(picked.ravel())),
        ],
        names=["key", "value"],
    )
    records = pa.table(
        {
            "topic": pa.array([TOPIC] * count).dictionary_encode(),
            "partition": pa.array(np.zeros(count), pa.int32()),
            "offset": pa.array(row),
            "timestamp": pa.array(np.full(count, NOW_MS * 1000), pa.timestamp("us", "UTC")),
            "key": pc.if_else(pa.array(kind == 0), names, None),
            "value": pa.nulls(count, pa.binary()),
            "headers": pa.ListArray.from_arrays(
                pa.array(np.arange(count + 1) * 3, pa.int32()), flat
            ),
        }
    )
    batch = parse(read_records(records), contract())
    assert not batch.rejected.any()
    off_ms = batch.due_ms - NOW_MS
    assert (off_ms.min(), off_ms.max()) == (0, window_ms)
    for each in range(3):
        per_second = np.bincount(off_ms[(kind == each) & (off_ms < window_ms)] // 1_000)
        # As uneven as chance would have it: Pearson's sum over the window's seconds.
        expected = per_second.mean()
        unevenness = ((per_second - expected) ** 2 / expected).sum()
        assert len(per_second) == 60
        assert unevenness < 120, "59 on average; beyond 120 once in a hundred thousand times"
