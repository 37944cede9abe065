"""Cancels and reschedules: whom they meet, what they are told, and for how long they are kept."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from duewheel.checkpoints.progress import NOBODY
from duewheel.checkpoints.recovery import RecoveryRecord
from duewheel.errors import RecoveryPending
from duewheel.schemas import header_names as names
from duewheel.schemas.record_tail import added_headers, framed_bytes
from duewheel.schemas.timers import TopicPartition
from duewheel.testing import (
    TIMER_TOPIC,
    LocalShard,
    ManualClock,
    RecordingPublisher,
    Timer,
    answer_value,
    timer_batch,
)
from duewheel.wheel import cancel_log
from duewheel.wheel.cancel_log import CancelLog
from duewheel.wheel.check import check
from duewheel.wheel.data_directory import Role
from duewheel.wheel.dequeue_config import DequeueConfig
from duewheel.wheel.layout import WheelConfig

P0: TopicPartition = (TIMER_TOPIC, 0)
P1: TopicPartition = (TIMER_TOPIC, 1)
NOW_MS = 1_800_000_000_000
PRECISION_MS = 10
REPLIES = "replies"


class World:
    """A started shard, and what its publisher has kept."""

    def __init__(self, path: Path, **settings: Any) -> None:
        slots, executor = settings.pop("slots", 64), settings.pop("executor", None)
        self.wheel = WheelConfig(PRECISION_MS, slots, window_ms=slots * PRECISION_MS, margin_ms=0)
        self.clock = ManualClock(NOW_MS)
        self.publisher = RecordingPublisher(self.clock)
        self.config = DequeueConfig(
            0, 1, {"precision": PRECISION_MS}, **{"reply_topic": REPLIES, **settings}
        )
        self.shard = LocalShard(
            path, self.wheel, self.publisher, self.clock, self.config, executor=executor
        )
        self.shard.start_dequeue({P0: 0, P1: 0})
        self.engine = self.shard.start_ingest()
        self.path = path

    def lose_files(self, path: Path, reads_from: Mapping[TopicPartition, int]) -> None:
        """Both are killed, and others take over in an empty directory.

        Args:
            path: the directory.
            reads_from: offsets by the time from which timers are read again.
        """
        for role in Role:
            self.shard.kill(role)
        self.shard = LocalShard(path, self.wheel, self.publisher, self.clock, self.config)
        self.shard.offsets_at = lambda _: dict(reads_from)
        self.shard.start_dequeue(take_over=True)
        self.engine = self.shard.start_ingest()
        self.path = path

    def append(self, *timers: Timer) -> None:
        ends = {}
        for timer in timers:
            ends[TIMER_TOPIC, timer.partition] = timer.offset + 1
        self.shard.append(timers, ends)

    def at_slot(self, slot: int) -> None:
        """Slots up to this one may be closed, and all of them are delivered."""
        self.clock.set(NOW_MS + slot * PRECISION_MS)
        self.drain()

    def drain(self) -> None:
        assert self.shard.dequeue is not None
        while self.shard.dequeue.tick():
            pass

    def restart(self, *roles: Role) -> None:
        for role in roles:
            self.shard.kill(role)
        if Role.DEQUEUE in roles:
            self.shard.start_dequeue()
        if Role.INGEST in roles:
            self.engine = self.shard.start_ingest()

    def sources(self) -> list[str]:
        return [source.decode() for source in self.publisher.sources()]

    def answers(self) -> list[tuple[str, str]]:
        """Source and word of each, in the order in which they have left."""
        return [(value["source"], value["answer"]) for value in self.values()]

    def values(self) -> list[dict[str, str]]:
        found = []
        for deliveries, _ in self.publisher.committed:
            if deliveries is None:
                continue
            answers = np.flatnonzero(deliveries.answer).tolist()
            found += [answer_value(deliveries.key_value[row].as_py()) for row in answers]
        return found

    def known(self) -> tuple[int, int]:
        """Live and remembered cancels."""
        assert self.shard.dequeue is not None
        counts = self.shard.dequeue.statistics.cancels
        return counts.live, counts.remembered

    def progress(self, partition: TopicPartition = P0) -> tuple[int | None, int]:
        """K and a, as committed last."""
        part = self.publisher.committed[-1][1].partitions[partition]
        return part.k, part.a


MakeWorld = Callable[..., World]


@pytest.fixture
def make_world(tmp_path: Path) -> MakeWorld:
    return lambda **settings: World(tmp_path / "data", **settings)


def timer(offset: int, slot: int, *, partition: int = 0, **more: Any) -> Timer:
    return Timer(partition, offset, NOW_MS + slot * PRECISION_MS, timer_id=b"a", **more)


def cancel(offset: int, *, partition: int = 0, timer_id: bytes = b"a") -> Timer:
    return Timer(partition, offset, 0, timer_id=timer_id, request="cancel")


def test_a_cancelled_timer_does_not_leave_and_its_cancel_is_told(make_world: MakeWorld) -> None:
    world = make_world()
    world.append(timer(0, 5), timer(1, 5, partition=1))
    world.append(cancel(1))
    world.at_slot(1)
    assert world.answers() == [("timers-0@1", "cancelled")]
    world.at_slot(9)
    assert world.sources() == ["timers-1@1"]
    assert world.known() == (0, 1)
    assert world.progress() == (None, 2)


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
    world.append(Timer(0, 0, NOW_MS + 50, timer_id=b"b"), timer(1, 5))
    world.clock.set(NOW_MS + 50)
    assert world.shard.dequeue is not None
    assert world.shard.dequeue.tick()
    world.append(cancel(2))
    world.at_slot(9)
    assert world.sources() == ["timers-0@0", "timers-0@1"]
    assert world.answers() == [("timers-0@2", "already_delivered")]


def test_a_roll_in_flight_is_waited_for(make_world: MakeWorld) -> None:
    world = make_world()
    early = replace(timer(0, 200), timestamp_ms=NOW_MS)
    world.append(early)
    world.at_slot(64)
    assert world.publisher.committed[-1][0] is not None, "it has been rolled"
    # The copy lies at 1 and has not been taken; the cancel was written behind it.
    world.publisher.ends = {P0: 3}
    copy = replace(timer(1, 200, origin=0), timestamp_ms=world.clock.now_ms())
    world.at_slot(65)
    assert world.answers() == []
    world.append(copy, cancel(2))
    world.at_slot(300)
    assert world.answers() == [("timers-0@2", "cancelled")]
    assert [s for s in world.sources() if s != "timers-0@0"] == []
    assert len(world.sources()) == 1, "the roll, and nothing else"


def test_a_copy_that_comes_behind_the_cancel_is_met_by_it(make_world: MakeWorld) -> None:
    world = make_world()
    world.append(replace(timer(0, 200), timestamp_ms=NOW_MS))
    world.at_slot(64)
    # Written in this order: the cancel, then the copy in a transaction that began before.
    world.publisher.ends = {P0: 3}
    world.append(cancel(1))
    world.at_slot(66)
    assert (world.answers(), world.known()) == ([], (1, 0))
    world.append(replace(timer(2, 200, origin=0), timestamp_ms=world.clock.now_ms()))
    world.at_slot(68)
    assert world.answers() == [("timers-0@1", "cancelled")]
    world.at_slot(300)
    assert len(world.sources()) == 1, "the roll, and nothing else"
    assert world.known() == (0, 2), "once more, brought again by the copy"


def test_after_its_delivery(make_world: MakeWorld) -> None:
    world = make_world()
    world.append(timer(0, 5))
    world.at_slot(9)
    world.append(cancel(1))
    world.at_slot(10)
    assert world.answers() == [("timers-0@1", "already_delivered")]
    # Nobody can tell any more whether the first cancel had kept it from leaving.
    world.restart(Role.DEQUEUE)
    world.append(cancel(2))
    world.at_slot(11)
    assert world.answers()[1:] == [("timers-0@2", "unknown")]


def test_what_was_cancelled_was_not_delivered(make_world: MakeWorld) -> None:
    world = make_world()
    world.append(timer(0, 5), cancel(1))
    world.at_slot(9)
    world.append(cancel(2))
    world.at_slot(10)
    assert world.answers() == [("timers-0@1", "cancelled"), ("timers-0@2", "unknown")]


def test_a_cancel_in_another_partition_meets_nothing(make_world: MakeWorld) -> None:
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
    world.at_slot(9)
    assert (world.sources(), world.answers()) == ([], [("timers-0@1", "cancelled")])


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
            names.ANSWER_WORD: "cancelled",
            names.ANSWER_ID: "a",
            names.ANSWER_SOURCE: "timers-0@1",
            names.ANSWER_REQUEST: "reschedule",
        }
    ]
    world.append(cancel(2))
    world.at_slot(21)
    assert world.answers()[1:] == [("timers-0@2", "already_delivered")]


def test_of_an_id_that_is_rescheduled_over_and_over_one_cancel_lives(
    make_world: MakeWorld, tmp_path: Path
) -> None:
    world = make_world(progress_interval_ms=PRECISION_MS)
    rows = [timer(0, 50), *(timer(n, 50 + n % 3, request="reschedule") for n in range(1, 20))]
    other = replace(timer(20, 60), timer_id=b"b")
    for number, row in enumerate([*rows, other], 1):
        world.append(row)
        world.at_slot(2 * number)
        world.at_slot(2 * number + 1)
        assert world.known()[0] <= 1
    assert [word for _, word in world.answers()] == ["cancelled"] * 19
    assert world.progress() == (19, 20)
    # Read again from there, it does the work of all before it.
    world.lose_files(tmp_path / "other", {P0: 0, P1: 0})
    world.shard.append([*rows, other], {P0: 21})
    world.at_slot(3_000)
    assert sorted(world.sources()) == ["timers-0@19", "timers-0@20"]
    assert len(world.answers()) == 19


def test_a_cancel_takes_the_place_of_others_once_a_progress_says_that_it_is_known(
    make_world: MakeWorld,
) -> None:
    """Whoever starts from one that does not must find the others."""
    world = make_world(reply_topic=None, progress_interval_ms=1_000, slots=4096)
    world.append(timer(0, 500), cancel(1))
    world.at_slot(120)
    world.append(cancel(2))
    for slot in (124, 126):
        world.at_slot(slot)
        assert (world.progress()[0], world.known()) == (1, (2, 0))
    assert world.publisher.committed[-1][1].partitions[P0].closed_c == 2
    for slot in (250, 260, 370):
        world.at_slot(slot)
    assert (world.progress()[0], world.known()) == (2, (1, 0))
    world.at_slot(510)
    assert (world.sources(), world.known()) == ([], (0, 0))


def test_what_was_rejected_is_no_timer(make_world: MakeWorld) -> None:
    world = make_world()
    world.append(timer(0, 5, rejected=True), cancel(1))
    world.at_slot(9)
    assert (world.sources(), world.answers()) == (["timers-0@0"], [("timers-0@1", "unknown")])


def test_an_answer_carries_key_and_headers_of_its_request(make_world: MakeWorld) -> None:
    world = make_world()
    world.append(timer(0, 5), cancel(2))  # a key and two headers
    world.at_slot(1)
    (answers,) = [d for d, _ in world.publisher.committed if d is not None]
    assert answers.targets[answers.target[0]] == REPLIES
    assert answers.key_value[0].as_py().startswith(framed_bytes(b"key"))
    own = (framed_bytes(b"h") + framed_bytes(b"\xff\0")) * 2
    added = [(names.ANSWER, b"cancelled"), (names.TIMER_ID, b"a")]
    encoded = b"".join(framed_bytes(n.encode()) + framed_bytes(v) for n, v in added)
    assert answers.headers[0].as_py() == own + encoded
    (record,) = added_headers(answers)[0].to_pylist()
    assert record == framed_bytes(names.SOURCE.encode()) + framed_bytes(b"timers-0@2")


@pytest.mark.parametrize("fate", ["lose", "doubt"])
def test_an_answer_in_doubt_is_given_once(make_world: MakeWorld, fate: str) -> None:
    world = make_world()
    world.append(timer(0, 5), cancel(1))
    fates = iter([fate])
    world.publisher.fate = lambda: next(fates, "commit")
    world.at_slot(9)
    assert world.answers() == [("timers-0@1", "cancelled")]


def test_each_of_many_is_answered_once_in_order_whoever_is_killed(make_world: MakeWorld) -> None:
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
    assert world.answers()[0][1] == "cancelled"
    assert world.progress() == (None, 59)


def test_without_a_reply_topic_cancels_act_and_are_forgotten(make_world: MakeWorld) -> None:
    world = make_world(reply_topic=None)
    world.append(timer(0, 5), cancel(1))
    world.at_slot(2)
    assert world.known() == (1, 0)
    world.at_slot(9)
    world.clock.sleep(60)
    world.drain()
    assert (world.sources(), world.answers(), world.known()) == ([], [], (0, 0))
    assert world.progress() == (None, 2)


def test_a_lost_directory_reads_its_live_cancels_again(
    make_world: MakeWorld, tmp_path: Path
) -> None:
    world = make_world()
    # A roll has written the copy, long before the time from which timers are read again.
    rows = [cancel(1), timer(2, 51), timer(3, 3), timer(4, 50, origin=0)]
    world.append(*rows)
    world.at_slot(4)
    assert world.progress() == (1, 2)
    world.lose_files(tmp_path / "other", {P0: 2, P1: 0})
    assert world.engine.marks[P0] == 1
    world.shard.append(rows, {P0: 5})
    world.at_slot(60)
    assert world.sources() == ["timers-0@3", "timers-0@2"]
    assert world.answers() == [("timers-0@1", "cancelled")]


def test_a_round_that_takes_its_time_holds_up_nothing(make_world: MakeWorld) -> None:
    later: list[Callable[[], None]] = []

    class Later(Executor):
        """Does what it is given when it is told to."""

        def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
            future: Future[Any] = Future()
            later.append(lambda: future.set_result(fn(*args, **kwargs)))
            return future

    world = make_world(executor=Later)
    world.append(timer(0, 5), cancel(1), replace(timer(2, 6), timer_id=b"b"))
    world.at_slot(9)
    assert (world.sources(), world.answers()) == (["timers-0@2"], [])
    while later:
        later.pop()()
        world.drain()
    assert world.answers() == [("timers-0@1", "cancelled")]


@pytest.mark.parametrize("folder", cancel_log.FOLDERS)
def test_a_lost_segment_is_noticed(make_world: MakeWorld, folder: str) -> None:
    world = make_world()
    world.append(timer(0, 50), cancel(1))
    world.at_slot(2)
    world.shard.kill(Role.DEQUEUE)
    world.shard.kill(Role.INGEST)
    (segment,) = (world.path / folder).iterdir()
    segment.unlink()
    assert not check(world.path, world.wheel).ok
    world.shard.start_dequeue()
    record = RecoveryRecord.read(world.path)
    assert record is not None and record.case == "files lost"


@pytest.mark.parametrize(
    ("folder", "at", "bits"),
    # 15: the last byte of the magic, which says what the record is.
    [
        ("cancels", 11, 64),
        ("cancels", 15, 4),
        ("cancels", 15, 8),
        ("cancels", 45, 64),
        ("requests", 70, 64),
    ],
)
def test_a_damaged_segment_is_found(make_world: MakeWorld, folder: str, at: int, bits: int) -> None:
    world = make_world()
    world.append(timer(0, 50), cancel(1))
    world.at_slot(2)
    (segment,) = (world.path / folder).iterdir()
    data = bytearray(segment.read_bytes())
    data[at] ^= bits
    segment.write_bytes(bytes(data))
    assert not check(world.path, world.wheel).ok
    world.restart(Role.DEQUEUE)
    with pytest.raises(RecoveryPending):
        world.drain()


def test_a_segment_that_goes_while_a_batch_is_written_takes_nothing_along(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = make_world()
    world.append(timer(0, 50))
    write = CancelLog.write

    def given_up_then(log: CancelLog, hour: int, *args: Any) -> tuple[int, int]:
        monkeypatch.undo()
        lengths = write(log, hour, *args)
        state = world.shard.directory(Role.DEQUEUE).state
        world.clock.sleep(3600)
        close = state.close()
        assert close is not None
        later = close.floor + 3_600_000 // PRECISION_MS
        state.write_close(replace(close, floor=later))
        state.set_gc_cancels(hour + 1)
        return lengths

    monkeypatch.setattr(CancelLog, "write", given_up_then)
    world.append(cancel(1))
    (hour,) = world.shard.directory(Role.INGEST).state.commit().cancels
    assert hour >= world.shard.directory(Role.INGEST).state.gc_cancels


def test_a_damaged_segment_leads_to_reading_again(make_world: MakeWorld) -> None:
    world = make_world()
    rows = [timer(0, 50), cancel(1)]
    world.append(*rows)
    world.at_slot(2)
    world.shard.kill(Role.DEQUEUE)
    world.shard.kill(Role.INGEST)
    (segment,) = (world.path / cancel_log.REQUESTS_FOLDER).iterdir()
    data = bytearray(segment.read_bytes())
    data[70] ^= 0x40
    segment.write_bytes(bytes(data))
    world.restart(Role.DEQUEUE)
    with pytest.raises(RecoveryPending, match="does not match its checksum"):
        world.drain()
    world.shard.offsets_at = lambda _: {P0: 0, P1: 0}
    world.restart(Role.DEQUEUE, Role.INGEST)
    assert world.engine.marks[P0] == 0
    world.append(*rows)
    world.at_slot(60)
    assert (world.sources(), world.answers()) == ([], [("timers-0@1", "cancelled")])


def test_all_of_it_is_counted(make_world: MakeWorld) -> None:
    world = make_world()
    world.append(timer(0, 5), cancel(1), cancel(2, timer_id=b"b"))
    world.at_slot(9)
    assert world.shard.dequeue is not None
    known = world.shard.dequeue.statistics
    assert (known.cancelled, known.answers) == (1, {"cancelled": 1, "unknown": 1})
    assert (known.delivered, known.cancels.lookups, known.cancels.scanned) == (0, 1, 1)


def test_in_a_partition_that_is_ahead_a_cancel_is_answered_once(
    make_world: MakeWorld, tmp_path: Path
) -> None:
    """It comes from a shard that was further, and had not answered it yet."""
    world = make_world(chunk_records=1)
    for role in Role:
        world.shard.kill(role)
    found = world.publisher.committed[-1][1]
    parts = {
        P0: replace(found.partitions[P0], c=2),
        P1: replace(found.partitions[P1], r=found.slot + 50, c=2, k=1),
    }
    apart = replace(found, owner=NOBODY, lineage=77, partitions=parts)
    world.publisher.committed.append((None, apart))
    world.shard = LocalShard(
        tmp_path / "other", world.wheel, world.publisher, world.clock, world.config
    )
    world.shard.offsets_at = lambda _: {P0: 0, P1: 0}
    dequeue = world.shard.start_dequeue()
    world.engine = world.shard.start_ingest()
    rows = [Timer(0, 0, NOW_MS + 50), Timer(0, 1, NOW_MS + 60)]
    world.append(*rows, timer(0, 60, partition=1), cancel(1, partition=1))
    assert dequeue.tick()
    assert world.publisher.committed[-1][1].slot < found.slot + 50, "it is ahead"
    assert world.answers() == [("timers-1@1", "cancelled")]
    world.restart(Role.DEQUEUE)
    world.at_slot(70)
    assert world.sources() == ["timers-0@0", "timers-0@1"]
    assert world.answers() == [("timers-1@1", "cancelled")]
