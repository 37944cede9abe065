"""What RocksDB alone can meet: a lost log, a full disk, readers beside its writer.

Also of rocksdb_check.py, rocksdb_keys.py.
"""

from __future__ import annotations

import errno
import os
import resource
import shutil
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from rocksdict import Rdict, WriteBatch
from tests.harness.local_world import PRECISION_MS, SLOT, LocalWorld
from tests.harness.recovery_world import RecoveryWorld

from duewheel.checkpoints.file_lock import FileLock
from duewheel.checkpoints.fs import HOST_FS, READING_FS
from duewheel.checkpoints.process_role import Role
from duewheel.checkpoints.state_file import Damage
from duewheel.errors import CorruptFile, RecoveryPending
from duewheel.wheel.slots import WheelConfig
from duewheel.wheel.storage.data_directory import DataDirectory
from duewheel.wheel.storage.full_check import check
from duewheel.wheel.storage.timelines import rocksdb_files, rocksdb_readers
from duewheel.wheel.storage.timelines.rocksdb_timeline import RocksdbTimeline

CONFIG = WheelConfig(PRECISION_MS, 4096, 40_000, margin_ms=0, timeline="rocksdb")


@pytest.fixture
def world(tmp_path: Path) -> LocalWorld:
    return LocalWorld(tmp_path / "data", CONFIG)


@pytest.fixture
def losing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RecoveryWorld:
    """It has timers whose runs are in the write-ahead log only."""
    world = RecoveryWorld(tmp_path, monkeypatch)
    world.restart_with("rocksdb")
    for slot in (30, 40, 50):
        world.write(0, slot)
        world.ingest()
    return world


def put(world: LocalWorld, *slots: int) -> None:
    world.put(*(slot * PRECISION_MS for slot in slots))


def database(path: Path, number: int = 0) -> Path:
    return rocksdb_files.database(path, number)


def newest_log(path: Path) -> Path:
    return max(database(path, rocksdb_files.newest(path)).glob("*.log"))


def flushed(world: LocalWorld) -> list[Path]:
    """Makes tables of all logs, as a full buffer does; returns the tables."""
    of(world, Role.INGEST)._db.flush()  # noqa: SLF001
    return sorted(database(world.path, rocksdb_files.newest(world.path)).glob("*.sst"))


def of(world: LocalWorld, role: Role) -> RocksdbTimeline:
    timeline = world.shard.directory(role).timeline
    assert isinstance(timeline, RocksdbTimeline)
    return timeline


def refreshed(world: LocalWorld) -> RocksdbTimeline:
    """Dequeue's, up to the newest batch."""
    reader = of(world, Role.DEQUEUE)
    reader.refresh(world.state.commit().batch)
    return reader


def has(timeline: RocksdbTimeline, slot: int) -> bool:
    return not timeline.is_empty(SLOT + slot - 1, SLOT + slot)


@contextmanager
def without_descriptors() -> Iterator[None]:
    """Leaves one descriptor to this process."""
    free = os.dup(0)
    os.close(free)
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free + 1, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_a_table_is_noticed_that_the_database_has_forgotten(losing: RecoveryWorld) -> None:
    """The list of tables was cut. RocksDB opens with what is left, which has the newest batch."""
    losing.checkpoint()
    folder = database(losing.path, rocksdb_files.newest(losing.path))
    (tables,) = folder.glob("MANIFEST-*")
    size = tables.stat().st_size
    assert flushed(losing)
    losing.write(0, 60)
    losing.ingest()
    files = losing.path.with_name("files")
    shutil.copytree(losing.path, files, symlinks=True)  # as a kill leaves them
    os.truncate(files / tables.relative_to(losing.path), size)
    losing.become(files)
    with pytest.raises(RecoveryPending, match="batches"):
        losing.start()
    losing.kill()
    assert losing.start() == "files lost"
    losing.finish()


@pytest.mark.parametrize(
    "spoil",
    [
        Path.unlink,
        lambda log: os.truncate(log, log.stat().st_size - 20),
    ],
    ids=["deleted", "cut"],
)
def test_a_lost_end_of_the_log_is_noticed(
    losing: RecoveryWorld, spoil: Callable[[Path], object]
) -> None:
    """RocksDB opens with what is left, and says nothing."""
    files = losing.path.with_name("files")
    shutil.copytree(losing.path, files, symlinks=True)  # as a kill leaves them
    spoil(newest_log(files))
    losing.become(files)
    with pytest.raises(RecoveryPending, match="newest"):
        losing.start()
    losing.kill()
    assert losing.start() == "files lost"
    losing.finish()


def test_a_database_that_can_only_be_read_is_built_anew(losing: RecoveryWorld) -> None:
    losing.checkpoint()
    losing.kill()
    lock = database(losing.path, rocksdb_files.newest(losing.path)) / "LOCK"
    lock.unlink()
    lock.mkdir()
    losing.shard.start_dequeue()
    with pytest.raises(RecoveryPending):
        losing.shard.start_ingest()
    losing.kill()
    assert losing.start() == "power lost"
    losing.finish()


def test_a_reader_follows_into_the_next_database_whatever_is_left_of_the_last(
    world: LocalWorld,
) -> None:
    """A reader that was about to open the last one makes its folder again."""
    put(world, 5)
    reader, writer = (world.shard.directory(role).timeline for role in (Role.DEQUEUE, Role.INGEST))
    reader.refresh()
    batch = world.state.commit().batch
    old = rocksdb_files.newest(world.path)
    writer.clear(batch)
    database(world.path, old).mkdir(exist_ok=True)
    reader.refresh(batch)
    assert reader.is_empty(SLOT, SLOT + 9)


def two_tables_and_a_log(world: LocalWorld) -> list[Path]:
    """Slots 5 and 6 are in tables, of which a reader has read the logs; 7 is in a newer log."""
    for slot in (5, 6):
        put(world, slot, 9)
        refreshed(world)
        tables = flushed(world)
    put(world, 7)
    return tables


def test_a_reader_reads_again_when_tables_are_compacted_before_it_opens_them(
    world: LocalWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has forgotten the logs, for which there are tables, and has no table, and no error."""
    tables, looks, files = two_tables_and_a_log(world), [], rocksdb_files.files

    def meanwhile(path: Path, number: int) -> rocksdb_files.Files:
        looks.append(number)
        if len(looks) == 1:
            for table in tables:  # the writer has them open
                table.unlink()
        if len(looks) == 2:  # nothing of the log
            keys: list[Any] = [(SLOT + slot).to_bytes(8, "big") for slot in (5, 6)]
            of(world, Role.INGEST)._db.compact_range(*keys)  # noqa: SLF001
        return files(path, number)

    monkeypatch.setattr(rocksdb_files, "files", meanwhile)
    reader = refreshed(world)
    assert [slot for slot in (5, 6, 7) if has(reader, slot)] == [5, 6, 7]


def test_a_reader_reads_again_when_a_log_has_become_a_table_meanwhile(
    world: LocalWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It had read which tables there are before that, and finds the log no more."""
    put(world, 5)
    refreshed(world)
    looks, files = [], rocksdb_files.files

    def meanwhile(path: Path, number: int) -> rocksdb_files.Files:
        looks.append(number)
        if len(looks) == 2:
            flushed(world)
        return files(path, number)

    put(world, 6)
    monkeypatch.setattr(rocksdb_files, "files", meanwhile)
    assert has(refreshed(world), 6)
    assert len(looks) > 2


def test_a_table_that_a_reader_cannot_read_is_damage(world: LocalWorld) -> None:
    """To RocksDB it is one that was compacted: it goes on without it."""
    for table in two_tables_and_a_log(world):
        os.truncate(table, 100)
    with pytest.raises(CorruptFile, match="size mismatch"):
        refreshed(world)


def test_a_table_is_missed_although_an_hour_was_dropped_since(world: LocalWorld) -> None:
    """It may have timers of later hours; the log behind it has the first batch that is kept."""
    put(world, 5)
    refreshed(world)
    (table,) = flushed(world)
    put(world, 6)
    of(world, Role.INGEST).forget_below(SLOT + 1)
    put(world, 7)
    os.truncate(table, 100)
    with pytest.raises(CorruptFile, match=table.name):
        refreshed(world)


def test_an_old_table_is_missed_by_a_reader_that_opens_the_database_again(
    world: LocalWorld,
) -> None:
    """Without the keys of its batches; it was open until then."""
    put(world, 5)
    (table,) = flushed(world)
    refreshed(world)
    for slot in (6, 7, 8):
        put(world, slot)
        of(world, Role.INGEST).forget_below(SLOT + slot - 5)
    assert has(refreshed(world), 5)
    table.unlink()
    flushed(world)
    put(world, 9)
    with without_descriptors(), pytest.raises(OSError, match="Too many open files"):
        refreshed(world)
    with pytest.raises(CorruptFile, match=table.name):
        refreshed(world)


def test_the_memory_of_a_reader_does_not_grow_with_the_batches_that_are_kept(
    world: LocalWorld,
) -> None:
    """While delivery is paused no hour is dropped: 430,000 in a day, of five a second."""
    writer, first = of(world, Role.INGEST), world.state.commit().batch + 1
    many = WriteBatch(raw_mode=True)
    for batch in range(first, first + 200_000):
        many.put(b"\xff" * 8 + batch.to_bytes(8, "big"), b"")
    writer._write(many)  # noqa: SLF001
    reader = of(world, Role.DEQUEUE)
    tracemalloc.start()
    try:
        reader.refresh()
        assert tracemalloc.get_traced_memory()[1] < 2 << 20
    finally:
        tracemalloc.stop()
    assert reader.newest_batch(0) == first + 199_999


def test_a_reader_that_failed_half_way_has_everything_later(world: LocalWorld) -> None:
    """No descriptor was left for tables and logs, which is no damage."""
    two_tables_and_a_log(world)
    with without_descriptors(), pytest.raises(OSError, match="Too many open files") as refused:
        refreshed(world)
    assert refused.value.errno == errno.EMFILE
    reader = refreshed(world)
    assert [slot for slot in (5, 6, 7) if has(reader, slot)] == [5, 6, 7]


def test_a_reader_follows_into_a_database_with_the_number_of_its_own(
    losing: RecoveryWorld,
) -> None:
    """As after the loss of the whole folder: numbers begin again."""
    number = rocksdb_files.newest(losing.path)
    with closing(DataDirectory(losing.path, losing.wheel, READING_FS)) as reading:
        reader = reading.timeline
        reader.refresh()
        losing.kill()
        shutil.rmtree(losing.path / rocksdb_files.FOLDER)
        assert losing.start() == "files lost"
        losing.ingest()
        losing.write(0, 60)
        losing.ingest()
        assert rocksdb_files.newest(losing.path) == number
        reader.refresh(losing.state.commit().batch)
        assert not reader.is_empty(SLOT + 59, SLOT + 60)
    losing.finish()


def test_the_database_can_be_opened_at_each_step_of_a_rebuild(
    world: LocalWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without one a start of dequeue would make another, beside ingest's."""
    put(world, 5)
    opened, looking, seen = rocksdb_files._opened, [False], []  # noqa: SLF001

    def looked(*arguments: Any) -> Rdict:
        if not looking[0]:
            looking[0] = True
            seen.append(RocksdbTimeline.exists(world.path, CONFIG, READING_FS))
            looking[0] = False
        return opened(*arguments)

    monkeypatch.setattr(rocksdb_files, "_opened", looked)
    of(world, Role.INGEST).clear(world.state.commit().batch)
    assert seen == [True, True]


@pytest.mark.parametrize("restarts", [1, 8])
def test_a_reader_sees_a_batch_whose_log_became_a_table_before_it_looked(
    world: LocalWorld, restarts: int
) -> None:
    """A stop of ingest makes a table of the log; what the reader had read of the log is older. Some
    tables are compacted to one, without sequence numbers.
    """
    reader = world.shard.directory(Role.DEQUEUE).timeline
    for slot in range(5, 5 + restarts):
        put(world, slot)
        reader.refresh(world.state.commit().batch)
        put(world, slot)
        world.restart(Role.INGEST)
        reader.refresh(world.state.commit().batch)
        assert not reader.is_empty(SLOT + slot - 1, SLOT + slot)


def test_only_the_folders_of_killed_readers_are_removed(world: LocalWorld) -> None:
    """RocksDB may crash when it closes a reader whose folder is gone. Its process id would mean
    nothing here if it lived in another container.
    """
    readers = world.path / rocksdb_readers.READERS
    world.shard.directory(Role.DEQUEUE).timeline.refresh()
    (living,) = readers.iterdir()
    (readers / "killed").mkdir()
    world.restart(Role.INGEST)
    assert list(readers.iterdir()) == [living]


def test_a_reader_whose_folder_was_removed_before_it_was_locked_has_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    take = FileLock.try_acquire
    removed: list[Path] = []

    def take_late(lock: FileLock) -> bool:
        if not removed:
            removed.append(lock.path.parent)
            shutil.rmtree(lock.path.parent)
        return take(lock)

    monkeypatch.setattr(FileLock, "try_acquire", take_late)
    folder = rocksdb_readers.ReaderFolder(tmp_path)
    assert folder.path.exists() and folder.path not in removed
    folder.remove()
    assert not list((tmp_path / rocksdb_readers.READERS).iterdir())


def test_a_reader_writes_nothing(world: LocalWorld) -> None:
    """Its disk may be full, or mounted to be read only."""
    put(world, 5)
    number = rocksdb_files.newest(world.path)

    def written() -> list[tuple[str, int, int]]:
        found = sorted(database(world.path, number).iterdir())
        return [(each.name, each.lstat().st_mtime_ns, each.lstat().st_ino) for each in found]

    before = written()
    assert RocksdbTimeline.exists(world.path, CONFIG, READING_FS)
    with closing(DataDirectory(world.path, CONFIG, READING_FS)) as directory:
        directory.timeline.refresh()
        assert not directory.timeline.is_empty(SLOT, SLOT + 9)
    assert written() == before


def test_a_host_that_refuses_is_no_damage(
    world: LocalWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk, no descriptor left: with damage noted, all timers would be read again."""

    def refuses(*_: object, **__: object) -> Rdict:
        raise RuntimeError("IO error: While open a file for appending: No space left on device")

    put(world, 5)
    world.kill()
    with monkeypatch.context() as patched:
        patched.setattr(rocksdb_files, "Rdict", refuses)
        for start in (world.shard.start_dequeue, world.shard.start_ingest):
            with pytest.raises(OSError, match="No space") as refused:
                start()
            assert refused.value.errno == errno.ENOSPC
    world.shard.start_dequeue()
    world.shard.start_ingest()
    assert world.state.damage is Damage.NONE
    world.at_slot(9)
    assert len(world.sources()) == 1


def test_options_are_those_of_the_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not those of the file OPTIONS, which has no checksum."""
    rocksdb_files.make(database(tmp_path), HOST_FS)
    monkeypatch.setattr(rocksdb_files, "BUFFER_BYTES", 7 << 20)
    rocksdb_files.opened_to_write(tmp_path, 0).close()
    newest = max(database(tmp_path).glob("OPTIONS-*"))
    assert f"write_buffer_size={7 << 20}" in newest.read_text()


def test_a_check_finds_runs_that_are_lost_or_others(world: LocalWorld) -> None:
    put(world, 2, 3, 4)
    world.kill()
    key = (SLOT + 2).to_bytes(8, "big")
    db = rocksdb_files.opened_to_write(world.path, rocksdb_files.newest(world.path))
    keys = [*db.keys()]
    (first,) = (each for each in keys if each.startswith(key))
    db.delete(first)
    db.put((SLOT + 3).to_bytes(8, "big") + (10**6).to_bytes(8, "big"), b"\0\0\0\1")
    (other,) = (each for each in keys if each.startswith((SLOT + 4).to_bytes(8, "big")))
    db.put(other, b"\0\0\0\2")
    db.close()
    found = [(each.code, each.offset - SLOT) for each in check(world.path, CONFIG).findings]
    assert found == [("run_lost", 2), ("run_unknown", 3), ("run_wrong", 4)]
