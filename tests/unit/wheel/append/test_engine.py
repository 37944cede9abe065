"""Ingest's side of the wheel: placement, waiting rows, and concurrent steps of dequeue."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from tests.harness.local_world import NOW_MS, PRECISION_MS, SLOT, LocalWorld, ring, timer
from tests.harness.manual_host import ManualHost
from tests.harness.timelines import wheel_of, wheel_only
from tests.harness.timer_rows import P0, P1, TIMER_TOPIC, TimerRow, timer_batch

from duewheel.checkpoints.commit_and_close_pages import Commit
from duewheel.checkpoints.fs import HOST_FS, FileSystem
from duewheel.checkpoints.process_role import Role
from duewheel.checkpoints.state_file import Damage, State
from duewheel.errors import Locked, RecoveryPending, RecoveryRefused
from duewheel.testing import ManualClock
from duewheel.wheel.append.engine import Appended, Engine
from duewheel.wheel.slots import WheelConfig
from duewheel.wheel.storage import data_directory
from duewheel.wheel.storage.byte_layouts import ENTRY, MAGIC_ABANDONED, RECORD, hour_name
from duewheel.wheel.storage.data_directory import DataDirectory
from duewheel.wheel.storage.full_check import check
from duewheel.wheel.storage.timelines.timer_wheel import TimerWheel

LATER = NOW_MS // 3_600_000 + 5  # an hour in which nothing is due


MakeWorld = Callable[..., LocalWorld]


@pytest.fixture
def make_world(tmp_path: Path) -> MakeWorld:
    def make(slots: int = 64, chunk_records: int = 100, fs: FileSystem = HOST_FS) -> LocalWorld:
        return LocalWorld(
            tmp_path / "data",
            ring(slots),
            fs=fs,
            chunk_records=chunk_records,
            progress_interval_ms=PRECISION_MS,
        )

    return make


# ---- slots ---------------------------------------------------------------------------------------


def test_a_slot_that_is_closed_becomes_the_earliest_open_one(make_world: MakeWorld) -> None:
    world = make_world()
    world.append(timer(0, 0, 5), timer(0, 1, -1_000), TimerRow(0, 2, 2**62, rejected=True))
    world.at_slot(1)
    assert world.offsets() == [1, 2]
    world.at_slot(5)
    assert world.offsets() == [1, 2, 0]


def test_the_files_of_a_slot_are_those_of_its_hour(make_world: MakeWorld) -> None:
    world = make_world()
    hour = NOW_MS // 3_600_000
    # The slot that ends at the full hour belongs to the next one.
    world.set_slot(-2)
    world.append(timer(0, 0, 1), timer(0, 1, 2))
    names = sorted(path.name for path in (world.shard.path / "timerlog").iterdir())
    assert names == [hour_name(hour)]
    assert sorted(p.name for p in (world.shard.path / "messages").iterdir()) == names


# ---- what dequeue does meanwhile -----------------------------------------------------------------


def test_rows_of_slots_closed_meanwhile_join_those_of_the_earliest_open_one(
    make_world: MakeWorld,
) -> None:
    world = make_world(chunk_records=1)

    def close() -> None:
        world.set_slot(2)
        world.dequeue.tick()

    world.clock.meanwhile = close
    rows = (timer(0, 0, 2), timer(0, 1, 3), timer(0, 2, 1), timer(0, 3, 4), timer(0, 4, 3))
    assert world.append(*rows) == Appended(5)
    timeline = world.shard.directory(Role.INGEST).timeline
    runs, _ = timeline.runs(SLOT, SLOT + world.wheel.ring, 100)
    assert [(slot - SLOT, n) for slot, n in zip(runs.slot, runs.count, strict=True)] == [
        (3, 4),
        (4, 1),
    ]
    log = (world.shard.path / "timerlog" / hour_name(NOW_MS // 3_600_000)).read_bytes()
    abandoned = np.frombuffer(log, RECORD)["magic"] == MAGIC_ABANDONED
    assert abandoned.tolist() == [True] * 4 + [False] * 5
    assert check(world.shard.path, world.wheel).findings == []
    world.at_slot(4)
    assert world.offsets() == [0, 1, 2, 4, 3]


def test_a_whole_batch_may_be_closed_meanwhile_and_move_to_another_hour(
    make_world: MakeWorld,
) -> None:
    world = make_world()
    hour_slots = 3_600_000 // PRECISION_MS
    world.at_slot(hour_slots - 10)
    world.dequeue.tick()

    def close() -> None:
        world.at_slot(hour_slots + 3)

    world.clock.meanwhile = close
    world.append(*(timer(0, offset, hour_slots - 2 + offset % 3) for offset in range(6)))
    world.at_slot(hour_slots + 4)
    assert world.offsets() == list(range(6))
    assert check(world.shard.path, world.wheel).findings == []


def test_closing_waits_for_a_batch_that_is_being_committed(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = make_world()
    monkeypatch.setattr(data_directory, "LOCK_DEADLINE_S", 0.01)
    write_commit = State.write_commit
    world.set_slot(2)

    def close_meanwhile(state: State, commit: Commit) -> None:
        with pytest.raises(Locked):
            world.dequeue.tick()
        write_commit(state, commit)

    monkeypatch.setattr(State, "write_commit", close_meanwhile)
    world.append(timer(0, 0, 1))
    close = world.state.close()
    assert close is not None and close.floor == SLOT
    monkeypatch.undo()
    world.drain()
    assert world.offsets() == [0]


# ---- marks and files -----------------------------------------------------------------------------


def test_an_empty_batch_moves_the_marks(make_world: MakeWorld) -> None:
    world = make_world()
    assert world.engine.append(timer_batch([]), {P0: 7, ("added", 2): 3}) == Appended(0)
    assert world.engine.marks == {P0: 7, P1: 0, ("added", 2): 3}
    batch = world.state.commit().batch
    assert world.engine.append(timer_batch([]), {P0: 7}) == Appended(0)
    assert world.state.commit().batch == batch


def test_what_the_engine_s_caller_must_not_do_is_asserted(make_world: MakeWorld) -> None:
    world = make_world()
    world.append(timer(0, 0, 1), timer(0, 5, 1))
    for rows, marks, reason in (
        ([timer(0, 5, 1)], {P0: 7}, "taken twice"),
        ([timer(0, 8, 1), timer(0, 7, 1)], {P0: 9}, "offsets rise"),
        ([timer(0, 8, 1)], {P0: 8}, "below the new mark"),
        ([], {P0: 5}, "never fall"),
    ):
        with pytest.raises(AssertionError, match=reason):
            world.engine.append(timer_batch(rows), marks)


def test_a_failed_write_changes_nothing(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = ManualHost()
    world = make_world(fs=host)
    world.append(timer(0, 0, 1), timer(0, 1, 5))
    before = world.state.commit()
    host.in_halves = True
    for writes in range(100):
        host.writes_left = writes
        try:
            world.append(timer(0, 2, 1), timer(0, 3, 3), timer(0, 4, 5))
            break
        except OSError:
            assert world.state.commit() == before
    host.writes_left = None
    assert writes > 4
    world.at_slot(5)
    assert world.offsets() == [0, 2, 3, 1, 4]
    assert check(world.shard.path, world.wheel).findings == []


def test_a_start_cuts_what_was_never_committed(make_world: MakeWorld) -> None:
    world = make_world()
    world.append(timer(0, 0, 1))
    world.shard.kill(Role.INGEST)
    folders = [world.shard.path / name for name in ("timerlog", "messages")]
    known = {path: path.read_bytes() for folder in folders for path in folder.iterdir()}
    assert len(known) == 2
    for path in known:
        with path.open("ab") as file:
            file.write(b"never committed")
        (path.parent / hour_name(LATER)).write_bytes(b"nor this")
    world.shard.start_ingest()
    for path, data in known.items():
        assert path.read_bytes() == data
        assert (path.parent / hour_name(LATER)).read_bytes() == b""


def test_a_lost_topic_name_is_not_given_to_another_topic(make_world: MakeWorld) -> None:
    world = make_world()
    world.append(timer(0, 0, 1))
    world.shard.kill(Role.INGEST)
    path = world.shard.path / "topics"
    path.write_bytes(path.read_bytes()[:-1])
    (finding,) = check(world.shard.path, world.wheel).findings
    assert finding.file == "topics"
    with pytest.raises(RecoveryPending, match="topic names can be read"):
        world.shard.start_ingest()


@wheel_only
def test_an_entry_is_missed_until_a_later_lap_has_taken_it(make_world: MakeWorld) -> None:
    world = make_world(slots=8)
    world.append(timer(0, 0, 1))
    path = world.shard.path / "timerwheel"
    whole = path.read_bytes()
    world.at_slot(1)
    for time in (SLOT + 1 - 16, SLOT + 1 + (16 << 20)):  # of no record that there is
        entries = np.frombuffer(bytearray(whole), ENTRY)
        entries["time"][(SLOT + 1) % 16] = time
        path.write_bytes(entries.tobytes())
        (finding,) = check(world.shard.path, world.wheel).findings
        assert (finding.file, finding.code) == ("timerwheel", "entry_lost")
    path.write_bytes(bytes(len(whole)))
    codes = Counter(found.code for found in check(world.shard.path, world.wheel).findings)
    assert codes == {"entry_lost": 1, "entry_place": 16}
    path.write_bytes(whole)
    world.at_slot(10)
    world.append(timer(0, 1, 17))
    assert check(world.shard.path, world.wheel).findings == []


def test_whoever_takes_the_lock_next_finishes_a_killed_batch(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = make_world()
    world.append(timer(0, 0, 1))

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(world.shard.directory(Role.INGEST).timeline, "append", die)
        with pytest.raises(KeyboardInterrupt):
            world.append(timer(0, 1, 1), timer(0, 2, 3))
    world.shard.kill(Role.INGEST)
    world.at_slot(1)  # ingest is dead, and its last batch is there
    assert world.offsets() == [0, 1]
    assert world.shard.start_ingest().marks == {P0: 3, P1: 0}
    assert check(world.shard.path, world.wheel).findings == []


@wheel_only
@pytest.mark.parametrize("field", ["prev_pos", "write_time", "offset_py", "reserved"])
def test_a_damaged_batch_is_not_linked_again(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch, field: str
) -> None:
    world = make_world()
    world.append(timer(0, 0, 1), timer(0, 1, 2))
    wheel = wheel_of(world.shard.directory(Role.INGEST))
    with monkeypatch.context() as patch:
        patch.setattr(TimerWheel, "apply", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            world.append(timer(0, 2, 1))
    before = wheel.snapshot()
    (path,) = (world.shard.path / "timerlog").iterdir()
    records = np.frombuffer(bytearray(path.read_bytes()), RECORD)
    records[field][-1] += PRECISION_MS  # another slot, if it is the time
    path.write_bytes(records.tobytes())
    with pytest.raises(RecoveryPending):
        world.append(timer(0, 3, 3))
    assert np.array_equal(wheel.snapshot(), before)


@pytest.mark.parametrize("role", list(Role))
def test_a_batch_whose_commit_page_is_lost_is_not_taken_again(
    make_world: MakeWorld, role: Role
) -> None:
    world = make_world()
    for offset in range(3):
        world.append(timer(0, offset, 2))
    for each in Role:
        world.shard.kill(each)
    path = world.shard.path / "state"
    newest = b'{"batch":4,'
    whole = path.read_bytes()
    assert whole.count(newest) == 1
    path.write_bytes(whole.replace(newest, newest.replace(b"4", b"5")))
    assert "batch 4" in check(world.shard.path, world.wheel).findings[0].detail
    directory = DataDirectory.start(world.shard.path, world.wheel, role)
    assert directory.state.damage is Damage.CACHE_LOST
    directory.close()
    assert "to be recovered" in check(world.shard.path, world.wheel).findings[0].detail


@pytest.mark.parametrize("hour", [-1, 10**9])
def test_hours_that_are_not_delivered_are_not_given_up(make_world: MakeWorld, hour: int) -> None:
    world = make_world()
    world.append(timer(0, 0, 2))
    world.state.live.set_gc_hour(hour)  # as damage would
    (finding,) = check(world.shard.path, world.wheel).findings
    assert f"hours below {hour} are dropped" in finding.detail
    for each in Role:
        world.shard.kill(each)
    directory = DataDirectory.start(world.shard.path, world.wheel, Role.DEQUEUE)
    assert directory.state.damage is Damage.CACHE_LOST
    directory.close()


def test_the_engine_needs_a_floor(tmp_path: Path) -> None:
    directory = DataDirectory.start(tmp_path, WheelConfig(), Role.INGEST)
    with pytest.raises(RecoveryRefused, match="dequeue must have started here once"):
        Engine(directory, ManualClock())
    directory.close()


@wheel_only
def test_what_a_slot_holds_is_checked_over_all_pieces_of_its_log(make_world: MakeWorld) -> None:
    world = make_world()
    for offset in range(0, 9, 3):
        world.append(timer(0, offset, 1), timer(0, offset + 1, 1), timer(0, offset + 2, 2))
    check_in_pieces = partial(check, world.shard.path, world.wheel, block_records=2)
    whole = check_in_pieces()
    assert (whole.records, whole.findings) == (9, [])
    (path,) = (world.shard.path / "timerlog").iterdir()
    records = np.memmap(path, RECORD, "r+")
    records["prev_pos"][5] = 0  # slot 2 in the second batch: its last record is at 2 * 52
    chain, message = check_in_pieces().findings
    assert (chain.code, chain.offset, message.code) == ("chain", 5 * 52, "message_checksum")
    records["prev_pos"][5] = 2 * 52
    entries = np.memmap(world.shard.path / "timerwheel", ENTRY, "r+")
    entries["num"][(SLOT + 1) % len(entries)] = 5
    (finding,) = check_in_pieces().findings
    assert finding.code == "entry_num"


def test_a_record_that_was_never_committed_is_no_lost_entry(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It lies where the place's earlier slot has its last record, in the file of another hour."""
    world = make_world(slots=8)
    earlier = 360_000 - 10  # slots of an hour
    world.at_slot(earlier - 5)
    world.append(timer(0, 0, earlier))
    world.at_slot(earlier + 1)
    with monkeypatch.context() as patch:

        def fails(*_: object) -> None:
            raise OSError("killed before the commit page")

        patch.setattr(State, "write_commit", fails)
        with pytest.raises(OSError, match="killed"):
            world.append(timer(0, 1, earlier + 16))
    world.at_slot(earlier + 17)
    world.append(timer(0, 1, earlier + 16))
    world.at_slot(earlier + 18)
    assert world.state.damage is Damage.NONE
    assert check(world.shard.path, world.wheel).findings == []


def test_topics_that_come_later_are_known_by_their_ids(make_world: MakeWorld) -> None:
    world = make_world()
    world.append(timer(0, 0, 30))
    world.engine.add_topic_ids({TIMER_TOPIC: "id 1"})
    world.engine.add_topic_ids({TIMER_TOPIC: "id 1", "later": "id 2"})
    world.append(timer(0, 1, 30))
    assert world.state.commit().topic_ids == {TIMER_TOPIC: "id 1", "later": "id 2"}
    with pytest.raises(RecoveryRefused, match="'later' has the id id 3, it had id 2"):
        world.engine.add_topic_ids({"later": "id 3"})
    world.at_slot(31)
    assert world.publisher.committed[-1][1].topic_ids == {TIMER_TOPIC: "id 1", "later": "id 2"}
