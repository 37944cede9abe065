"""What every timeline must do: the same steps for each kind, seen by its writer and by a reader.

Also of wheel_check.py.
"""

from __future__ import annotations

import shutil
import uuid
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from tests.harness.killed import Killed, die
from tests.harness.local_world import NOW_MS, PRECISION_MS, SLOT, LocalWorld
from tests.harness.recovery_world import RecoveryWorld, half_delivered
from tests.harness.timer_rows import TimerRow

from duewheel.checkpoints.fs import FileSystem
from duewheel.checkpoints.process_role import Role
from duewheel.errors import Locked, RecoveryPending
from duewheel.wheel.slots import HOUR_MS, TimelineKind, WheelConfig, hour_of
from duewheel.wheel.storage.byte_layouts import RECORD_BYTES
from duewheel.wheel.storage.full_check import check
from duewheel.wheel.storage.runs import Runs
from duewheel.wheel.storage.timelines.kinds import FILES, timeline_class
from duewheel.wheel.storage.timelines.rocksdb_files import BUFFER_BYTES, CACHE_BYTES, NewRocksdb
from duewheel.wheel.storage.timelines.rocksdb_timeline import RocksdbTimeline
from duewheel.wheel.storage.timelines.timeline import Timeline

ALL = 1 << 40
KINDS = sorted(FILES)


def config_of(kind: TimelineKind) -> WheelConfig:
    return WheelConfig(PRECISION_MS, 4096, 40_000, margin_ms=0, timeline=kind)


@pytest.fixture(params=KINDS)
def world(request: pytest.FixtureRequest, tmp_path: Path) -> LocalWorld:
    return LocalWorld(tmp_path, config_of(request.param))


def append(world: LocalWorld, *slots: int) -> None:
    """A batch with a timer in each slot, counted from the start."""
    world.put(*(slot * PRECISION_MS for slot in slots))


def of(world: LocalWorld, role: Role) -> Timeline:
    timeline = world.shard.directory(role).timeline
    timeline.refresh()
    return timeline


def found(
    timeline: Timeline, after: int, until: int, records_max: int = ALL
) -> tuple[list[tuple[int, int, int]], int]:
    """Slot, first record and length of each run, and the last slot that they cover."""
    runs, end = timeline.runs(SLOT + after, SLOT + until, records_max)
    first = runs.first_pos // RECORD_BYTES
    rows = zip((runs.slot - SLOT).tolist(), first.tolist(), runs.count.tolist(), strict=True)
    return list(rows), end - SLOT


@pytest.mark.parametrize("role", Role)
def test_runs_come_by_slot_and_then_as_they_were_appended(world: LocalWorld, role: Role) -> None:
    append(world, 7, 3, 7, 900)
    append(world, 7, 5)
    append(world, 3)
    timeline = of(world, role)
    whole = [(3, 0, 1), (3, 6, 1), (5, 4, 1), (7, 1, 2), (7, 5, 1)]
    assert found(timeline, 0, 100) == (whole, 100)
    assert found(timeline, 3, 6) == ([(5, 4, 1)], 6)
    assert found(timeline, 7, 100) == ([], 100)
    assert timeline.is_empty(SLOT + 7, SLOT + 899)
    assert not timeline.is_empty(SLOT + 7, SLOT + 900)
    assert timeline.count(SLOT + 3, SLOT + 900) == 5
    assert timeline.newest_batch(3) == 4  # the start has made an empty one


@pytest.mark.parametrize("role", Role)
@pytest.mark.parametrize(
    ("records_max", "slots", "end"), [(1, 1, 4), (5, 1, 4), (6, 2, 8), (9, 3, 9)]
)
def test_as_many_whole_slots_as_fit_but_one_at_least(
    world: LocalWorld, role: Role, records_max: int, slots: int, end: int
) -> None:
    for _ in range(5):
        append(world, 2)
    append(world, 5, 9, 9)
    rows, covered = found(of(world, role), 0, 9, records_max)
    assert [slot for slot, *_ in rows] == [2, 2, 2, 2, 2, 5, 9][: 4 + slots]
    assert covered == end


def test_a_slot_with_more_runs_than_are_read_at_a_time_is_whole(tmp_path: Path) -> None:
    """Of RocksDB; in the wheel a chain has its end."""
    world = LocalWorld(tmp_path, config_of("rocksdb"))
    append(world, 2, 3)
    timeline = world.shard.directory(Role.INGEST).timeline
    count = 10_000
    first = np.arange(1, count + 1) * RECORD_BYTES
    ones = np.ones(count, np.int64)
    timeline.append(Runs(ones * (SLOT + 2), first, first, ones, ones), 2)
    rows, covered = found(timeline, 0, 9, records_max=10)
    assert (len(rows), covered) == (count + 1, 2)


def test_a_batch_that_comes_twice_is_there_once(world: LocalWorld) -> None:
    append(world, 2, 2, 5)
    directory = world.shard.directory(Role.INGEST)
    hour, lengths = next(iter(directory.state.commit().hours.items()))
    records = directory.log.read(hour, 0, lengths.log_bytes)
    batch = directory.state.commit().batch
    directory.append_runs(directory.log.runs(hour, records, 0, PRECISION_MS), batch)
    for role in Role:
        assert found(of(world, role), 0, 9) == ([(2, 0, 2), (5, 2, 1)], 9)
    assert check(world.path, world.wheel).findings == []


def test_a_cleared_timeline_lacks_what_the_log_has(world: LocalWorld) -> None:
    append(world, 2, 2, 5)
    of(world, Role.INGEST).clear(world.state.commit().batch)
    for role in Role:
        assert found(of(world, role), 0, 9) == ([], 9)
    assert {each.code for each in check(world.path, world.wheel).findings} & {
        "entry_lost",
        "run_lost",
    }


@pytest.mark.parametrize("kind", KINDS)
def test_a_killed_batch_is_finished_by_dequeue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: TimelineKind
) -> None:
    """As long as no ingest is there: one process writes."""
    world = LocalWorld(tmp_path, config_of(kind))
    append(world, 1)
    with monkeypatch.context() as patched:
        patched.setattr(timeline_class(kind), "append", die)
        with pytest.raises(Killed):
            append(world, 1, 2)
    if kind == "rocksdb":
        with pytest.raises(Locked):
            world.at_slot(1)
    world.shard.kill(Role.INGEST)
    world.at_slot(2)
    assert world.sources() == ["timers-0@0", "timers-0@1", "timers-0@2"]
    world.shard.start_ingest()
    append(world, 3)
    world.at_slot(3)
    assert len(world.sources()) == 4
    assert check(world.path, world.wheel).findings == []


@pytest.mark.parametrize("kind", KINDS)
def test_another_kind_is_built_at_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: TimelineKind
) -> None:
    """From the logs that were synced, or from Kafka; there and back."""
    world = RecoveryWorld(tmp_path, monkeypatch)
    world.restart_with(kind)
    half_delivered(world)
    for other in [each for each in KINDS if each != kind] + [kind]:
        world.checkpoint()
        assert world.restart_with(other) == "power lost"
        assert [name for name in FILES.values() if (world.path / name).exists()] == [FILES[other]]
        world.write(1, 40)
        world.ingest()
    world.finish()


@pytest.mark.parametrize("kind", KINDS)
def test_chains_are_no_obstacle_for_rocksdb(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: TimelineKind
) -> None:
    """It is built from logs whose slots have several runs; the wheel needs their chains."""
    (other,) = (each for each in KINDS if each != kind)
    world = RecoveryWorld(tmp_path, monkeypatch)
    world.restart_with(other)
    for _ in range(3):
        world.write(0, 40, 40)
        world.ingest()
    marks = dict(world.engine.marks)
    world.checkpoint()
    assert world.restart_with(kind) == "power lost"
    assert (dict(world.engine.marks) == marks) == (kind == "rocksdb")
    world.ingest()
    assert check(world.path, world.wheel).findings == []
    world.finish()


@pytest.mark.parametrize("kind", KINDS)
def test_processes_with_different_timelines_lose_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: TimelineKind
) -> None:
    """Each start removes the other's. Dequeue ends, instead of finding all slots empty."""
    (other,) = (each for each in KINDS if each != kind)
    world = RecoveryWorld(tmp_path, monkeypatch)
    world.write(0, 5, 6)
    world.ingest()
    world.kill()
    world.take_timeline(other)
    world.boot = str(uuid.uuid4())  # power lost: ingest has a recovery to apply
    world.shard.start_dequeue()
    world.take_timeline(kind)
    world.shard.start_ingest()
    world.ingest()
    with pytest.raises(RecoveryPending):
        world.at_slot(9)
    assert world.sources() == []
    world.kill()
    world.start()
    world.finish()


def test_the_first_timer_of_an_hour_is_far(world: LocalWorld) -> None:
    """Beyond the wheel's ring, within RocksDB's reach: it leaves at its time."""
    world.append(TimerRow(0, 0, NOW_MS + 30_000 * PRECISION_MS))
    world.at_slot(29_999)
    assert world.sources() == []
    world.at_slot(30_000)
    assert world.sources() == ["timers-0@0"]


def test_rocksdb_drops_the_runs_of_expired_hours(tmp_path: Path) -> None:
    """The wheel's ring is used again; a database would grow with all that ever was delivered."""
    world = LocalWorld(tmp_path, config_of("rocksdb"))
    append(world, 2, 3)
    world.at_slot(9)
    world.state.live.set_gc_hour(hour_of(SLOT, PRECISION_MS) + 1)
    next_hour = HOUR_MS // PRECISION_MS
    append(world, next_hour + 1)
    for role in Role:
        assert found(of(world, role), 0, next_hour - 1)[0] == []
        assert not of(world, role).is_empty(SLOT + next_hour, SLOT + next_hour + 1)


def test_a_batch_is_seen_however_early_one_looks_for_it(
    world: LocalWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who reads without engine.lock may look between a batch's commit page and its runs."""
    writer, append_runs = of(world, Role.INGEST), type(of(world, Role.INGEST)).append

    def late(timeline: Timeline, runs: Runs, batch: int) -> None:
        if timeline is writer:
            assert found(of(world, Role.DEQUEUE), 0, 9) == ([], 9)
        append_runs(timeline, runs, batch)

    monkeypatch.setattr(type(writer), "append", late)
    append(world, 2)
    assert found(of(world, Role.DEQUEUE), 0, 9) == ([(2, 0, 1)], 9)


def test_a_reader_of_rocksdb_catches_up_once_for_each_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = LocalWorld(tmp_path, config_of("rocksdb"))
    catch_up, calls = RocksdbTimeline._catch_up, []  # noqa: SLF001

    def counted(timeline: RocksdbTimeline) -> None:
        calls.append(timeline)
        catch_up(timeline)

    monkeypatch.setattr(RocksdbTimeline, "_catch_up", counted)
    of(world, Role.DEQUEUE)
    calls.clear()
    for number in range(1, 4):
        append(world, number)
        for _ in range(3):
            rows, _ = found(of(world, Role.DEQUEUE), 0, 9)
            assert len(rows) == len(calls) == number


@pytest.mark.parametrize("step", ["sync_tree", "put_in_place", "sync_directory"])
def test_a_database_whose_maker_was_killed_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    config = config_of("rocksdb")
    owner = NewRocksdb if step == "put_in_place" else FileSystem
    with monkeypatch.context() as patched:
        patched.setattr(owner, step, die)
        with pytest.raises(Killed):
            LocalWorld(tmp_path, config)
    world = LocalWorld(tmp_path, config)
    append(world, 2)
    assert found(of(world, Role.DEQUEUE), 0, 9) == ([(2, 0, 1)], 9)
    assert not list(tmp_path.glob("*.new"))


def test_the_memory_of_rocksdb_is_bounded(tmp_path: Path) -> None:
    """docs/timelines.md: so much for blocks, with what finds them, and two buffers in a process,
    whatever is pending. A million runs take more.
    """
    world = LocalWorld(tmp_path, config_of("rocksdb"))
    writer, rng, span = of(world, Role.INGEST), np.random.default_rng(1), 10**7
    assert isinstance(writer, RocksdbTimeline)
    most: Counter[str] = Counter()
    for batch in range(2, 23):
        slots = np.unique(rng.integers(SLOT, SLOT + span, 50_000))
        ones = np.ones(len(slots), np.int64)
        first = (batch << 32) + np.arange(len(slots)) * RECORD_BYTES
        writer.append(Runs(slots, first, first, ones, ones), batch)
        most |= held(writer)
    rows, _ = writer.runs(SLOT - 1, SLOT + span, ALL)
    assert len(rows) > 1_000_000
    most |= held(writer)
    mib = 1 << 20
    assert mib < most["block-cache-usage"] < CACHE_BYTES + mib
    assert BUFFER_BYTES / 2 < most["cur-size-all-mem-tables"] < 2 * BUFFER_BYTES + 2 * mib
    assert most["estimate-table-readers-mem"] < mib
    world.kill()


def held(timeline: RocksdbTimeline) -> Counter[str]:
    """Bytes of its parts in this process, as RocksDB says."""
    names = ("block-cache-usage", "cur-size-all-mem-tables", "estimate-table-readers-mem")
    database = timeline._db  # noqa: SLF001
    return Counter({n: database.property_int_value(f"rocksdb.{n}") or 0 for n in names})


@pytest.mark.parametrize(("at", "case"), [(0, "power lost"), (-16, "files lost")])
def test_damaged_bytes_in_the_log_of_rocksdb_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int, case: str
) -> None:
    """Behind a kill it is read again: runs behind the damage must not be missing unnoticed. RocksDB
    refuses a key; in the length before it, it sees the end of the log.
    """
    world = RecoveryWorld(tmp_path, monkeypatch)
    world.restart_with("rocksdb")
    world.checkpoint()
    for slot in range(20, 40):
        world.write(0, slot)
        world.ingest()
    # As a kill leaves it: to close a database is to flush it.
    killed = world.path.with_name("killed")
    shutil.copytree(world.path, killed)
    world.become(killed)
    (log,) = (each for each in (world.path / "rocksdb").rglob("*.log") if each.stat().st_size)
    damaged = bytearray(log.read_bytes())
    damaged[damaged.index((SLOT + 30).to_bytes(8, "big")) + at] ^= 0xFF
    log.write_bytes(damaged)
    if case == "files lost":
        with pytest.raises(RecoveryPending, match="newest"):
            world.start()
        world.kill()
    assert world.start() == case
    world.finish()
