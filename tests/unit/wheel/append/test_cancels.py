"""Cancels and reschedules: the timers that they stop, and their replies."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.harness.cancel_world import REPLIES, CancelWorld, cancel, timer
from tests.harness.local_world import NOW_MS, PRECISION_MS
from tests.harness.timer_rows import P0, P1, TIMER_TOPIC, TimerRow, timer_batch

from duewheel.checkpoints.cancel_bounds import CancelBounds
from duewheel.checkpoints.process_role import Role
from duewheel.checkpoints.progress import NOBODY
from duewheel.errors import TransactionTooSlow
from duewheel.schemas import header_names as names
from duewheel.schemas.header_names import CHASE_FLAG_FOUND
from duewheel.schemas.wire.record_codec import added_headers, framed_bytes
from duewheel.wheel.dequeue import open_cancels
from duewheel.wheel.dequeue.cancel_reply_rows import REPEATED_BYTES_MAX, REPEATED_MAX, repeated
from duewheel.wheel.publisher_protocol import PublishAttempt
from duewheel.wheel.storage.data_directory import DataDirectory
from duewheel.wheel.storage.full_check import check

OTHER = "others", 0
MakeWorld = Callable[..., CancelWorld]


@pytest.fixture
def make_world(tmp_path: Path) -> MakeWorld:
    return lambda **settings: CancelWorld(tmp_path / "data", **settings)


def test_a_cancelled_timer_does_not_leave_and_its_cancel_is_replied_to(
    make_world: MakeWorld,
) -> None:
    world = make_world()
    world.append(timer(0, 5), timer(1, 5, partition=1))
    world.append(cancel(1))
    world.at_slot(1)
    assert world.answers() == [("timers-0@1", "cancelled")]
    world.at_slot(9)
    assert world.sources() == ["timers-1@1"]
    world.clock.sleep(10)
    world.drain()
    assert world.answered() == 2
    assert check(world.path, world.wheel).ok


def test_a_timer_and_its_cancel_in_one_batch(make_world: MakeWorld) -> None:
    world = make_world()
    world.append(timer(0, 5), cancel(1))
    world.at_slot(9)
    assert (world.sources(), world.answers()) == ([], [("timers-0@1", "cancelled")])


def test_the_last_instant_before_its_slot_is_closed(make_world: MakeWorld) -> None:
    world = make_world()
    world.append(timer(0, 5))
    world.at_slot(4)
    world.clock.set(NOW_MS + 5 * PRECISION_MS)
    world.append(cancel(1))
    world.drain()
    assert (world.sources(), world.answers()) == ([], [("timers-0@1", "cancelled")])


def test_a_cancel_that_comes_behind_the_closing_is_too_late(make_world: MakeWorld) -> None:
    world = make_world(chunk_records=1)
    world.append(TimerRow(0, 0, NOW_MS + 50, timer_id=b"b"), timer(1, 5))
    world.clock.set(NOW_MS + 50)
    assert world.shard.dequeue is not None
    assert world.shard.dequeue.tick()
    world.append(cancel(2))
    world.at_slot(9)
    assert world.sources() == ["timers-0@0", "timers-0@1"]
    (chase,) = world.chases()
    world.append(replace(chase, offset=3))
    world.at_slot(10)
    assert world.answers() == [("timers-0@2", "already_delivered")]


def test_a_cancel_that_comes_between_lookup_and_lock_sees_what_was_closed(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The floor counts that is read under the lock: dequeue may have closed the slot meanwhile."""
    world = make_world()
    world.append(timer(0, 5))
    locked = DataDirectory.locked
    times = iter([False, True])

    def closing_before(directory: DataDirectory) -> Any:
        if next(times, False):
            world.at_slot(9)
        return locked(directory)

    ingest = world.shard.directory(Role.INGEST)
    monkeypatch.setattr(ingest, "locked", lambda: closing_before(ingest))
    world.append(cancel(1))
    assert world.sources() == ["timers-0@0"]
    world.at_slot(12)
    assert (world.answers(), len(world.chases())) == ([], 1)


def test_a_copy_that_lies_before_the_cancel_is_cancelled(make_world: MakeWorld) -> None:
    world = make_world()
    world.append(replace(timer(0, 200), timestamp_ms=NOW_MS))
    world.at_slot(64)
    assert world.sources() == ["timers-0@0"], "it has been rolled"
    copy = replace(timer(1, 200, origin=0), timestamp_ms=world.clock.now_ms())
    world.append(copy, cancel(2))
    world.at_slot(300)
    assert world.answers() == [("timers-0@2", "cancelled")]
    assert world.sources() == ["timers-0@0"]


def test_a_copy_that_lies_behind_the_cancel_is_cancelled_by_the_chase(
    make_world: MakeWorld,
) -> None:
    world = make_world()
    world.append(replace(timer(0, 200), timestamp_ms=NOW_MS))
    world.at_slot(64)
    # Written in this order: the cancel, then the copy in a transaction that began before.
    world.append(cancel(1))
    world.at_slot(66)
    (chase,) = world.chases()
    assert (world.answers(), chase.origin, chase.chase_flags) == ([], 1, 0)
    assert chase.chase_slot == world.publisher.committed[-1][1].delivered_slot
    copy = replace(timer(2, 200, origin=0), timestamp_ms=world.clock.now_ms())
    world.append(copy, replace(chase, offset=3))
    world.at_slot(68)
    assert world.answers() == [("timers-0@1", "cancelled")]
    world.at_slot(300)
    assert world.sources() == ["timers-0@0"]


def test_of_two_timers_of_an_id_one_may_be_in_flight(make_world: MakeWorld) -> None:
    """What was cancelled at once is not replied before the other one is decided, too."""
    world = make_world()
    world.append(replace(timer(0, 200), timestamp_ms=NOW_MS))
    world.at_slot(64)
    world.append(timer(1, 100), cancel(2))
    world.at_slot(66)
    (chase,) = world.chases()
    assert (world.answers(), chase.chase_flags) == ([], CHASE_FLAG_FOUND)
    copy = replace(timer(3, 200, origin=0), timestamp_ms=world.clock.now_ms())
    world.append(replace(chase, offset=4), replace(copy, partition=1, timer_id=b"z"))
    world.append(replace(copy, offset=5))
    world.at_slot(68)
    assert world.answers() == [("timers-0@2", "cancelled")]
    world.at_slot(300)
    assert "timers-0@1" not in world.sources()


def test_what_was_delivered_is_replied_after_one_chase(make_world: MakeWorld) -> None:
    world = make_world()
    world.append(timer(0, 5))
    world.at_slot(9)
    world.append(cancel(1))
    world.at_slot(10)
    (chase,) = world.chases()
    world.append(replace(chase, offset=2))
    world.at_slot(11)
    assert world.answers() == [("timers-0@1", "already_delivered")]
    world.restart(Role.DEQUEUE, Role.INGEST)
    world.append(cancel(3))
    world.at_slot(12)
    world.append(replace(world.chases()[1], offset=4))
    world.at_slot(13)
    assert world.answers()[1:] == [("timers-0@3", "already_delivered")], "also after a kill"


def test_a_chase_leaves_behind_the_copies_of_a_transaction_that_was_too_slow(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before them it would miss the copy of a recurring timer that is late, at each slot."""
    world = make_world()
    world.append(timer(0, 5))
    world.at_slot(9)
    world.append(cancel(1), *(replace(timer(n, 10), timer_id=b"%d" % n) for n in range(2, 6)))
    publish = world.publisher.publish

    def slow(attempt: PublishAttempt) -> int | None:
        if attempt.prepared is not None and len(attempt.prepared.deliveries) > 1:
            raise TransactionTooSlow("ran out of time")
        return publish(attempt)

    monkeypatch.setattr(world.publisher, "publish", slow)
    world.at_slot(12)
    committed = [rows for rows, _ in world.publisher.committed if rows is not None and len(rows)]
    left = [rows.source.to_pylist() for rows in committed]
    assert left == [[b"timers-0@%d" % n] for n in (0, 2, 1, 3, 4, 5)]


def test_what_was_cancelled_is_cancelled_when_asked_again(make_world: MakeWorld) -> None:
    world = make_world()
    world.append(timer(0, 5), cancel(1))
    world.at_slot(9)
    world.append(cancel(2))
    world.at_slot(10)
    assert world.answers() == [("timers-0@1", "cancelled"), ("timers-0@2", "cancelled")]
    assert world.sources() == []


def test_a_replaced_timer_is_not_pending(make_world: MakeWorld) -> None:
    """Its record stays in the wheel until its slot: it is no timer that could be cancelled."""
    world = make_world()
    world.append(timer(0, 60))
    world.at_slot(1)
    world.append(timer(1, 5, request="reschedule"))
    world.at_slot(9)
    assert world.sources() == ["timers-0@1"]
    world.append(cancel(2))
    world.at_slot(10)
    world.append(replace(world.chases()[0], offset=3))
    world.at_slot(11)
    assert world.answers() == [("timers-0@1", "cancelled"), ("timers-0@2", "already_delivered")]


def test_a_cancel_in_another_partition_is_for_nothing(make_world: MakeWorld) -> None:
    world = make_world()
    world.append(timer(0, 5), cancel(3, partition=1))
    world.at_slot(9)
    assert (world.sources(), world.answers()) == (["timers-0@0"], [("timers-1@3", "unknown")])


def test_ids_with_the_same_hash_are_told_apart(make_world: MakeWorld) -> None:
    world = make_world()
    rows = [timer(0, 5), replace(timer(1, 5), timer_id=b"b"), cancel(2), cancel(3, timer_id=b"c")]
    batch = timer_batch(rows)
    world.engine.append(replace(batch, id_hash=np.full(4, 77)), {P0: 4})
    world.at_slot(9)
    assert world.sources() == ["timers-0@1"]
    assert world.answers() == [("timers-0@2", "cancelled"), ("timers-0@3", "unknown")]


def test_the_default_id_is_an_id(make_world: MakeWorld) -> None:
    world = make_world()
    world.append(replace(timer(0, 5), timer_id=b""), cancel(1, timer_id=b"timers-0@0"))
    world.append(replace(timer(2, 6), timer_id=b""))
    world.append(cancel(3, timer_id=b"timers-0@2"))
    world.at_slot(9)
    assert world.sources() == []
    assert world.answers() == [("timers-0@1", "cancelled"), ("timers-0@3", "cancelled")]


def test_the_same_id_again_afterwards(make_world: MakeWorld) -> None:
    world = make_world()
    world.append(timer(0, 5), cancel(1), timer(2, 5))
    world.at_slot(9)
    assert (world.sources(), world.answers()) == (["timers-0@2"], [("timers-0@1", "cancelled")])


def test_a_reschedule_replaces_what_was_before_it(make_world: MakeWorld) -> None:
    world = make_world()
    world.append(timer(0, 5), timer(1, 9, request="reschedule"))
    world.at_slot(20)
    assert world.sources() == ["timers-0@1"]
    assert world.values() == [
        {
            names.ANSWER_NAME: "cancelled",
            names.ANSWER_ID: "a",
            names.ANSWER_SOURCE: "timers-0@1",
            names.ANSWER_REQUEST: "reschedule",
        }
    ]


def test_a_chase_of_a_reschedule_is_replied_as_one(make_world: MakeWorld) -> None:
    world = make_world()
    world.append(timer(0, 5))
    world.at_slot(9)
    world.append(timer(1, 60, request="reschedule"))
    world.at_slot(10)
    world.append(replace(world.chases()[0], offset=2))
    world.at_slot(11)
    (value,) = world.values()
    assert value[names.ANSWER_NAME] == "already_delivered"
    assert (value[names.ANSWER_SOURCE], value[names.ANSWER_REQUEST]) == ("timers-0@1", "reschedule")
    world.at_slot(70)
    assert world.sources() == ["timers-0@0", "timers-0@1"], "the chase is not for the new timer"


def test_of_an_id_that_is_rescheduled_over_and_over_the_last_one_leaves(
    make_world: MakeWorld,
) -> None:
    world = make_world()
    rows = [timer(0, 50), *(timer(n, 50 + n % 3, request="reschedule") for n in range(1, 20))]
    for start in (0, 1, 5, 15):
        stop = {0: 1, 1: 5, 5: 15, 15: 20}[start]
        world.append(*rows[start:stop])
        world.at_slot(start + 1)
    world.at_slot(60)
    assert [word for _, word in world.answers()] == ["cancelled"] * 19
    assert world.sources() == ["timers-0@19"]


def test_what_was_rejected_is_no_timer(make_world: MakeWorld) -> None:
    world = make_world()
    world.append(timer(0, 5, rejected=True), cancel(1))
    world.append(cancel(2))
    world.at_slot(9)
    assert world.sources() == ["timers-0@0"]
    assert world.answers() == [("timers-0@1", "unknown"), ("timers-0@2", "unknown")]


def test_a_reply_carries_key_and_headers_of_its_request(make_world: MakeWorld) -> None:
    world = make_world()
    world.append(timer(0, 5), cancel(2))  # a key and two headers
    world.at_slot(1)
    (replies,) = [d for d, _ in world.publisher.committed if d is not None]
    assert replies.targets[replies.target[0]] == REPLIES
    assert replies.key_value[0].as_py().startswith(framed_bytes(b"key"))
    own = (framed_bytes(b"h") + framed_bytes(b"\xff\0")) * 2
    added = [(names.ANSWER, b"cancelled"), (names.TIMER_ID, b"a")]
    encoded = b"".join(framed_bytes(n.encode()) + framed_bytes(v) for n, v in added)
    assert replies.headers[0].as_py() == own + encoded
    (record,) = added_headers(replies)[0].to_pylist()
    assert record == framed_bytes(names.SOURCE.encode()) + framed_bytes(b"timers-0@2")


def test_a_reply_repeats_no_header_that_would_stop_its_readers() -> None:
    def framed(*headers: tuple[bytes, bytes | None]) -> bytes:
        return b"".join(
            framed_bytes(n) + (b"\x01" if v is None else framed_bytes(v)) for n, v in headers
        )

    kept = [(b"correlation-id", b"7"), ("größe".encode(), None), (b"", b"\xff")]
    odd, large = (b"\xff\xfe", b"x"), (b"large", bytes(REPEATED_BYTES_MAX))
    given = [kept[0], odd, *kept[1:], large, (b"behind", b"")]
    assert repeated(framed(*given), len(given)) == (framed(*kept), 3)
    many = framed((b"", None)) * 8_000
    assert repeated(many, 8_000) == (many[: 2 * REPEATED_MAX], REPEATED_MAX)


def test_a_chase_carries_key_and_headers_of_its_request(make_world: MakeWorld) -> None:
    world = make_world()
    world.append(timer(0, 5))
    world.at_slot(9)
    world.append(cancel(2))
    world.at_slot(10)
    chases = [d for d, _ in world.publisher.committed if d is not None][-1]
    assert chases.targets[chases.target[0]] == TIMER_TOPIC
    assert chases.key_value[0].as_py() == framed_bytes(b"key") + b"\x01", "no value"
    own = (framed_bytes(b"h") + framed_bytes(b"\xff\0")) * 2
    assert chases.headers[0].as_py().startswith(own)
    assert added_headers(chases)[0].to_pylist() == [b""]


@pytest.mark.parametrize("fate", ["lose", "doubt"])
def test_a_reply_in_doubt_is_given_once(make_world: MakeWorld, fate: str) -> None:
    world = make_world()
    world.append(timer(0, 5), cancel(1))
    fates = iter([fate])
    world.publisher.fate = lambda: next(fates, "commit")
    world.at_slot(9)
    assert world.answers() == [("timers-0@1", "cancelled")]


def test_each_of_many_is_replied_to_once_in_order_over_kills(make_world: MakeWorld) -> None:
    world = make_world(chunk_records=3)
    order: list[str] = []
    for start in range(0, 60, 3):
        offset, slot = start, start // 3 + 1
        world.append(timer(offset, slot + 4), cancel(offset + 1), timer(offset + 2, slot + 9))
        order.append(f"timers-0@{offset + 1}")
        world.at_slot(slot)
        if start % 9 == 0:
            world.restart(*((Role.DEQUEUE,), (Role.INGEST,), tuple(Role))[start // 9 % 3])
    world.at_slot(99)
    assert [source for source, _ in world.answers()] == order
    assert {word for _, word in world.answers()} == {"cancelled"}
    assert world.answered() == 60


def test_one_topic_with_many_cancels_delays_no_reply_of_another(
    make_world: MakeWorld,
) -> None:
    """Each topic has its turn, and those that have little leave the rest to the others."""
    world = make_world(chunk_replies=10)
    other = replace(timer_batch([cancel(n, timer_id=b"b") for n in range(3)]), partitions=[OTHER])
    world.append(*(cancel(offset) for offset in range(100)))
    world.engine.append(other, {OTHER: 3})
    world.at_slot(3)
    sources = [source for source, _ in world.answers()]
    assert sorted(sources[:10]) == sorted(
        [*(f"timers-0@{n}" for n in range(7)), *(f"others-0@{n}" for n in range(3))]
    )
    assert sources[10:] == [f"timers-0@{n}" for n in range(7, 100)]


def test_a_backlog_of_cancels_is_queued_little_by_little(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One topic's delay another's by the time to look through them."""
    monkeypatch.setattr(open_cancels, "_RECORDS_AT_ONCE", 30)
    world = make_world(chunk_replies=10)
    other = replace(timer_batch([cancel(0, timer_id=b"b")]), partitions=[OTHER])
    world.append(*(cancel(offset) for offset in range(100)))
    world.engine.append(other, {OTHER: 1})
    world.at_slot(3)
    sources = [source for source, _ in world.answers()]
    assert sources.index("others-0@0") < 40
    assert [s for s in sources if s.startswith("timers")] == [f"timers-0@{n}" for n in range(100)]


def test_no_cancel_is_passed_over_where_the_bytes_of_a_transaction_end(
    make_world: MakeWorld,
) -> None:
    world = make_world(chunk_bytes=250)
    other = replace(timer_batch([cancel(0, timer_id=b"b")]), partitions=[OTHER])
    for first in range(0, 30, 3):
        world.append(*(cancel(first + n, timer_id=b"id" * 4 * n) for n in range(3)))
        world.engine.append(replace(other, offset=other.offset + first), {OTHER: first + 1})
    world.at_slot(3)
    sources = [source for source, _ in world.answers()]
    assert [s for s in sources if s.startswith("timers")] == [f"timers-0@{n}" for n in range(30)]
    assert len(sources) == 40


def test_without_a_reply_topic_cancels_act_in_silence(make_world: MakeWorld) -> None:
    world = make_world(reply_topic=None)
    world.append(timer(0, 5), cancel(1), replace(timer(2, 5), timer_id=b"b"))
    world.at_slot(9)
    assert (world.sources(), world.answers()) == (["timers-0@2"], [])
    world.append(cancel(3, timer_id=b"b"))
    world.at_slot(12)
    assert len(world.chases()) == 1, "a copy may be in flight"
    world.clock.sleep(10)
    world.drain()
    assert world.answered() == 4


def test_a_lost_directory_reads_its_cancels_again(make_world: MakeWorld, tmp_path: Path) -> None:
    world = make_world()
    rows = [timer(0, 50), cancel(1), timer(2, 51), timer(3, 3)]
    world.append(*rows)
    world.at_slot(4)
    assert world.answers() == [("timers-0@1", "cancelled")]
    world.lose_files(tmp_path / "other", {P0: 0, P1: 0})
    assert world.engine.marks[P0] == 0
    world.shard.append(rows, {P0: 4})
    world.at_slot(60)
    assert world.sources() == ["timers-0@3", "timers-0@2"]
    assert (world.answers(), world.chases()) == ([("timers-0@1", "cancelled")], [])


def test_a_cancel_without_a_reply_is_read_again_from_there(
    make_world: MakeWorld, tmp_path: Path
) -> None:
    world = make_world(chunk_bytes=1)
    rows = [cancel(0, timer_id=b"b"), cancel(1), timer(2, 51), timer(3, 3)]
    world.append(*rows[:1])
    world.clock.set(NOW_MS + PRECISION_MS)
    assert world.shard.dequeue is not None
    assert world.shard.dequeue.tick()
    world.append(*rows[1:])
    world.clock.set(NOW_MS + 4 * PRECISION_MS)
    world.shard.dequeue.tick()
    assert world.answered() < 3
    world.lose_files(tmp_path / "other", {P0: 4, P1: 0})
    first = world.engine.marks[P0]
    assert first < 3
    world.shard.append(rows[first:], {P0: 4})
    world.at_slot(9)
    chases = world.chases()
    world.append(*(replace(chase, offset=4 + n) for n, chase in enumerate(chases)))
    world.at_slot(10)
    assert sorted(source for source, _ in world.answers()) == ["timers-0@0", "timers-0@1"]
    world.at_slot(60)
    assert world.sources() == ["timers-0@3", "timers-0@2"]


def test_after_a_loss_a_cancel_in_flight_is_not_told_as_delivered(
    make_world: MakeWorld, tmp_path: Path
) -> None:
    """Copies of what had left before may lie anywhere below the ends of that moment."""
    world = make_world()
    world.append(replace(timer(0, 200), timestamp_ms=NOW_MS))
    world.at_slot(64)
    world.publisher.ends = {P0: 3}
    world.lose_files(tmp_path / "other", {P0: 1, P1: 0})
    world.append(cancel(1))
    world.at_slot(66)
    (chase,) = world.chases()
    world.append(replace(timer(2, 200, origin=0), timestamp_ms=world.clock.now_ms()))
    world.append(replace(chase, offset=3))
    world.at_slot(70)
    assert world.answers() == [("timers-0@1", "cancelled")]
    world.at_slot(300)
    assert world.sources() == ["timers-0@0"]


def test_until_kafka_has_said_where_partitions_end_every_cancel_is_chased(
    make_world: MakeWorld, tmp_path: Path
) -> None:
    world = make_world()
    world.lose_files(tmp_path / "other", {P0: 0, P1: 0})
    bounds = CancelBounds.read(world.path)
    assert bounds is not None and bounds.unknown_ends == [P0, P1]
    world.append(cancel(0))
    world.at_slot(1)
    bounds = CancelBounds.read(world.path)
    assert bounds is not None and not bounds.unknown_ends
    assert (world.answers(), len(world.chases())) == ([], 1)
    world.append(replace(world.chases()[0], offset=1))
    world.at_slot(2)
    assert world.answers() == [("timers-0@0", "unknown")]


def test_all_of_it_is_counted(make_world: MakeWorld) -> None:
    world = make_world()
    world.append(timer(0, 5), cancel(1), cancel(2, timer_id=b"b"), TimerRow(0, 3, NOW_MS + 50))
    world.at_slot(9)
    world.append(cancel(4, timer_id=b"timers-0@3"))
    world.at_slot(10)
    assert world.shard.dequeue is not None
    known = world.shard.dequeue.statistics
    assert (known.cancelled, known.replies) == (1, {"cancelled": 1, "unknown": 1})
    assert known.delivered == 1


def test_in_a_partition_that_is_ahead_a_cancel_is_replied_to_once(
    make_world: MakeWorld, tmp_path: Path
) -> None:
    """It comes from a shard that was further, and had not replied to it yet."""
    world = make_world(chunk_records=1)
    for role in Role:
        world.shard.kill(role)
    found = world.publisher.committed[-1][1]
    parts = {
        P0: replace(found.partitions[P0], delivered_mark=2),
        P1: replace(
            found.partitions[P1],
            delivered_slot=found.delivered_slot + 50,
            delivered_mark=2,
            replied_below=1,
        ),
    }
    apart = replace(found, owner=NOBODY, incarnation=77, partitions=parts)
    world.publisher.committed.append((None, apart))
    world.shard = world.beside(tmp_path / "other")
    world.shard.offsets_at = lambda _: {P0: 0, P1: 0}
    dequeue = world.shard.start_dequeue()
    world.shard.start_ingest()
    rows = [TimerRow(0, 0, NOW_MS + 50), TimerRow(0, 1, NOW_MS + 60)]
    world.append(*rows, timer(0, 60, partition=1), cancel(1, partition=1))
    assert dequeue.tick()
    assert world.publisher.committed[-1][1].delivered_slot < found.delivered_slot + 50, (
        "it is ahead"
    )
    (chase,) = world.chases()
    world.append(replace(chase, offset=2))
    world.at_slot(52)
    assert world.answers() == [("timers-1@1", "cancelled")], "once the shard is where it was"
    world.restart(Role.DEQUEUE)
    world.at_slot(70)
    assert world.sources() == ["timers-0@0", "timers-0@1"]
    assert world.answers() == [("timers-1@1", "cancelled")]
