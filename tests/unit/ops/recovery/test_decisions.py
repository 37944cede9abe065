"""Which timers of a mirror are still to be delivered: of each record what has become of it."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from tests.harness.mirrored import T0, record, rows
from tests.harness.source_table import SourceRow

from duewheel.ops.recovery.decisions import RecordState, decide
from duewheel.ops.recovery.evidence import NOTHING, Evidence, timer_keys

WAITING, LEFT, CANCELLED = RecordState.WAITING, RecordState.LEFT, RecordState.CANCELLED
NO_TIMER, KEPT_OUT, COPIED = RecordState.NO_TIMER, RecordState.KEPT_OUT, RecordState.COPIED
KEEP: dict[str, Any] = {"TIMER_IF_PENDING": "keep"}


def copy(due_s: int, timer_id: str, origin: int, value: bytes = b"v") -> SourceRow:
    return record(due_s, timer_id, value=value, TIMER_ORIGIN=origin, TIMER_ROLL_TIMES=1)


def cancel(timer_id: str, at_s: int = 0, **headers: Any) -> SourceRow:
    return record(None, "", at_s, TIMER_DEL_UNIQKEY=timer_id, **headers)


def chase(timer_id: str, origin: int) -> SourceRow:
    return cancel(timer_id, TIMER_ORIGIN=origin, TIMER_CANCEL_SLOT=1)


def left(*timers: tuple[str, int, int]) -> Evidence:
    """What has left: id, due time in seconds, and offset in the lost cluster of each."""
    keys = timer_keys(
        (timer_id.encode() for timer_id, *_ in timers),
        (T0 + 1_000 * due_s for _, due_s, _ in timers),
    )
    found, counts = np.unique(keys, return_counts=True)
    return Evidence(found, counts, np.unique(np.array([n for *_, n in timers], np.int64)))


def states(
    records: Sequence[SourceRow], evidence: Evidence = NOTHING
) -> tuple[list[RecordState], int]:
    found, unclear = decide(rows(*records), evidence)
    return [RecordState(each) for each in found.tolist()], unclear


def test_a_receipt_of_the_same_id_and_due_time_shows_that_a_timer_has_left() -> None:
    records = [record(5, "a"), record(6, "a"), record(5, "b")]

    assert states(records, left(("a", 5, 900))) == ([LEFT, WAITING, WAITING], 0)


def test_timers_without_an_id_leave_in_their_order() -> None:
    records = [record(5), record(5), record(5), record(6)]

    assert states(records, left(("", 5, 900), ("", 5, 905)))[0] == [LEFT, LEFT, WAITING, WAITING]


@pytest.mark.parametrize("word", ["TIMER_RESCHEDULE", "TIMER_IF_PENDING"])
def test_a_reschedule_replaces_the_earlier_ones_of_its_id(word: str) -> None:
    given: dict[str, Any] = {word: "true" if word == "TIMER_RESCHEDULE" else "replace"}
    new = record(9, "a", **given)
    records = [record(5, "a"), record(6, "a"), new, record(5, "b")]

    assert states(records)[0] == [CANCELLED, CANCELLED, WAITING, WAITING]


def test_the_one_that_replaced_another_one_with_its_due_time_has_left() -> None:
    new = record(5, "a", value=b"new", TIMER_RESCHEDULE="true")

    assert states([record(5, "a"), new], left(("a", 5, 901)))[0] == [CANCELLED, LEFT]


def test_a_cancel_stops_earlier_timers_only() -> None:
    records = [record(5, "a"), cancel("a"), record(6, "a")]

    assert states(records)[0] == [CANCELLED, NO_TIMER, WAITING]


def test_a_cancel_that_came_too_late_stops_none() -> None:
    assert states([record(5, "a"), cancel("a", 7)], left(("a", 5, 900)))[0] == [LEFT, NO_TIMER]


def test_keep_drops_a_timer_while_an_earlier_one_is_pending() -> None:
    records = [record(5, "a"), record(9, "a", 4, **KEEP), record(9, "a", 6, **KEEP)]

    assert states(records, left(("a", 5, 900)))[0] == [LEFT, KEPT_OUT, WAITING]


@pytest.mark.parametrize(
    "stop",
    [cancel("a", 1), cancel("a", 1, TIMER_CANCEL_OFFSET=900)],
    ids=["by id", "by handle"],
)
def test_a_cancelled_timer_keeps_none_out(stop: SourceRow) -> None:
    records = [record(90, "a"), stop, record(95, "a", 2, **KEEP)]

    assert states(records) == ([CANCELLED, NO_TIMER, WAITING], 0)


def test_a_timer_that_a_reschedule_replaced_keeps_none_out() -> None:
    sooner = record(5, "a", 1, TIMER_RESCHEDULE="true", TIMER_CANCEL_OFFSET=900)
    records = [record(90, "a"), sooner, record(9, "a", 4, **KEEP), record(9, "a", 6, **KEEP)]

    assert states(records)[0] == [CANCELLED, WAITING, KEPT_OUT, WAITING]


def test_a_timer_keeps_others_out_until_its_cancel_by_handle() -> None:
    by_handle = cancel("a", 3, TIMER_CANCEL_OFFSET=900)
    before, after = record(95, "a", 2, **KEEP), record(95, "a", 4, **KEEP)
    rolled = copy(90, "a", 900)

    of_copy = states([record(90, "a"), rolled, before, by_handle, after])[0]
    assert of_copy == [COPIED, CANCELLED, KEPT_OUT, NO_TIMER, WAITING]
    copied_later = states([record(90, "a"), before, by_handle, after, rolled])[0]
    assert copied_later == [COPIED, KEPT_OUT, NO_TIMER, WAITING, CANCELLED]


def test_a_handle_of_one_of_two_timers_lets_a_later_one_in() -> None:
    """Which of the two keeps others out is unclear, and a lost message is the worse end."""
    by_handle = cancel("a", 1, TIMER_CANCEL_OFFSET=900)
    two = [record(5, "a"), record(90, "a"), by_handle]
    found, unclear = states([*two, record(95, "a", 4, **KEEP), record(95, "a", 6, **KEEP)])

    assert (found, unclear) == ([WAITING, WAITING, NO_TIMER, KEPT_OUT, WAITING], 1)


def test_a_repeated_cancel_by_handle_stops_no_other_timer() -> None:
    by_handle = cancel("a", TIMER_CANCEL_OFFSET=900)
    records = [record(5, "a"), by_handle, record(6, "a"), by_handle]

    assert states(records) == ([CANCELLED, NO_TIMER, WAITING, NO_TIMER], 0)


def test_a_copy_stands_for_its_timer() -> None:
    records = [record(90, "a"), copy(90, "a", 900), copy(90, "a", 900), copy(91, "a", 7)]

    assert states(records)[0] == [COPIED, COPIED, WAITING, WAITING]
    assert states(records, left(("a", 90, 900)))[0] == [COPIED, COPIED, LEFT, WAITING]


def test_a_copy_without_an_id_stands_for_the_timer_with_its_content() -> None:
    records = [record(90, value=b"1"), record(90, value=b"2"), copy(90, "", 900, value=b"2")]

    assert states(records)[0] == [WAITING, COPIED, WAITING]


def test_a_copy_that_was_written_after_the_cancel_stays_cancelled() -> None:
    records = [record(90, "a"), cancel("a"), copy(90, "a", 900)]

    assert states(records)[0] == [COPIED, NO_TIMER, CANCELLED]


def test_copies_of_equal_timers_pass_a_stopped_one_once() -> None:
    """Any producer can write as many of each: to pass all of them for each copy would take days."""
    calls = []
    for count in (200, 400):
        equal = [record(90, "a")] * count
        copies = [copy(90, "a", 10**6 + n) for n in range(count + 1)]
        mirrored = rows(*equal, cancel("a"), *equal, *copies)
        with counted_calls() as counter:
            found = decide(mirrored, NOTHING)[0]
        calls.append(counter.total())
        assert found[:count].tolist() == [COPIED] + [CANCELLED] * (count - 1)
        assert found[count:].tolist() == [NO_TIMER] + [COPIED] * count + [WAITING] * count + [
            CANCELLED
        ]
    assert calls[1] < 2.5 * calls[0]


@contextmanager
def counted_calls() -> Iterator[Counter[str]]:
    """Counts the calls of Python functions, comparisons and generators among them."""
    calls: Counter[str] = Counter()

    def count(_: object, event: str, __: object) -> None:
        calls["call"] += event == "call"

    sys.setprofile(count)
    try:
        yield calls
    finally:
        sys.setprofile(None)


def test_a_chase_stops_the_copies_of_earlier_timers_only() -> None:
    records = [copy(90, "a", 900), record(95, "a"), copy(91, "a", 950), chase("a", 940)]

    assert states(records)[0] == [CANCELLED, WAITING, WAITING, NO_TIMER]


def test_each_chase_passes_a_copy_once() -> None:
    """Any producer can write as many as timers: to look at all for each would take an hour."""
    copies = [copy(90, "a", 900 + n) for n in range(20_000)]
    chases = [chase("a", 900), *(chase("a", 901) for _ in range(20_000))]
    found = states([*copies, *chases])[0]
    assert found[:3] == [CANCELLED, WAITING, WAITING]
    assert set(found[3:20_000]) == {WAITING}


def test_a_handle_stops_the_one_timer_of_its_id() -> None:
    by_handle = cancel("a", TIMER_CANCEL_OFFSET=900)

    assert states([record(5, "a"), by_handle]) == ([CANCELLED, NO_TIMER], 0)
    assert states([record(5, "a"), record(6, "a"), by_handle]) == ([WAITING, WAITING, NO_TIMER], 1)
    assert states([record(5, "a"), copy(6, "a", 900), by_handle])[0] == [
        WAITING,
        CANCELLED,
        NO_TIMER,
    ]


def test_a_handle_of_a_timer_that_has_left_stops_no_other() -> None:
    records = [record(5, "a"), record(9, "a"), cancel("a", TIMER_CANCEL_OFFSET=900)]

    assert states(records, left(("a", 5, 900))) == ([LEFT, WAITING, NO_TIMER], 0)


def test_a_handle_of_a_timer_without_an_id_needs_its_copy_or_receipt() -> None:
    by_handle = cancel("orders.delayed-0@900", TIMER_CANCEL_OFFSET=900)

    assert states([record(90), by_handle]) == ([WAITING, NO_TIMER], 1)
    assert states([record(90), by_handle], left(("", 90, 900))) == ([LEFT, NO_TIMER], 0)
    assert states([copy(90, "", 900), by_handle]) == ([CANCELLED, NO_TIMER], 0)
    assert states([record(90), copy(90, "", 900), by_handle])[0] == [COPIED, CANCELLED, NO_TIMER]


def test_schedules_and_rejected_records_are_left_out() -> None:
    others: Counter[str] = Counter()
    schedule = record(None, "daily", TIMER_CRON="0 8 * * *")
    found = rows(schedule, record(None, "a"), record(5, "b"), others=others)

    assert [RecordState(each) for each in decide(found, NOTHING)[0]] == [
        NO_TIMER,
        NO_TIMER,
        WAITING,
    ]
    assert +others == Counter(recurring=1, no_due_time=1)


def test_records_that_a_mirror_has_twice_count_once() -> None:
    new = [record(50 + n, f"a{n}", at_s=n) for n in range(6)]
    # Killed after four records, of which the last three were not committed.
    found = rows(*new[:4], *new[1:], new[5]).without_repeats()

    assert found.offset.tolist() == [0, 1, 2, 3, 7, 8, 9]  # the last one is its producer's


def test_a_window_spreads_timers_without_key_and_id_by_a_lost_offset() -> None:
    window: dict[str, Any] = {"TIMER_WINDOW_MS": 60_000}
    keyless = record(5, at_s=0, **window)._replace(key=None)
    found = rows(record(5, **window), keyless, record(5, "a", **window)._replace(key=None))

    assert found.unclear.tolist() == [False, True, False]


def test_cancels_of_an_id_with_many_timers_look_at_none() -> None:
    """Each would look at all: minutes for one writer's records, before those of the others."""
    many = [record(50 + n, "a") for n in range(101)]
    found, unclear = states([*many, cancel("a", TIMER_CANCEL_OFFSET=5_000)])
    assert found[:101] == [RecordState.WAITING] * 101
    assert unclear == 1
