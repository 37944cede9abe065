"""The dequeue loop: closings, deliveries, logs, and the position after a start."""

from __future__ import annotations

import errno
import itertools
import os
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs
from tests.harness.local_world import NOW_MS, PRECISION_MS, SLOT, LocalWorld, ring, timer
from tests.harness.publishers import RecordingPublisher
from tests.harness.timelines import wheel_of, wheel_only
from tests.harness.timer_rows import P0, P1, TimerRow
from tests.harness.timer_shard import TimerShard

from duewheel.checkpoints.commit_and_close_pages import Close
from duewheel.checkpoints.fs import Bytes, FileSystem
from duewheel.checkpoints.local_state import RecoveryRecord
from duewheel.checkpoints.process_role import Role
from duewheel.checkpoints.progress import PartitionProgress, Progress
from duewheel.checkpoints.progress_mirror import UNCOUNTED
from duewheel.errors import Fenced, KafkaUnavailable, PublishDoubt, RecoveryPending, RecoveryRefused
from duewheel.testing import ManualClock
from duewheel.wheel.dequeue import loop
from duewheel.wheel.dequeue.lifecycle import Dequeue
from duewheel.wheel.dequeue.slot_scan import SlotScan
from duewheel.wheel.dequeue_config import DequeueConfig
from duewheel.wheel.slots import WheelConfig
from duewheel.wheel.storage.byte_layouts import MAGIC_ABANDONED, RECORD_BYTES
from duewheel.wheel.storage.data_directory import DataDirectory


def mirrored(world: LocalWorld) -> tuple[int, int]:
    """R (from SLOT) and the timers delivered, as mirrored."""
    mirror = world.state.mirror()
    assert mirror is not None
    return mirror.delivered_slot - SLOT, mirror.delivered_rows


def committed(world: LocalWorld) -> dict[int, tuple[int, int, int | None, int | None]]:
    """Per partition: R (from SLOT), C, C1, D as last committed."""
    return {
        number: (p.delivered_slot - SLOT, p.delivered_mark, p.half_mark, p.half_below)
        for (_, number), p in world.publisher.committed[-1][1].partitions.items()
    }


MakeWorld = Callable[..., LocalWorld]


def test_a_start_without_a_key_for_copies_says_so(tmp_path: Path) -> None:
    world = LocalWorld(tmp_path, ring(64))
    told = []
    for _ in range(2):
        with capture_logs() as logs:
            world.restart(Role.DEQUEUE)
        told.append([line["remedy"] for line in logs if "not signed" in line["event"]])
        progress = world.publisher.committed[-1][1]
        keyed = replace(progress, epochs=progress.epochs.drawing_key(lambda _: 7))
        world.publisher.committed[-1] = (None, keyed)
    assert told == [["stop the shard, and run `duewheel reconfigure --rotate-key`"], []]


@pytest.fixture
def make_world(tmp_path: Path) -> MakeWorld:
    numbers = itertools.count()

    def make(slots: int = 64, chunk_records: int = 100, **bounds: Any) -> LocalWorld:
        return LocalWorld(
            tmp_path / str(next(numbers)),
            ring(slots),
            slot_config={"precision": PRECISION_MS},
            chunk_records=chunk_records,
            **bounds,
        )

    return make


def test_no_message_leaves_with_a_progress_that_is_committed(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A doubt about it could not be resolved: the progress would not say whether it has left."""
    world = make_world()
    world.append(timer(0, 0, 3))
    world.set_slot(3)
    monkeypatch.setattr(loop, "advanced", lambda known, *_: known)
    with pytest.raises(RecoveryRefused, match="1 messages would leave"):
        world.drain()
    assert world.sources() == []


def test_a_range_longer_than_the_ring_is_scanned(make_world: MakeWorld) -> None:
    world = make_world(slots=8)
    world.append(timer(0, 0, 3), timer(0, 1, 9))
    world.at_slot(1_000)
    assert world.sources() == ["timers-0@0", "timers-0@1"]


def test_a_kill_in_the_middle_of_a_slot_loses_and_doubles_nothing(make_world: MakeWorld) -> None:
    world = make_world(chunk_records=2)
    world.append(*(timer(offset % 2, offset, 1) for offset in range(7)))
    world.set_slot(1)
    assert world.tick() and world.tick()
    assert committed(world) == {0: (0, 0, 7, 3), 1: (0, 0, 6, 4)}
    world.restart(Role.DEQUEUE)
    world.drain()
    assert world.sources() == [f"timers-{offset % 2}@{offset}" for offset in range(7)]
    assert committed(world) == {0: (1, 7, None, None), 1: (1, 6, None, None)}
    assert mirrored(world) == (1, world.state.commit().placed)


def test_a_full_disk_keeps_the_mirror_of_before(make_world: MakeWorld) -> None:
    class FullDisk(FileSystem):
        is_full = False

        def write_at(self, fd: int, data: Bytes, offset: int) -> None:
            if self.is_full and len(data) > 100:  # not the lock's
                raise OSError(errno.ENOSPC, "No space left on device")
            super().write_at(fd, data, offset)

    disk = FullDisk()
    world = make_world(fs=disk)
    world.append(timer(0, 0, 1), timer(0, 1, 2))
    before = mirrored(world)

    disk.is_full = True
    world.at_slot(1)
    disk.is_full = False
    assert world.sources() == ["timers-0@0"]
    assert mirrored(world) == before
    world.at_slot(2)
    assert mirrored(world) == (2, 2)


@wheel_only
def test_an_entry_that_names_another_slot_s_record_is_damage(make_world: MakeWorld) -> None:
    world = make_world()
    world.append(timer(0, 0, 1), timer(0, 1, 9))
    wheel = wheel_of(world.shard.directory(Role.INGEST))
    entries, first, later = wheel.view(), (SLOT + 1) % wheel.ring, (SLOT + 9) % wheel.ring
    for name in ("first_pos", "last_pos"):
        entries[name][first] = entries[name][later]
    world.set_slot(1)
    reason = f"slot {SLOT + 1} leads to a record of slot {SLOT + 9}"
    with pytest.raises(RecoveryPending, match=reason):
        world.tick()
    assert world.sources() == []


def test_an_abandoned_record_in_a_chain_is_damage(make_world: MakeWorld) -> None:
    """It was written once more elsewhere: delivered from here, its timer would leave twice."""
    world = make_world()
    world.append(timer(0, 0, 1), timer(0, 1, 1))
    log = world.shard.directory(Role.INGEST).log
    (hour,) = log.files.hours()
    records = log.read(hour, 0, 2 * RECORD_BYTES).copy()
    records["magic"][1] = MAGIC_ABANDONED
    log.files.write(hour, records.tobytes(), 0)
    world.set_slot(1)
    with pytest.raises(RecoveryPending, match=f"slot {SLOT + 1} leads to .*magic 0xab0000"):
        world.tick()
    assert world.sources() == []


# ---- closing -------------------------------------------------------------------------------------


def test_nothing_leaves_before_its_slot_is_over(make_world: MakeWorld) -> None:
    world = make_world()
    # Slot 1 holds what is due in (0, 10]: its first row waits for its last one.
    world.append(
        TimerRow(0, 0, NOW_MS + 1), TimerRow(0, 1, NOW_MS + 10), TimerRow(0, 2, NOW_MS + 11)
    )
    for now_ms, expected in ((1, 0), (9, 0), (10, 2), (19, 2), (20, 3)):
        world.clock.set(NOW_MS + now_ms)
        world.drain()
        assert len(world.sources()) == expected


def test_a_clock_that_is_set_back_reopens_nothing(make_world: MakeWorld) -> None:
    world = make_world()
    world.at_slot(5)
    world.set_slot(-5)
    world.append(timer(0, 0, -4), timer(0, 1, 2))
    world.drain()
    assert world.sources() == []
    close = world.state.close()
    assert close is not None and close.floor == SLOT + 5
    world.at_slot(6)
    assert world.sources() == ["timers-0@0", "timers-0@1"]


def test_a_batch_committed_just_before_the_closing_is_in_the_range(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = make_world()
    world.append(timer(0, 0, 1), timer(0, 1, 2))
    world.set_slot(3)
    lock = world.shard.directory(Role.DEQUEUE).engine_lock
    acquire = lock.acquire

    def lose_the_race(deadline_s: float) -> None:
        monkeypatch.undo()
        world.append(timer(0, 2, 1), timer(0, 3, 3))
        acquire(deadline_s)

    monkeypatch.setattr(lock, "acquire", lose_the_race)
    world.drain()
    assert world.sources() == [f"timers-0@{offset}" for offset in (0, 2, 1, 3)]
    close = world.state.close()
    assert close is not None and close.marks == {P0: 4, P1: 0}


def test_an_idle_range_keeps_its_own_marks(make_world: MakeWorld) -> None:
    world = make_world(chunk_records=1)
    world.append(timer(0, 0, 5))
    world.at_slot(2)  # empty: nobody is told
    world.append(timer(0, 1, 3), timer(0, 2, 3), timer(1, 0, 4))
    world.set_slot(4)
    assert world.tick()
    # Slot 2 is the lower end: its marks are those of the range before, in which offset 1 was not.
    assert committed(world) == {0: (2, 1, 3, 2), 1: (2, 0, 1, 0)}
    assert world.tick()
    assert committed(world) == {0: (3, 3, None, None), 1: (3, 1, None, None)}
    assert world.tick()
    assert committed(world) == {0: (4, 3, None, None), 1: (4, 1, None, None)}


def test_the_next_range_is_closed_when_this_one_is_delivered(make_world: MakeWorld) -> None:
    world = make_world(chunk_records=1)
    world.append(timer(0, 0, 1), timer(0, 1, 2))
    world.set_slot(2)
    assert world.tick()
    world.append(timer(0, 2, 3))
    world.set_slot(3)
    assert world.tick()
    close = world.state.close()
    assert close == Close(SLOT, {P0: 0, P1: 0}, SLOT + 2, {P0: 2, P1: 0})
    assert world.tick()
    close = world.state.close()
    assert close == Close(SLOT + 2, {P0: 2, P1: 0}, SLOT + 3, {P0: 3, P1: 0})


def test_the_progress_is_told_now_and_then_when_nothing_is_due(make_world: MakeWorld) -> None:
    world = make_world()
    before = len(world.publisher.committed)
    world.at_slot(199)
    assert len(world.publisher.committed) == before
    world.at_slot(200)
    assert len(world.publisher.committed) == before + 1
    assert committed(world)[0][0] == 200
    assert mirrored(world) == (200, 0)


def test_empty_slots_are_closed_together(make_world: MakeWorld) -> None:
    world = make_world()
    world.append(timer(0, 0, 60))
    world.at_slot(1)
    world.at_slot(40)
    assert world.floor == SLOT + 1
    world.at_slot(41)
    assert world.floor == SLOT + 41
    world.at_slot(59)
    assert (world.floor, world.sources()) == (SLOT + 41, [])
    world.at_slot(60)
    assert (world.floor, world.sources()) == (SLOT + 60, ["timers-0@0"])


def test_a_commit_is_closed_at_the_next_slot(make_world: MakeWorld) -> None:
    world = make_world()
    world.append(timer(0, 0, 40))
    world.at_slot(1)
    world.append(timer(0, 1, 40))
    world.at_slot(2)
    assert world.state.close() == Close(SLOT + 1, {P0: 1, P1: 0}, SLOT + 2, {P0: 2, P1: 0})


def test_a_late_timer_leaves_at_the_next_slot_though_its_own_is_open(make_world: MakeWorld) -> None:
    world = make_world()
    world.at_slot(1)
    world.at_slot(9)
    world.append(timer(0, 0, 5))
    world.drain()
    assert (world.floor, world.sources()) == (SLOT + 9, ["timers-0@0"])


# ---- chunks --------------------------------------------------------------------------------------


def test_chunks_are_bounded_by_records_and_by_bytes(make_world: MakeWorld) -> None:
    world = make_world(chunk_records=3)
    world.append(*(timer(0, offset, 1) for offset in range(7)))
    world.at_slot(1)
    sizes = [len(rows) for rows, _ in world.publisher.committed if rows is not None]
    assert sizes == [3, 3, 1]
    world = make_world(chunk_bytes=1)
    world.append(*(timer(0, offset, 1) for offset in range(3)))
    world.at_slot(1)
    sizes = [len(rows) for rows, _ in world.publisher.committed if rows is not None]
    assert sizes == [1, 1, 1]


def test_no_more_records_of_a_slot_are_read_at_once_than_asked_for(make_world: MakeWorld) -> None:
    """What is read is held in memory, whatever becomes of it."""
    world = make_world()
    world.append(*(timer(0, offset, 1) for offset in range(7)))
    directory = world.shard.directory(Role.DEQUEUE)
    directory.timeline.refresh()  # as each closing does
    scan = SlotScan(directory, SLOT, SLOT + 1)
    chunks = iter(lambda: scan.next_chunk(3, 1 << 20), None)
    assert [len(chunk.records) for chunk in chunks] == [3, 3, 1]


def test_a_span_is_bounded_and_a_slot_may_be_larger(make_world: MakeWorld) -> None:
    world = make_world(chunk_records=3, span_records=4)
    slots = [1, 1, 1, 2, 2, 2, 2, 2, 2, 3, 5, 5, 5, 5]
    world.append(*(timer(offset % 2, offset, slot) for offset, slot in enumerate(slots)))
    world.at_slot(9)
    assert world.sources() == [f"timers-{offset % 2}@{offset}" for offset in range(len(slots))]
    assert mirrored(world) == (9, len(slots))


def test_a_stop_of_days_takes_no_memory_for_each_of_its_slots(make_world: MakeWorld) -> None:
    """Hours without a log are passed over, inside the ring and beyond it."""
    world, slots = make_world(), 20_000_000
    world.append(timer(0, 0, 1))
    tracemalloc.start()
    try:
        world.at_slot(slots)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < slots, "it walks the slots"
    world.append(timer(0, 1, slots + 1))
    world.at_slot(slots + 1)
    assert world.offsets() == [0, 1]


# ---- doubts --------------------------------------------------------------------------------------


@pytest.mark.parametrize("fates", [["lose"], ["doubt"], ["lose", "lose", "doubt"]])
def test_a_transaction_in_doubt_happens_once(make_world: MakeWorld, fates: list[str]) -> None:
    world = make_world(chunk_records=2)
    world.append(*(timer(0, offset, 1) for offset in range(5)))
    world.set_slot(1)
    planned = [*fates]
    world.publisher.fate = lambda: planned.pop(0) if planned else "commit"
    world.drain()
    assert world.sources() == [f"timers-0@{offset}" for offset in range(5)]
    assert world.dequeue.statistics.doubts == len(fates)
    assert world.dequeue.statistics.delivered == 5


def test_each_attempt_waits_longer_than_the_one_before(make_world: MakeWorld) -> None:
    """Whether the transaction or the start of the publisher fails: there is one wait for both."""
    world, begun_ms = make_world(), []
    world.append(timer(0, 0, 1))
    world.set_slot(1)
    away = itertools.count()

    def fate() -> str:
        begun_ms.append(world.clock.true_ms)
        return "lose" if len(begun_ms) < 14 else "commit"

    start = world.publisher.start

    def come_back() -> Progress | None:
        if next(away) < 2:
            raise KafkaUnavailable("away")
        return start()

    world.publisher.fate, world.publisher.start = fate, come_back  # type: ignore[method-assign]
    world.drain()
    waits = [later - before for before, later in itertools.pairwise(begun_ms)]
    assert 25 + 50 + 100 <= waits[0] <= 50 + 100 + 200, "two starts that failed, and the doubt"
    assert all(2_500 <= wait <= 5_000 for wait in waits[-5:])
    assert len(set(waits[-5:])) > 1, "shards do not come back in one instant"
    assert world.dequeue.statistics.delivered == 1
    world.append(timer(0, 1, 10_000))
    world.set_slot(10_000)
    begun_ms.clear()
    begun_ms += [0] * 12
    world.drain()
    assert begun_ms[13] - begun_ms[12] <= 50, "a commit resets the back-off"


def test_the_local_copy_of_the_progress_is_never_ahead(make_world: MakeWorld) -> None:
    world = make_world(chunk_records=1)
    world.append(timer(0, 0, 1), timer(0, 1, 2))
    world.set_slot(2)
    seen = []

    def look() -> str:
        seen.append(mirrored(world))
        return "commit"

    world.publisher.fate = look
    world.drain()
    assert seen == [(0, UNCOUNTED), (1, 1)]


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"owner": "another directory"}, Fenced),
        ({"incarnation": 77}, Fenced),
        ({"partitions": {P0: PartitionProgress(SLOT + 77, 0)}}, RecoveryRefused),
    ],
)
def test_a_foreign_progress_after_a_doubt_ends_the_loop(
    make_world: MakeWorld, change: dict[str, Any], error: type[Exception]
) -> None:
    world = make_world()
    world.append(timer(0, 0, 1))
    world.set_slot(1)
    world.publisher.fate = lambda: "lose"
    foreign = replace(world.publisher.committed[-1][1], **change)
    world.publisher.committed.append((None, foreign))
    with pytest.raises(error):
        world.tick()
    assert world.sources() == []


def test_a_vanished_progress_after_a_doubt_ends_the_loop(make_world: MakeWorld) -> None:
    world = make_world()
    world.append(timer(0, 0, 1))
    world.set_slot(1)
    world.publisher.fate = lambda: "lose"
    world.publisher.committed.clear()
    with pytest.raises(RecoveryRefused, match="vanished"):
        world.tick()


def test_kafka_is_waited_for_after_a_doubt_until_told_to_stop(make_world: MakeWorld) -> None:
    away: list[KafkaUnavailable] = []

    class AwayPublisher(RecordingPublisher):
        def start(self) -> Progress | None:
            if away:
                raise away.pop()
            return super().start()

    world = make_world(slots=1_000, publisher=AwayPublisher)
    world.append(timer(0, 0, 1))
    world.set_slot(1)
    fates = ["lose"]
    world.publisher.fate = lambda: fates.pop() if fates else "commit"
    away += [KafkaUnavailable("away")] * 7
    before_ms = world.clock.now_ms()
    world.drain()
    assert world.sources() == ["timers-0@0"]
    longest_ms = 50 + 100 + 200 + 400 + 800 + 1600 + 3200 + 5000
    assert longest_ms / 2 <= world.clock.now_ms() - before_ms <= longest_ms
    away += [KafkaUnavailable("away")]
    fates += ["lose"]
    world.append(timer(0, 1, 1))
    world.clock.sleep(1)
    world.stopping = True
    with pytest.raises(PublishDoubt, match="stopped while waiting"):
        world.tick()


# ---- starts --------------------------------------------------------------------------------------


def test_a_shard_without_progress_starts_only_where_that_is_known(tmp_path: Path) -> None:
    wheel = WheelConfig()
    config = DequeueConfig(0, 1, {"precision": 50})
    clock = ManualClock(NOW_MS)
    publisher = RecordingPublisher(clock)
    shard = TimerShard(tmp_path / "data", wheel, publisher, clock, config)
    with pytest.raises(RecoveryRefused, match="Kafka has no progress for this shard"):
        shard.start_dequeue()
    shard.kill(Role.DEQUEUE)
    shard.start_dequeue({P0: 12})
    assert [deliveries for deliveries, _ in publisher.committed] == [None, None]
    assert [progress.epoch for _, progress in publisher.committed] == [0, 1]
    assert shard.start_ingest().marks == {P0: 12}
    record = RecoveryRecord.read(shard.path)
    assert record is not None and (record.case, record.dequeue_start) == ("new", 2)
    shard.kill(Role.DEQUEUE)
    publisher.committed.clear()
    shard.start_dequeue({P0: 0})  # there was one: the local copy knows
    (_, progress), *_ = publisher.committed
    assert (progress.epoch, progress.partitions[P0].delivered_mark) == (2, 12)
    shard.kill(Role.DEQUEUE)
    shard.kill(Role.INGEST)


@pytest.mark.parametrize("transactions", [1, 2, 3])
def test_a_kill_between_the_transaction_and_its_local_copy_doubles_nothing(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch, transactions: int
) -> None:
    world = make_world(chunk_records=2)
    world.append(*(timer(0, offset, 1) for offset in range(5)))
    world.set_slot(1)
    for _ in range(transactions - 1):
        world.tick()

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(world.shard.directory(Role.DEQUEUE).state, "write_mirror", die)
        with pytest.raises(KeyboardInterrupt):
            world.tick()
    world.restart(Role.DEQUEUE)
    world.drain()
    assert world.sources() == [f"timers-0@{offset}" for offset in range(5)]
    assert mirrored(world) == (1, 5)


def test_other_settings_are_refused_at_the_start(make_world: MakeWorld) -> None:
    world = make_world()
    world.shard.kill(Role.DEQUEUE)
    directory = DataDirectory.start(world.shard.path, world.wheel, Role.DEQUEUE)
    config = replace(world.config, slot_config={"precision": 20})
    floor = world.state.close()
    with pytest.raises(RecoveryRefused, match="precision: was 10, is 20"):
        Dequeue(directory, world.publisher, world.clock, config).start()
    assert world.state.close() == floor
    directory.close()


# ---- what is told --------------------------------------------------------------------------------


def test_statistics_and_heartbeat(make_world: MakeWorld) -> None:
    world = make_world()
    world.append(timer(0, 0, 1), timer(0, 1, 3), TimerRow(0, 2, 0, rejected=True))
    world.at_slot(60)
    found = world.dequeue.statistics
    assert (found.delivered, found.dead_letters, found.transactions) == (2, {"rejected": 1}, 2)
    assert world.state.live.deliveries == (2, 1, False)
    assert found.lateness.max_ms == 59 * PRECISION_MS
    beat = world.state.live.heartbeat(Role.DEQUEUE)
    assert (beat.pid, beat.at_ms) == (os.getpid(), world.clock.now_ms())
    assert beat.detail == 60 * PRECISION_MS


def test_the_loop_sleeps_to_the_next_slot_and_ends_when_told(make_world: MakeWorld) -> None:
    world = make_world()
    world.append(timer(0, 0, 2))
    world.clock.set(NOW_MS + 3)
    slept = []
    sleep = world.clock.sleep

    def note(seconds: float) -> None:
        slept.append(round(seconds * 1000))
        sleep(seconds)
        world.stopping = len(slept) == 4

    world.clock.sleep = note  # type: ignore[method-assign]
    world.dequeue.run()
    assert slept == [7, 10, 10, 10]
    assert world.sources() == ["timers-0@0"]


# ---- pause ---------------------------------------------------------------------------------------


def test_a_paused_dequeue_closes_and_delivers_nothing_and_says_that_it_lives(
    make_world: MakeWorld,
) -> None:
    """Also in the middle of a slot, and after a new start: D is what it was."""
    world = make_world(chunk_records=2)
    world.append(*(timer(0, offset, 1) for offset in range(5)), timer(0, 5, 2))
    world.set_slot(1)
    assert world.tick()
    before = committed(world)
    world.state.live.pause(Role.DEQUEUE, on=True)
    world.set_slot(2)
    for restart in (False, True):
        if restart:
            world.restart(Role.DEQUEUE)
        commits = len(world.publisher.committed)
        world.clock.sleep(world.config.progress_interval_ms / 1000)
        assert not world.tick()
        assert len(world.publisher.committed) == commits + 1
        assert committed(world) == before == {0: (0, 0, 6, 2), 1: (0, 0, 0, 0)}
        assert world.state.live.heartbeat(Role.DEQUEUE).at_ms == world.clock.now_ms()
    assert len(world.sources()) == 2
    world.state.live.pause(Role.DEQUEUE, on=False)
    world.drain()
    assert world.sources() == [f"timers-0@{offset}" for offset in range(6)]
