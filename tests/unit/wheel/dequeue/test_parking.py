"""Timers whose target takes no writes: the parked rows, their copies, and when these leave."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import structlog
from tests.harness.deliveries import (
    DOWN,
    NOW_MS,
    ROOM,
    keyed,
    read_back,
    routed,
    rows,
    topics,
)
from tests.simulation.contract_check import decoded

from duewheel.checkpoints.progress import COPY_BYTES_MAX
from duewheel.errors import PublishDoubt
from duewheel.kafka.targets.background_lookups import UNRESOLVED
from duewheel.kafka.targets.unavailable_partitions import UnavailablePartitions
from duewheel.schemas.batches import ANY_TIME, NO_KEY, NO_PARTITION, Deliveries
from duewheel.schemas.columns import binary
from duewheel.schemas.request.request_columns import COUNT_MAX
from duewheel.schemas.wire.record_codec import NO_ORIGIN
from duewheel.testing import ManualClock
from duewheel.wheel.dequeue.duration_histogram import Histogram
from duewheel.wheel.dequeue.encoder import encode
from duewheel.wheel.dequeue.requeue import waiting_copies, waits_ms
from duewheel.wheel.dequeue.statistics import CountsLog, Statistics
from duewheel.wheel.encoded import Aside
from duewheel.wheel.inspect.pending_counts import TOPICS_MAX
from duewheel.wheel.roll_rule import requested_slots
from duewheel.wheel.slots import WheelConfig
from duewheel.wheel.target_rules import Reason, Target

WHEEL = WheelConfig(1_000, 100_000, window_ms=86_400_000, margin_ms=3_600_000)
ORIGIN = ("TIMER_ORIGIN", b"17")
ALL_DOWN = Target(4, 1_000, unavailable=frozenset(range(4)), batch_bytes=1_000)


# ---- the copy -----------------------------------------------------------------------------------


@pytest.mark.parametrize("timer_id", [b"", b"mine"])
@pytest.mark.parametrize(("partition", "rolls", "retries"), [(NO_PARTITION, 0, 0), (3, 2, 4)])
@pytest.mark.parametrize("origin", [17, NO_ORIGIN])
def test_what_a_parked_copy_says_is_read_back(
    timer_id: bytes, partition: int, rolls: int, retries: int, origin: int
) -> None:
    """The same timer, as often rolled, once more parked; at its own due time, not before. One from
    a topic that is no more counts as its own first copy, but keeps its id.
    """
    due_ms = NOW_MS - 5
    one = replace(
        rows(["orders"], [partition]),
        due_ms=np.array([due_ms]),
        origin_offset=np.array([origin]),
        source=binary([b"timers-0@17"]),
        timer_id=binary([timer_id or b"timers-0@17"]),
        roll_times=np.array([rolls], np.int32),
        retries=np.array([retries], np.int32),
    )
    this = np.array([True])
    copy = waiting_copies(one, this, np.array([NOW_MS + 900]), this)
    assert (copy.targets[copy.target[0]], copy.target_partition[0]) == ("timers", 0)
    headers = decoded(copy.headers[0].as_py(), int(copy.header_count[0]))
    batch = read_back(headers)
    assert not batch.rejected[0]
    assert batch.header_count[0] == 1, "what it carries for its way is not delivered"
    assert (batch.origin_offset[0], batch.due_ms[0]) == (17 if origin == 17 else 40, due_ms)
    assert (batch.roll_times[0], batch.retries[0]) == (rolls, retries + 1)
    assert batch.not_before_ms[0] == NOW_MS + 900
    assert (batch.targets[batch.target[0]], batch.target_partition[0]) == ("orders", partition)
    kept = b"timers-0@17" if origin == NO_ORIGIN else b""
    assert batch.timer_id[0].as_py() == (timer_id or kept)


def without_keys(count: int) -> Deliveries:
    return replace(rows(["t"] * count, [0] * count), key_hash=np.full(count, NO_KEY, np.int32))


LONGEST_MS = {
    0: 1_000,
    1: 2_000,
    2: 4_000,
    8: 256_000,
    9: 300_000,
    10: 330_000,
    11: 363_000,
    35: 3_575_453,
    36: 3_600_000,
    500: 3_600_000,
    COUNT_MAX: 3_600_000,
}


def test_the_wait_doubles_up_to_five_minutes_and_then_grows_by_tenths_up_to_an_hour() -> None:
    count = 4_000
    for retries, longest_ms in LONGEST_MS.items():
        again = np.full(count, retries, np.int32)
        waits = waits_ms(replace(without_keys(count), retries=again))
        assert 3 * longest_ms // 4 < waits.min() < waits.max() <= longest_ms
        spread = np.histogram(waits, 10, (3 * longest_ms / 4, longest_ms))[0]
        assert spread.min() > count / 20, "they do not come back in one instant"


def test_a_target_that_is_closed_for_long_costs_few_copies_and_delays_by_a_share() -> None:
    """Half a million timers, written again every five minutes, were 30 GB a day."""
    count, day_ms = 1_000, 86_400_000
    waited_ms, copies = np.zeros(count, np.int64), np.zeros(2, np.int64)
    for retries in range(100):
        again = np.full(count, retries, np.int32)
        waits = waits_ms(replace(without_keys(count), retries=again))
        assert (waits <= np.minimum(300_000 + waited_ms * 2 // 15, 3_600_000)).all()
        copies += [np.count_nonzero(waited_ms // day_ms == day) for day in range(2)]
        waited_ms += waits
    assert copies[0] <= 60 * count, "the first day; of five minutes each it would be 340"
    assert copies[1] <= 29 * count


def test_timers_of_one_key_wait_equally_long() -> None:
    keys = [b"a", b"b", b"a", b"c", b"a"]
    waits = waits_ms(keyed(rows(["t"] * 5, [0] * 5), keys)).tolist()
    assert waits[0] == waits[2] == waits[4]
    assert len(set(waits)) > 1


@pytest.mark.parametrize(
    "headers",
    [
        [("TIMER_NOT_BEFORE_MS", b"1"), ("TIMER_RETRIES", b"1")],
        [ORIGIN, ("TIMER_NOT_BEFORE_MS", b"1")],
        [ORIGIN, ("TIMER_RETRIES", b"1")],
        [ORIGIN, ("TIMER_NOT_BEFORE_MS", b"soon"), ("TIMER_RETRIES", b"1")],
        [ORIGIN, ("TIMER_NOT_BEFORE_MS", b"1"), ("TIMER_RETRIES", b"-1")],
        [ORIGIN, ("TIMER_NOT_BEFORE_MS", b"0"), ("TIMER_RETRIES", b"1")],
    ],
)
def test_users_cannot_park(headers: list[tuple[str, bytes]]) -> None:
    batch = read_back([("TIMER_DELAY_MS", b"1"), ("REAL_TOPIC", b"orders"), *headers])
    assert batch.rejected[0]
    assert b"bad_retry" in batch.headers[0].as_py()
    assert (batch.not_before_ms[0], batch.retries[0]) == (ANY_TIME, 0)


@pytest.mark.parametrize(
    ("due_ms", "not_before_ms", "slot_ms"),
    [
        (NOW_MS - 5_000, NOW_MS + 2_000, NOW_MS + 2_000),
        (NOW_MS + 9_000, NOW_MS + 2_000, NOW_MS + 9_000),
        (NOW_MS - 5_000, ANY_TIME, NOW_MS - 5_000),
        (NOW_MS - 5_000, 10**16, NOW_MS + WHEEL.window_ms),
    ],
)
def test_a_slot_is_that_of_the_later_of_due_and_not_before(
    due_ms: int, not_before_ms: int, slot_ms: int
) -> None:
    """Whatever a copy says, it leaves within the window: none that is pending is older."""
    due = [("TIMER_DELIVER_MS", b"%d" % due_ms), ("REAL_TOPIC", b"orders")]
    parking = [("TIMER_NOT_BEFORE_MS", b"%d" % not_before_ms), ("TIMER_RETRIES", b"1")]
    batch = read_back([*due, ORIGIN, *(parking if not_before_ms > 0 else [])])
    slots, rolled = requested_slots(batch, WHEEL.precision_ms, WHEEL.window_ms)
    assert (slots[0] * WHEEL.precision_ms, rolled[0]) == (slot_ms, False)


# ---- who is parked ------------------------------------------------------------------------------


def test_only_what_goes_to_a_partition_without_writes_is_parked() -> None:
    asked = [0, 1, 2, 3, NO_PARTITION, NO_PARTITION, 1]
    names = ["a", "a", "a", "a", "a", "a", "b"]
    by_key = keyed(rows(names, asked), [b"k"] * 4 + [b"4", b"3", b"k"])
    hashes = (by_key.key_hash % 4).tolist()
    assert hashes[4] in (1, 2) and hashes[5] not in (1, 2), "one key on either side"
    found = routed(by_key, {"a": DOWN, "b": ROOM})
    assert found.aside.parked.tolist() == [1, 2, 4]
    assert topics(found) == ["a", "timers", "timers", "a", "timers", "a", "b"], "in their places"
    assert found.deliveries.is_copy.tolist() == [row in (1, 2, 4) for row in range(7)]


def test_what_is_free_to_go_anywhere_goes_where_it_is_taken() -> None:
    free = keyed(rows(["a"] * 6, [NO_PARTITION] * 6), [None] * 6)
    known = {"a": DOWN, "timers": ROOM}
    for seed in range(20):
        found = encode(
            free,
            lambda topics: {topic: known[topic] for topic in topics},
            frozenset(),
            "dead",
            random.Random(seed),
            NOW_MS,
        )
        assert [part.partition in (0, 3) for part in found.parts] == [True]
    assert routed(free, {"a": ALL_DOWN}).aside.parked.tolist() == list(range(6))


def test_rows_are_parked_though_their_timer_partition_takes_no_writes() -> None:
    """Their copies are held until it does."""
    found = routed(rows(["a", "a"], [1, 0]), {"a": DOWN, "timers": ALL_DOWN})
    assert (found.aside.parked.tolist(), topics(found)) == ([0], ["timers", "a"])


def test_dead_letters_and_rolled_copies_are_never_parked() -> None:
    sent = rows(["a", "a"], [1, 1])
    sent = replace(sent, dead_letter=np.array([True, False]), is_copy=np.array([False, True]))
    assert routed(sent, {"a": DOWN}).aside.parked.tolist() == []


def test_what_can_never_be_published_is_not_parked() -> None:
    found = routed(rows(["a", "gone"], [9, 1]), {"a": DOWN, "gone": Target(0, 0, batch_bytes=0)})
    assert (found.aside.parked.tolist(), topics(found)) == ([], ["dead", "dead"])


def test_a_copy_that_its_timer_topic_does_not_take_becomes_a_dead_letter() -> None:
    sent = keyed(rows(["a"] * 3, [1, 1, 0]), [b"k", b"k" * 450, b"k" * 450])
    small = Target(1, 600, batch_bytes=600)
    found = routed(sent, {"a": DOWN, "timers": small})
    assert (found.aside.parked.tolist(), topics(found)) == ([0], ["timers", "dead", "a"])
    assert found.aside.reasons == {"target_unavailable": 1}
    kept = found.deliveries.headers[1].as_py()
    assert b"TIMER_ERROR_CODE" in kept and b"REAL_TOPIC" in kept and b"REAL_QID" in kept
    assert b"TIMER_ORIGIN" not in kept, "a replay goes to the real topic"


def test_no_copy_is_larger_than_one_that_can_be_held() -> None:
    """Whatever its timer topic takes. While that takes no writes, each transaction would fail."""
    large = Target(4, 4 * COPY_BYTES_MAX)
    sent = keyed(rows(["a"], [1]), [bytes(COPY_BYTES_MAX + 100)])
    closed = Target(4, 4 * COPY_BYTES_MAX, unavailable=frozenset({1}))
    found = routed(sent, {"a": closed, "timers": large, "dead": large})
    assert (topics(found), found.aside.reasons) == (["dead"], {"target_unavailable": 1})
    rolled = replace(sent, targets=["timers"], is_copy=np.array([True]))
    found = routed(rolled, {"timers": closed, "dead": large})
    assert (topics(found), found.aside.reasons) == (["dead"], {"record_too_large": 1})
    found = routed(sent, {"a": large, "timers": large})
    assert topics(found) == ["a"], "it leaves as it is where it needs no copy"
    found = routed(sent, {"a": GONE, "dead": GONE, "timers": large})
    assert topics(found) == ["timers"]
    assert len(found.deliveries.key_value[0].as_py()) < 100, "a pointer to the original"


# ---- dead letters whose topic takes nothing ------------------------------------------------------

GONE = Target(0, 1_000, refusal=Reason.UNKNOWN_TARGET_TOPIC, batch_bytes=1_000)


def condemned_rows() -> Deliveries:
    """A good timer, one whose topic is missing, and one that ingest has rejected."""
    sent = keyed(rows(["a", "gone", "dead"], [0, 1, NO_PARTITION]), [b"k", b"k", b"k"])
    return replace(
        sent,
        dead_letter=np.array([False, False, True]),
        headers=binary([b"", b"\x06own\x02x", b"\x06odd\x02y"]),
        header_count=np.array([0, 1, 1], np.int32),
    )


COMPACTED = Target(4, 1_000, key_required=True, batch_bytes=1_000)


@pytest.mark.parametrize("dead", [GONE, ALL_DOWN, COMPACTED])
def test_dead_letters_wait_while_their_topic_takes_nothing(dead: Target) -> None:
    found = routed(condemned_rows(), {"a": ROOM, "gone": GONE, "dead": dead})
    assert topics(found) == ["a", "timers", "timers"], "in their places"
    assert (found.aside.letters.tolist(), found.aside.reasons) == ([1, 2], {})
    at_once = routed(condemned_rows(), {"a": ROOM, "gone": GONE})
    assert topics(at_once) == ["a", "dead", "dead"]
    for row in (1, 2):
        headers = decoded(
            found.deliveries.headers[row].as_py(), int(found.deliveries.header_count[row])
        )
        assert headers[-1] == ("TIMER_DEAD_LETTER", b"")
        batch = read_back(headers)
        assert (batch.rejected[0], batch.retries[0]) == (True, 1)
        assert NOW_MS + 750 <= batch.not_before_ms[0] <= NOW_MS + 1_000
        slot_ms = requested_slots(batch, 1, WHEEL.window_ms)[0][0]
        assert slot_ms == batch.not_before_ms[0], "it waits in the wheel"
        # `read_back` puts an own header before them.
        own = [("own", b"1")]
        kept = decoded(batch.headers[0].as_py(), int(batch.header_count[0]))
        its = decoded(
            at_once.deliveries.headers[row].as_py(), int(at_once.deliveries.header_count[row])
        )
        assert kept == own + its, "the same dead letter as if it had never waited"
        assert batch.rejections() == {"waited": 1}, "counted at first"


def test_a_dead_letter_that_its_timer_topic_does_not_take_waits_without_its_content() -> None:
    large = keyed(rows(["gone"], [0]), [b"k" * 900])
    found = routed(large, {"gone": GONE, "dead": GONE, "timers": Target(1, 700, batch_bytes=700)})
    assert (topics(found), found.aside.letters.tolist()) == (["timers"], [0])
    said = found.deliveries.headers[0].as_py()
    assert b"record_too_large" in said and b"TIMER_DEAD_LETTER" in said


def test_a_dead_letter_without_any_place_stays_where_it_is() -> None:
    with pytest.raises(PublishDoubt, match="do not exist either"):
        routed(condemned_rows(), {"a": ROOM, "gone": GONE, "dead": GONE, "timers": GONE})


def test_dead_letters_go_to_any_partition_that_takes_writes() -> None:
    letters = keyed(rows(["dead"] * 40, [NO_PARTITION] * 40), [b"%d" % n for n in range(40)])
    letters = replace(letters, dead_letter=np.ones(40, np.bool_))
    known = {"dead": DOWN}
    found = encode(
        letters,
        lambda topics: {topic: known[topic] for topic in topics},
        frozenset(),
        "dead",
        random.Random(1),
        NOW_MS,
    )
    assert {part.partition for part in found.parts} <= {0, 3}
    assert sum(part.batch.count for part in found.parts) == 40


def test_rejected_rows_go_to_the_dead_letter_topic_of_today() -> None:
    letters = replace(rows(["old", "a"], [-1, 0]), dead_letter=np.array([True, False]))
    found = routed(letters, {"old": GONE, "a": ROOM})
    assert topics(found) == ["dead", "a"]


def test_what_ends_otherwise_is_no_waiting_letter() -> None:
    """Only those four headers, in that order, and nothing behind them."""
    end = [
        ORIGIN,
        ("TIMER_NOT_BEFORE_MS", b"5"),
        ("TIMER_RETRIES", b"1"),
        ("TIMER_DEAD_LETTER", b""),
    ]
    due = [("TIMER_DELAY_MS", b"1"), ("REAL_TOPIC", b"orders")]
    assert read_back([*due, *end]).rejected[0]
    for other in ([*end, ("x", b"")], end[1:], end[::-1], end[3:]):
        assert not read_back([*due, *other]).rejected[0] or other == end[1:]


def test_the_statistics_count_dead_letters_by_reason() -> None:
    sent = condemned_rows()
    aside = Aside(
        dead_lettered=np.array([1]), codes=["none", "unknown_target_topic"], code=np.array([1])
    )
    known = Statistics().after_commit(sent, aside, NOW_MS, 5)
    assert known.dead_letters == {"unknown_target_topic": 1, "rejected": 1}
    assert (known.delivered, known.letters_kept) == (1, 0)
    known = known.after_commit(sent, Aside(letters=np.array([1, 2])), NOW_MS, 5)
    assert (known.delivered, known.letters_kept) == (2, 2)
    again = replace(sent, retries=np.array([0, 0, 3], np.int32))
    known = known.after_commit(again, aside, NOW_MS, 5)
    assert known.dead_letters == {"unknown_target_topic": 2, "rejected": 1, "waited": 1}
    assert sum(known.lateness.counts) == 3, "of deliveries only"


def test_the_statistics_count_dead_letters_by_timer_topic() -> None:
    """Else one writer that never stops hides the faults of all others."""
    here = [("late", 0), ("own", 0), ("late", 1)]
    sent = replace(
        rows(["a"] * 5, [0] * 5),
        dead_letter=np.array([True, False, True, False, False]),
        retries=np.array([0, 0, 2, 0, 0], np.int32),
        source_partitions=here,
        source_partition=np.array([0, 1, 2, 2, 0], np.int32),
    )
    both = ["expired", "rate"]
    aside = Aside(dead_lettered=np.array([1, 3]), codes=both, code=np.array([1, 0]))
    known = Statistics().after_commit(sent, aside, NOW_MS, 5).after_commit(sent, aside, NOW_MS, 5)
    assert known.letters_by_topic == {
        "late": {"rejected": 2, "waited": 2, "expired": 2},
        "own": {"rate": 2},
    }
    assert known.dead_letters == {"rejected": 2, "waited": 2, "expired": 2, "rate": 2}
    quiet = replace(sent, dead_letter=np.zeros(5, np.bool_))
    assert known.after_commit(quiet, Aside(), NOW_MS, 5).letters_by_topic is known.letters_by_topic


def test_dead_letters_of_no_more_than_so_many_timer_topics_have_a_name() -> None:
    many = [(f"t{number}", 0) for number in range(TOPICS_MAX + 5)]
    sent = replace(
        rows(["a"] * len(many), [0] * len(many)),
        dead_letter=np.ones(len(many), np.bool_),
        source_partitions=many,
        source_partition=np.arange(len(many), dtype=np.int32),
    )
    known = Statistics().after_commit(sent, Aside(), NOW_MS, 5)
    assert len(known.letters_by_topic) == TOPICS_MAX + 1
    assert known.letters_by_topic["other"] == {"rejected": 5}


def test_the_statistics_count_them_by_topic_and_not_as_deliveries() -> None:
    sent = replace(rows(["a", "b", "a", "a"], [0] * 4), due_ms=np.full(4, NOW_MS - 100))
    known = Statistics().after_commit(sent, Aside(np.array([0, 1])), NOW_MS, 5)
    known = known.after_commit(sent, Aside(np.array([2])), NOW_MS, 5)
    assert (known.delivered, known.parked) == (5, {"a": 2, "b": 1})
    assert sum(known.lateness.counts) == 5


def test_names_that_are_not_looked_up_yet_take_no_place_among_parked_targets() -> None:
    """A producer invents as many as it likes. The first names would be kept until the restart."""
    invented = [f"none.{number}" for number in range(TOPICS_MAX)]
    known = Statistics()
    for names in (invented, ["a", *invented]):
        sent = rows(names, [1] * len(names))
        aside = routed(sent, {"a": DOWN} | dict.fromkeys(invented, UNRESOLVED)).aside
        known = known.after_commit(sent, aside, NOW_MS, 5)
    assert (known.parked, known.unresolved) == ({"a": 1}, 2 * TOPICS_MAX)
    assert (known.delivered, known.postponed, known.dead_letters) == (0, {}, {})


def test_due_times_that_are_long_past_are_late_in_their_timer_topic_alone() -> None:
    """A producer chooses its due times: one shard's lateness told of a fault to all others."""
    sent = replace(
        rows(["a", "b", "a", "b"], [0, 0, 1, 1]),
        due_ms=np.array([1, NOW_MS - 100, 1, NOW_MS - 30]),
        source_partitions=[("punctual", 0), ("past", 0), ("punctual", 1)],
        source_partition=np.array([1, 2, 1, 0], np.int32),
    )
    known = Statistics().after_commit(sent, Aside(), NOW_MS, 5)
    assert known.lateness.by_topic["punctual"] == Histogram().with_values(np.array([100, 30]))
    assert known.lateness.by_topic["past"].counts[-1] == 2
    assert sum(known.lateness.counts) == 4


def test_the_log_has_the_counts_once_a_minute() -> None:
    clock = ManualClock()
    counts = CountsLog(clock)
    with structlog.testing.capture_logs() as lines:
        for number in range(1, 100):
            counts.log_changes(replace(Statistics(), dead_letters={"expired": number}))
            clock.sleep(1)
        counts.log_changes(replace(Statistics(), dead_letters={"expired": 99}))
    assert [line["timers"]["expired"] for line in lines] == [1, 61]


# ---- how it is known ----------------------------------------------------------------------------


def test_verdicts_last_longer_each_time_and_end_with_a_success() -> None:
    clock = ManualClock()
    failures = UnavailablePartitions(now_s=lambda: clock.boottime_ms() / 1000)
    target = Target(4, 1_000)
    lasted: list[float] = []
    for _ in range(6):
        failures.note_failures([(("a", 2), "no answer")])
        clock.sleep(300)
        assert failures.with_failures("a", target).unavailable == {2}, "others have not left yet"
        failures.note_success([])
        begun_ms = clock.boottime_ms()
        while failures.with_failures("a", target).unavailable:
            assert failures.with_failures("a", target).unavailable == {2}
            assert failures.with_failures("b", target) == target
            clock.sleep(1)
        lasted.append((clock.boottime_ms() - begun_ms) / 1000)
    assert lasted == [5, 10, 20, 40, 60, 60]
    failures.note_success([("a", 2)])
    failures.note_failures([(("a", 2), "no answer")])
    failures.note_success([("b", 0)])
    clock.sleep(5)
    assert failures.with_failures("a", target) == target


def test_a_timer_topic_with_foreign_records_takes_no_copies_for_nine_times_their_cost() -> None:
    """In all its partitions, and after each abort anew, also if it has taken copies meanwhile."""
    clock = ManualClock()
    failures = UnavailablePartitions(now_s=lambda: clock.boottime_ms() / 1000)
    target, of, cost_s, seconds = Target(12, 1_000), frozenset("a"), 0, 1_000
    for _ in range(seconds):
        if not failures.with_failures("a", target).unavailable:
            failures.note_success([("a", 3)])
            clock.sleep(1)
            failures.note_failures([(("a", 2), "OutOfOrderSequenceNumberError")])
            failures.throttle_copies(of, 1)
            assert failures.with_failures("a", target).unavailable == frozenset(range(12))
            assert failures.with_failures("b", target) == target
            clock.sleep(1)
            failures.note_success([("b", 0)])
            cost_s += 2
        else:
            clock.sleep(1)
        failures.note_success([("b", 0)])
    assert cost_s <= clock.boottime_ms() / 1000 / 10 + 2


def test_a_name_that_is_not_looked_up_yet_has_no_failed_partitions() -> None:
    """Its rows wait anyhow, and a list of its other partitions would have 2³¹ of them."""
    failures = UnavailablePartitions()
    failures.note_failures([(("a", 2), "no answer")])
    assert failures.with_failures("a", UNRESOLVED).unavailable == frozenset()


def test_a_failure_is_that_of_its_topic() -> None:
    failures, target = UnavailablePartitions(), Target(4, 1_000)
    failures.note_failures([((topic, 2), "no answer") for topic in ("a", "b")])
    failures.note_success([("b", 2), ("c", 1)])
    for topic, down in (("a", {2}), ("b", set()), ("c", set())):
        assert failures.with_failures(topic, target).unavailable == down
        failures.on_metadata({topic: target})


def test_each_change_is_logged_once() -> None:
    failures = UnavailablePartitions()

    def look(*unavailable: int) -> list[dict[str, Any]]:
        with structlog.testing.capture_logs() as lines:
            for _ in range(3):
                target = Target(4, 1_000, unavailable=frozenset(unavailable))
                failures.on_metadata({"a": failures.with_failures("a", target)})
        return [dict(line) for line in lines]

    assert look() == []
    assert [line["partitions"] for line in look(1, 3)] == [[1, 3]]
    assert [(line["log_level"], line["partitions"]) for line in look(1)] == [("info", [3])]
    with structlog.testing.capture_logs() as lines:
        failures.note_failures([(("a", 0), "no answer")])
        failures.note_failures([(("a", 0), "no answer")])
    assert [line["partitions"] for line in lines] == [[0]]
    assert look(1) == [], "a partition that failed takes writes only once it has taken some"
    with structlog.testing.capture_logs() as lines:
        failures.note_success([("a", 0), ("a", 2)])
    assert [line["partitions"] for line in lines] == [[0]]


def test_the_log_and_the_notes_of_an_answer_are_bounded() -> None:
    """A team that closes its 1,000 topics of 1,000 partitions holds up no delivery."""
    notes: list[Mapping[str, str]] = []
    failures = UnavailablePartitions(on_change=notes.append)
    closed = Target(1_000, 1_000, unavailable=frozenset(range(1_000)))
    with structlog.testing.capture_logs() as lines:
        failures.on_metadata({f"t{number}": closed for number in range(1_000)})
    assert len(lines) == 21
    assert lines[-1]["changes"] == 980
    assert [len(note) for note in notes] == [100], "written once"
    assert max(map(len, notes[0].values())) < 200


def test_partitions_that_fail_together_are_logged_and_noted_once() -> None:
    """A broker that dies under a transaction may be the leader of 2,000 of its partitions."""
    notes: list[Mapping[str, str]] = []
    clock = ManualClock()
    failures = UnavailablePartitions(
        now_s=lambda: clock.boottime_ms() / 1000, on_change=notes.append
    )
    places = [(f"t{number % 40}", number // 40) for number in range(2_000)]
    target = Target(50, 1_000)
    with structlog.testing.capture_logs() as lines:
        failures.note_failures((place, "no answer") for place in places)
    assert (len(lines), lines[-1]["changes"], len(notes)) == (21, 20, 1)
    assert lines[0]["partitions"] == list(range(50))
    failures.note_success([])
    clock.sleep(4)
    assert {len(failures.with_failures(f"t{n}", target).unavailable) for n in range(40)} == {50}
    clock.sleep(1)
    assert {len(failures.with_failures(f"t{n}", target).unavailable) for n in range(40)} == {0}
    with structlog.testing.capture_logs() as lines:
        failures.note_success(places)
    assert (len(lines), len(notes)) == (21, 2)
    assert notes[-1] == {}


def test_a_partition_with_two_failed_batches_has_failed_twice() -> None:
    clock = ManualClock()
    failures = UnavailablePartitions(now_s=lambda: clock.boottime_ms() / 1000)
    failures.note_failures([(("a", 2), "no answer"), (("a", 1), "refused"), (("a", 2), "refused")])
    failures.note_success([])
    for seconds, down in ((4, {1, 2}), (5, {2}), (1, set())):
        clock.sleep(seconds)
        assert failures.with_failures("a", Target(4, 1_000)).unavailable == down
