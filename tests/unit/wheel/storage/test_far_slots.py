"""Rows beyond the ring: taken like any other, linked when the ring reaches them, never early."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.harness.cancel_world import CancelWorld
from tests.harness.killed import Killed
from tests.harness.local_world import PRECISION_MS, SLOT, LocalWorld, ring, timer
from tests.harness.manual_host import ManualHost
from tests.harness.timelines import wheel_only
from tests.harness.timer_rows import P0, P1, TimerRow

from duewheel.checkpoints.commit_and_close_pages import Commit
from duewheel.checkpoints.fs import HOST_FS, FileSystem
from duewheel.checkpoints.process_role import Role
from duewheel.checkpoints.state_file import Damage, State
from duewheel.errors import RecoveryPending
from duewheel.runtime.checkpointer import DurableCheckpoints
from duewheel.schemas.arrays import Int64
from duewheel.wheel.append.engine import Appended
from duewheel.wheel.append.placement import slot_order
from duewheel.wheel.inspect.pending_counts import PendingTimers
from duewheel.wheel.slots import WheelConfig
from duewheel.wheel.storage import far_slots, log_scan
from duewheel.wheel.storage.byte_layouts import NO_POSITION, hour_from_name, hour_name
from duewheel.wheel.storage.data_directory import DataDirectory
from duewheel.wheel.storage.far_slots import Linker
from duewheel.wheel.storage.full_check import check
from duewheel.wheel.storage.runs import Runs
from duewheel.wheel.storage.timelines.chain_ends import ChainEnds
from duewheel.wheel.storage.timelines.timer_wheel import TimerWheel
from duewheel.wheel.storage.timer_log import Records, TimerLog

pytestmark = wheel_only

HOUR = 3_600_000 // PRECISION_MS  # slots
YEARS = 10 * 365 * 24 * HOUR


def started(tmp_path: Path, slots: int, fs: FileSystem = HOST_FS) -> LocalWorld:
    return LocalWorld(
        tmp_path / "data", ring(slots), fs=fs, chunk_records=7, progress_interval_ms=PRECISION_MS
    )


@pytest.fixture
def world(tmp_path: Path) -> LocalWorld:
    """A ring of 128 slots."""
    return started(tmp_path, 64)


def come_to(world: LocalWorld, slot: int) -> list[int]:
    """The offsets that leave until then, in order."""
    before = len(world.offsets())
    world.at_slot(slot)
    return world.offsets()[before:]


def come_slowly_to(world: LocalWorld, first: int, end: int) -> None:
    """Slot by slot."""
    for slot in range(first, end):
        come_to(world, slot)


def test_a_row_beyond_the_ring_holds_back_no_other(tmp_path: Path) -> None:
    """Neither another partition nor later rows of its own: one ingest batch takes them all."""
    world = started(tmp_path, 2 * HOUR)
    days = 72 * HOUR
    rows = [timer(0, 3, 1), timer(0, 5, days), timer(0, 6, 1), timer(1, 0, 1), timer(1, 1, 2)]
    assert world.shard.append(rows, {P0: 9, P1: 4}) == Appended(5)
    assert world.engine.marks == {P0: 9, P1: 4}
    assert come_to(world, 2) == [3, 6, 0, 1]
    assert check(world.shard.path, world.wheel).findings == []
    assert come_to(world, days - 1) == []
    assert come_to(world, days) == [5]
    assert check(world.shard.path, world.wheel).findings == []


def test_rows_of_a_far_slot_leave_in_the_order_in_which_they_came(world: LocalWorld) -> None:
    """Some before it is linked, in several batches, some after it."""
    far = 5 * 128
    for offset in (0, 1):
        world.append(timer(0, 2 * offset, far), timer(0, 2 * offset + 1, far + 1))
    come_to(world, far - 130)
    assert world.state.linked - SLOT < far
    world.append(timer(0, 4, far), timer(1, 0, far))
    come_to(world, far - 110)
    come_to(world, far - 90)
    assert world.state.linked - SLOT >= far
    world.append(timer(0, 5, far), timer(0, 6, far + 1))
    assert check(world.shard.path, world.wheel).findings == []
    assert come_to(world, far) == [0, 2, 4, 0, 5]
    assert come_to(world, far + 1) == [1, 3, 6]
    assert check(world.shard.path, world.wheel).findings == []


def test_many_rows_committed_meanwhile_are_not_read_under_the_lock(
    world: LocalWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its holder is killed after some seconds: so they are read before it is taken."""
    far, is_locked = 5 * 128, [False]
    blocks, locked, read = log_scan.blocks, DataDirectory.locked, Counter[bool]()

    @contextmanager
    def noted(directory: DataDirectory, *given: Any) -> Iterator[Commit]:
        with locked(directory, *given) as commit:
            is_locked[0] = True
            yield commit
            is_locked[0] = False

    def counted(
        log: TimerLog, precision_ms: int, hour: int, start: int, end: int
    ) -> Iterator[tuple[Int64, Int64, Records]]:
        read[is_locked[0]] += end - start
        yield from blocks(log, precision_ms, hour, start, end)
        if not is_locked[0] and world.engine.marks[P0] < 4:  # while the hour is read
            world.append(timer(0, world.engine.marks[P0], far))

    world.append(timer(0, 0, far))
    monkeypatch.setattr(far_slots, "_LOCKED_BYTES", 0)
    monkeypatch.setattr(far_slots, "blocks", counted)
    monkeypatch.setattr(DataDirectory, "locked", noted)
    come_slowly_to(world, far - 140, far - 80)
    monkeypatch.undo()
    assert world.engine.marks[P0] == 4
    assert not read[True]
    assert come_to(world, far) == [0, 1, 2, 3]


def test_ten_years_ahead_and_beyond_the_calendar(world: LocalWorld) -> None:
    """Far timestamps cost one file each; nothing leaves early, and others are not late."""
    beyond_9999 = 9_000 * 366 * 24 * HOUR
    world.append(timer(0, 0, YEARS), timer(0, 1, 1), timer(1, 0, beyond_9999))
    assert come_to(world, 1) == [1]
    assert check(world.shard.path, world.wheel).findings == []
    world.shard.kill(Role.INGEST)
    world.shard.start_ingest()
    world.append(timer(0, 2, YEARS), timer(0, 3, YEARS + 1), timer(0, 4, 2))
    assert come_to(world, 2) == [4]
    hour = (SLOT + beyond_9999) // HOUR
    assert hour_from_name(hour_name(hour)) == hour
    assert (world.shard.path / "timerlog" / hour_name(hour)).exists()


def test_slots_centuries_apart_keep_their_order() -> None:
    slots = np.array([2**60, 5, 2**60, 5, 7], np.int64)
    assert slot_order(slots).tolist() == [1, 3, 4, 0, 2]


def test_dequeue_without_ingest_links_what_the_ring_reaches(world: LocalWorld) -> None:
    far = [timer(0, n, 100 + 40 * n) for n in range(20)]
    world.append(*far)
    world.shard.kill(Role.INGEST)
    for n in range(20):
        assert come_to(world, 100 + 40 * n - 1) == []
        assert come_to(world, 100 + 40 * n) == [n]


def test_after_a_stop_of_many_laps_all_leaves_in_order(world: LocalWorld) -> None:
    """One closed range is longer than the ring: it is linked and delivered a part at a time."""
    world.append(*(timer(0, n, 30 * n + 1) for n in range(30)))
    assert come_to(world, 2_000) == list(range(30))
    # What comes late while that range is delivered goes behind it.
    close = world.state.close()
    assert close is not None and close.floor == SLOT + 2_000
    assert check(world.shard.path, world.wheel).findings == []


def test_rows_that_come_while_a_range_beyond_the_ring_is_delivered(world: LocalWorld) -> None:
    world.append(*(timer(0, n, 30 * n + 1) for n in range(30)))
    world.set_slot(2_000)
    for _ in range(12):
        world.dequeue.tick()
    assert 0 < len(world.offsets()) < 30
    world.append(timer(0, 30, 500), timer(0, 31, 2_001))
    assert check(world.shard.path, world.wheel).findings == []
    world.drain()
    assert come_to(world, 2_001) == [30, 31]
    assert world.offsets() == list(range(32))


def test_dequeue_killed_while_a_range_beyond_the_ring_is_delivered(world: LocalWorld) -> None:
    world.append(*(timer(0, n, 30 * n + 1) for n in range(30)), timer(0, 30, 1_500))
    world.set_slot(1_400)
    ticks = 0
    while len(world.offsets()) < 30:
        world.dequeue.tick()
        ticks += 1
        if ticks % 3 == 0:
            world.restart(Role.DEQUEUE)
        assert ticks < 500
    assert world.offsets() == list(range(30))
    world.drain()  # the rest of the range is empty
    assert come_to(world, 1_500) == [30]


def test_rows_committed_while_a_stretch_is_read_are_linked_with_it(world: LocalWorld) -> None:
    """They may be of an hour that was read before they came."""
    far = 5 * 128
    world.append(timer(0, 0, far))
    come_to(world, far - 130)
    slot = far - 130
    while world.state.linked - SLOT <= far:
        slot += 1
        world.set_slot(slot)
        world.dequeue.tick()
        world.append(timer(0, world.engine.marks[P0], far + 1))
    assert slot < far
    assert come_to(world, far + 1) == list(range(world.engine.marks[P0]))
    assert check(world.shard.path, world.wheel).findings == []


def test_a_row_committed_while_no_slot_has_one_is_linked(
    world: LocalWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the look without the lock and the one under it."""
    decide, beyond = Linker.is_empty, world.state.linked - SLOT + 1

    def meanwhile(linker: Linker, after: int, commit: Commit) -> bool:
        is_empty = decide(linker, after, commit)
        monkeypatch.undo()
        world.append(timer(0, 0, beyond))
        return is_empty

    world.at_slot(8)
    monkeypatch.setattr(Linker, "is_empty", meanwhile)
    world.at_slot(16)
    assert world.engine.marks[P0] == 1
    assert world.state.linked >= SLOT + beyond
    assert come_to(world, beyond) == [0]


def test_a_stretch_counts_as_linked_only_once_its_entries_are_written(
    world: LocalWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    far = 5 * 128
    world.append(timer(0, 0, far), timer(0, 1, far + 1))
    come_to(world, far - 130)

    def killed(_self: TimerWheel, runs: Runs, _batch: int) -> None:
        if len(runs):
            raise Killed

    monkeypatch.setattr(TimerWheel, "link", killed)
    with pytest.raises(Killed):
        come_slowly_to(world, far - 129, far)
    monkeypatch.undo()
    assert world.state.linked - SLOT < far
    world.restart(Role.DEQUEUE)
    world.drain()
    assert come_to(world, far + 1) == [0, 1]
    assert check(world.shard.path, world.wheel).findings == []


def test_a_power_loss_keeps_what_is_not_linked(world: LocalWorld) -> None:
    far = 7 * 128
    world.append(timer(0, 0, 5), timer(0, 1, far), timer(0, 2, far), timer(1, 0, far + 3))
    checkpoints = DurableCheckpoints(world.shard.path)
    checkpoints.write()
    checkpoints.close()
    for role in Role:
        world.shard.kill(role)
    directory = world.shard.path
    State.open(directory).note_damage(Damage.CACHE_LOST)
    world.shard.start_dequeue()
    world.shard.start_ingest()
    assert world.engine.marks == {P0: 3, P1: 1}
    assert check(world.shard.path, world.wheel).findings == []
    world.append(timer(0, 3, far))
    assert come_to(world, far - 1) == [0]
    assert come_to(world, far + 3) == [1, 2, 3, 0]


def test_what_is_not_linked_is_counted_as_pending(world: LocalWorld) -> None:
    world.append(timer(0, 0, 5), timer(0, 1, 999), timer(0, 2, 72 * HOUR))
    world.drain()
    directory = DataDirectory(world.shard.path, world.wheel)
    found = PendingTimers(directory).count()
    assert (found.total, found.beyond_ring) == (3, 2)
    directory.close()
    come_to(world, 5)
    world.restart(Role.DEQUEUE)
    come_to(world, 6)
    mirror = world.state.mirror()
    assert mirror is not None
    world.at_slot(1_000)
    mirror = world.state.mirror()
    assert mirror is not None and mirror.delivered_rows == 2


@pytest.mark.parametrize(
    "at",
    [
        27,  # the delay: it looks like a record of another slot
        15,  # the magic of a timer, whose one bit goes
    ],
)
def test_a_damaged_record_beyond_the_ring_is_found_before_its_slot_closes(
    world: LocalWorld, at: int
) -> None:
    far = 5 * 128
    world.append(timer(0, 0, far), timer(0, 1, far + 9))
    path = world.shard.path / "timerlog" / hour_name((SLOT + far) // HOUR)
    data = bytearray(path.read_bytes())
    data[at] ^= 1  # in the first record
    path.write_bytes(data)
    with pytest.raises(RecoveryPending):
        come_to(world, far - 100)
    assert world.offsets() == []
    assert world.state.damage is Damage.FILES_LOST


def test_a_later_lap_may_have_the_entry_of_a_slot_closed_while_a_batch_is_written(
    world: LocalWorld,
) -> None:
    """Dequeue links slot 3 + 128 while ingest writes to slot 3, which is delivered by then."""
    world.append(timer(0, 0, 3 + 128))

    def close() -> None:
        for slot in range(2, 20):
            world.at_slot(slot)

    world.clock.meanwhile = close
    assert world.append(timer(0, 1, 3), timer(0, 2, 9)).rows == 2
    assert world.state.linked >= SLOT + 128 + 3
    assert come_to(world, 30) == [1, 2]
    assert come_to(world, 131) == [0]
    assert check(world.shard.path, world.wheel).findings == []


def test_positions_beyond_the_ring_are_read_from_what_was_committed(world: LocalWorld) -> None:
    directory = world.shard.directory(Role.INGEST)
    ends = ChainEnds(directory.log, PRECISION_MS, index_bytes=1)  # of one hour
    slots = SLOT + np.array([1_000, 1_001, 50 * HOUR], np.int64)
    assert ends.last_positions(slots, directory.state.commit()).tolist() == [NO_POSITION] * 3
    world.append(timer(0, 0, 1_000), timer(0, 1, 1_000), timer(0, 2, 50 * HOUR))
    assert ends.last_positions(slots, directory.state.commit()).tolist() == [52, NO_POSITION, 0]
    world.append(timer(0, 3, 1_001), timer(0, 4, 1_000))
    assert ends.last_positions(slots, directory.state.commit()).tolist() == [104, 156, 0]


def test_a_failed_write_leaves_no_position_behind(tmp_path: Path) -> None:
    host = ManualHost()
    world = started(tmp_path, 64, fs=host)
    world.append(timer(0, 0, 1_000))
    host.writes_left = 1
    with pytest.raises(OSError, match="No space"):
        world.append(timer(0, 1, 1_000), timer(0, 2, 1_001))
    host.writes_left = None
    world.append(timer(0, 1, 1_000), timer(0, 2, 1_001))
    assert come_to(world, 1_001) == [0, 1, 2]
    assert check(world.shard.path, world.wheel).findings == []


def test_the_reach_of_the_ring() -> None:
    for slots in (1, 2, 8, 64, 100, 2_097_152):
        wheel = WheelConfig(1, slots, window_ms=slots, margin_ms=0)
        for lower in (0, 7, 10**9, 10**9 + 12_345):
            reach = wheel.reach(lower)
            assert lower + wheel.ring // 2 <= reach < lower + wheel.ring
            assert wheel.reach(lower + 1) >= reach


def test_a_close_page_of_before_the_ring_moved_takes_back_no_delivery(tmp_path: Path) -> None:
    """Power is lost behind the delivery, and the clock of the next boot closes no slot."""
    host = ManualHost()
    world = CancelWorld(tmp_path / "data", clock_skew_max_ms=1_000, fs=host)
    floor, start_ms = 384, world.clock.now_ms()
    world.append(TimerRow(0, 0, start_ms + 300 * PRECISION_MS))
    world.shard.kill(Role.DEQUEUE)
    world.clock.set(start_ms + floor * PRECISION_MS)
    dequeue = world.shard.start_dequeue()
    dequeue.tick()
    checkpoints = DurableCheckpoints(world.path, host)
    checkpoints.write()
    checkpoints.close()
    world.drain()
    world.clock.step(-3_000)
    world.drain()
    assert world.sources() == ["timers-0@0"]
    delivered = dequeue.delivered_slot
    for role in Role:
        world.shard.kill(role)
    host.boot()
    world.shard.start_dequeue()
    world.shard.start_ingest()
    world.drain()
    assert world.shard.dequeue is not None
    assert world.shard.dequeue.delivered_slot == delivered
    world.clock.step(6_000)
    world.drain()
    assert world.sources() == ["timers-0@0"]
