"""The index of ids: it finds the same as a scan of the logs, after any earlier lookups."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.harness.cancel_world import CancelWorld, cancel, timer
from tests.harness.local_world import NOW_MS
from tests.harness.manual_host import ManualHost
from tests.harness.timer_rows import TimerRow, timer_batch

from duewheel.checkpoints.cancel_bounds import EVERY_OFFSET
from duewheel.checkpoints.fs import HOST_FS
from duewheel.checkpoints.process_role import Role
from duewheel.schemas.arrays import Int64
from duewheel.wheel.append import id_index, id_runs
from duewheel.wheel.append.id_index import IdIndex, LookedUp, WantedTimers
from duewheel.wheel.append.id_runs import ADDRESS, CANCELLED, DELIVERED, Run
from duewheel.wheel.storage.byte_layouts import RECORD_BYTES, lookup_hash_of
from duewheel.wheel.storage.data_directory import DataDirectory

IDS = 40
NONE: Int64 = np.empty(0, np.int64)
ID_KEY = 7  # of each record that is noted, where no test says otherwise


@pytest.fixture
def world(tmp_path: Path) -> CancelWorld:
    return CancelWorld(tmp_path / "data", slots=1 << 21)


def set_bounds(
    monkeypatch: pytest.MonkeyPatch, *, rows_at_once: int, in_memory: int | None = None
) -> None:
    """Small bounds: few records make many runs and files. None: as the product has it."""
    for module in (id_index, id_runs):
        monkeypatch.setattr(module, "ROWS_AT_ONCE", rows_at_once)
    if in_memory is not None:
        monkeypatch.setattr(id_runs, "_IN_MEMORY_ROWS", in_memory)


def append(world: CancelWorld, first: int, count: int, rng: np.random.Generator) -> None:
    """Timers with few ids, in three hours."""
    slots = rng.integers(1, 900_000, count).tolist()
    ids = rng.integers(0, IDS, count).tolist()
    world.append(
        *(
            TimerRow(0, first + n, NOW_MS + slot * 10, timer_id=b"id-%d" % which)
            for n, (slot, which) in enumerate(zip(slots, ids, strict=True))
        )
    )


def found(
    index: IdIndex, hashes: Int64, directory: DataDirectory, settled: Int64 = NONE
) -> set[tuple[int, int]]:
    hashes, commit = np.unique(hashes), directory.state.commit()
    return places(index.find(wanted(hashes, settled=settled, whole=hashes), commit))


def wanted(
    hashes: Int64,
    topic: Int64 | None = None,
    settled: Int64 = NONE,
    below: int = EVERY_OFFSET,
    named: Int64 = NONE,
    whole: Int64 = NONE,
) -> WantedTimers:
    """All timers of these ids, unless said otherwise; one topic has all of them."""
    topic = 0 * hashes if topic is None else topic
    key, offsets_below = np.array([ID_KEY]), np.array([below])
    return WantedTimers(hashes, topic, key, offsets_below, named, settled, whole, NONE)


def places(found: LookedUp) -> set[tuple[int, int]]:
    return {
        (hour, position)
        for hour, positions in found.positions.items()
        for position in positions.tolist()
    }


def by_reading(hashes: Int64, directory: DataDirectory) -> set[tuple[int, int]]:
    met = set()
    for hour, lengths in directory.state.commit().hours.items():
        records = directory.log.read(hour, 0, lengths.log_bytes)
        rows = np.flatnonzero(np.isin(lookup_hash_of(records["reserved"]), hashes))
        met |= {(hour, int(row) * RECORD_BYTES) for row in rows}
    return met


def hashes_in(directory: DataDirectory) -> Int64:
    parts = [
        lookup_hash_of(directory.log.read(hour, 0, lengths.log_bytes)["reserved"])
        for hour, lengths in directory.state.commit().hours.items()
    ]
    return np.unique(np.concatenate(parts))


@pytest.mark.parametrize("in_memory", [1 << 14, 2])
def test_it_finds_what_the_logs_have(
    world: CancelWorld, in_memory: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_bounds(monkeypatch, rows_at_once=7, in_memory=in_memory)
    rng = np.random.default_rng(7)
    directory = world.shard.directory(Role.INGEST)
    index, first = IdIndex(directory), 0
    for count in (1, 50, 3, 200, 30, 400):
        append(world, first, count, rng)
        first += count
        known = hashes_in(directory)
        for some in (known, rng.choice(known, 3), np.array([12_345]), known[:1]):
            assert found(index, some, directory) == by_reading(some, directory)


@pytest.mark.parametrize("in_memory", [1 << 14, 2])
def test_a_lookup_adds_a_bounded_part_of_many_records(
    world: CancelWorld, in_memory: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It finds the others nevertheless: one cancel after a start delays no timers for long."""
    set_bounds(monkeypatch, rows_at_once=10, in_memory=in_memory)
    append(world, 0, 2_000, np.random.default_rng(17))
    directory = world.shard.directory(Role.INGEST)
    index, known, commit = IdIndex(directory), hashes_in(directory), directory.state.commit()
    before = added = 0
    while added < 2_000:
        for some in (known[:3], known):
            met = places(index.find(wanted(some), commit))
            assert met == by_reading(some, directory)
            before, added = added, sum(map(len, index._runs))  # noqa: SLF001
            assert min(before + 1, 2_000) <= added <= before + 2_000 // 32 + 10
        hours, positions = (np.array(column, np.int64) for column in zip(*sorted(met), strict=True))
        index.note(hours, positions, np.zeros(len(met), np.int64), np.full(len(met), ID_KEY))
    assert places(index.find(wanted(known, below=0), commit)) == set()


def test_what_is_settled_is_found_on_request_only(world: CancelWorld) -> None:
    rng = np.random.default_rng(11)
    append(world, 0, 300, rng)
    directory = world.shard.directory(Role.INGEST)
    index, gone = IdIndex(directory), set[tuple[int, int]]()
    for turn in range(6):
        known = hashes_in(directory)
        some = rng.choice(known, 10)
        met = sorted(found(index, some, directory))
        assert set(met) == by_reading(some, directory) - gone
        over = [met[n] for n in rng.choice(len(met), len(met) // 2, replace=False)]
        hours, positions = (np.array(column, np.int64) for column in zip(*over, strict=True))
        index.settle(hours, positions, (CANCELLED, DELIVERED)[turn % 2])
        gone |= set(over)
        append(world, 300 + 50 * turn, 50, rng)
    assert found(index, known, directory) == by_reading(known, directory) - gone
    assert found(index, known, directory, known) == by_reading(known, directory)


@pytest.mark.parametrize("rows_at_once", [7, 1 << 18])
def test_what_is_known_to_match_no_cancel_is_not_found_again(
    world: CancelWorld, rows_at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Through merges of runs, and through the moves of what is settled."""
    set_bounds(monkeypatch, rows_at_once=rows_at_once)
    rng = np.random.default_rng(13)
    directory = world.shard.directory(Role.INGEST)
    index, gone = IdIndex(directory), set[tuple[int, int]]()
    known_offsets, count = dict[tuple[int, int], int](), 0
    for turn in range(12):
        append(world, count, 60, rng)
        count += 60
        hashes = hashes_in(directory)
        some = np.unique(rng.choice(hashes, 20))
        below, named = int(rng.integers(count)), np.unique(rng.integers(0, count, 9))
        asked = wanted(some, below=below, named=named, whole=some)
        met = places(index.find(asked, directory.state.commit()))
        assert met == {
            place
            for place in by_reading(some, directory) - gone
            if (offset := known_offsets.get(place)) is None or offset < below or offset in named
        }
        order = sorted(met)
        hours, positions = (np.array(column, np.int64) for column in zip(*order, strict=True))
        offsets = offsets_at(directory, order)
        known_offsets |= dict(zip(order, offsets, strict=True))
        index.note(hours, positions, np.array(offsets), np.full(len(order), ID_KEY))
        over = rng.random(len(order)) < 0.2
        index.settle(hours[over], positions[over], (CANCELLED, DELIVERED)[turn % 2])
        gone |= {place for place, is_over in zip(order, over.tolist(), strict=True) if is_over}


def offsets_at(directory: DataDirectory, of: list[tuple[int, int]]) -> list[int]:
    """The first offset of the timer at each place."""
    commit, offsets = directory.state.commit(), []
    for hour, position in of:
        records = directory.log.view(hour, commit.hours[hour].log_bytes)
        prefix, _ = directory.messages.read_ids(hour, records[position // RECORD_BYTES :][:1])
        offsets.append(int(prefix["origin_offset"][0]))
    return offsets


def test_an_id_with_many_timers_takes_no_others_place(world: CancelWorld) -> None:
    few, many = b"few", b"many"
    rows = [TimerRow(0, n, NOW_MS + 10, timer_id=many) for n in range(200)]
    world.append(*rows, TimerRow(0, 200, NOW_MS + 10, timer_id=few))
    directory = world.shard.directory(Role.INGEST)
    index, known = IdIndex(directory, rows_max=50, settled_max=5), hashes_in(directory)
    seen = set[tuple[int, int]]()
    for turn in range(4):
        result = index.find(wanted(known), directory.state.commit())
        met = places(result)
        assert len(met) == 50 and len(result.left) == 1
        assert by_reading(np.setdiff1d(known, result.left), directory) <= met, "of the other id"
        mine = [place for place in met if place in by_reading(result.left, directory)]
        assert not seen & set(mine), "each record is looked at once"
        seen |= set(mine)
        hours, positions = (np.array(column, np.int64) for column in zip(*mine, strict=True))
        index.settle(hours, positions, CANCELLED if turn else DELIVERED)
    last = index.find(wanted(known, settled=known), directory.state.commit())
    assert (last.left.tolist(), len(places(last))) == ([], 1 + 200 - len(seen) + 5)
    assert last.delivered.tolist() == last.unseen.tolist() == result.left.tolist()


@pytest.mark.parametrize("kind", [None, DELIVERED])
def test_many_ids_of_a_topic_take_no_other_topics_place(
    world: CancelWorld, kind: int | None
) -> None:
    """Nor is there a number of ids with which a lookup reads more."""
    rows = [TimerRow(0, n, NOW_MS + 10, timer_id=b"%d" % (n % 20)) for n in range(80)]
    world.append(*rows, *(TimerRow(0, 80 + n, NOW_MS + 10, timer_id=b"own") for n in range(10)))
    directory = world.shard.directory(Role.INGEST)
    index, known = IdIndex(directory, rows_max=50, settled_max=10), hashes_in(directory)
    if kind is not None:
        whole = sorted(found(index, known, directory))
        hours, positions = (np.array(column, np.int64) for column in zip(*whole, strict=True))
        index.settle(hours, positions, kind)
    own = timer_batch([cancel(90, timer_id=b"own")])
    hashes = directory.lookup_hashes(own.id_hash, own.partitions, own.partition)
    topic = np.isin(known, hashes).astype(np.int64)
    result = index.find(wanted(known, topic, known), directory.state.commit())
    assert by_reading(hashes, directory) <= places(result)
    assert len(places(result)) == 50
    cut = result.left if kind is None else result.unseen
    assert len(cut) == 10 and not np.isin(hashes, cut).any()


def test_without_room_for_it_logs_are_scanned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(id_runs, "_IN_MEMORY_ROWS", 0)
    host = ManualHost()
    world = CancelWorld(tmp_path / "data", fs=host)
    append(world, 0, 100, np.random.default_rng(3))
    directory = world.shard.directory(Role.INGEST)
    host.writes_left = 0
    known = hashes_in(directory)
    assert found(IdIndex(directory), known, directory) == by_reading(known, directory)
    limited = IdIndex(directory, rows_max=20)
    for _ in range(2):  # each batch with a cancel would read all messages of its id
        result = limited.find(wanted(known), directory.state.commit())
        assert len(places(result)) == 20
        assert 0 < len(result.left) < len(known)


@pytest.mark.parametrize("older_count", [5, 8, 13])
def test_a_merge_keeps_the_newest_rows_of_an_id_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, older_count: int
) -> None:
    """Also of an id with more rows than are merged at once."""
    set_bounds(monkeypatch, rows_at_once=4)
    older, newer = (Run(HOST_FS, tmp_path, 40) for _ in range(2))
    older.put_new(np.repeat([1, 2, 3], [2, older_count, 3]), np.arange(older_count + 5))
    newer.put_new(np.repeat([1, 2, 4], [1, 9, 2]), 100 + np.arange(12))
    rows = np.concatenate(list(id_runs.merged(older, newer)), axis=1)
    keys, addresses = rows[0], rows[ADDRESS]
    assert (np.diff(keys) >= 0).all()
    assert all((np.diff(addresses[keys == key]) > 0).all() for key in np.unique(keys))
    assert rows.shape[1] == older_count + 5 + 12


def test_hours_that_are_unlinked_are_passed_over(world: CancelWorld) -> None:
    append(world, 0, 100, np.random.default_rng(5))
    directory = world.shard.directory(Role.INGEST)
    index, known = IdIndex(directory), hashes_in(directory)
    everything = found(index, known, directory)
    first = min(hour for hour, _ in everything)
    directory.state.live.raise_gc_hour(first + 1)
    kept = {(hour, position) for hour, position in everything if hour > first}
    assert kept and found(index, known, directory) == kept


@pytest.mark.parametrize("named", [False, True])
def test_of_an_id_with_many_timers_an_older_one_is_found(tmp_path: Path, named: bool) -> None:
    """Of such an id the index forgets what no new cancel depends on: a chase may, and a handle."""
    world = CancelWorld(tmp_path / "data")
    world.limit_lookups(settled_from=2, settled_ms=0)
    world.append(timer(0, 2))
    world.at_slot(4)
    world.append(timer(1, 50), cancel(2))
    world.append(timer(3, 51, request="reschedule"))
    world.append(timer(4, 52, request="reschedule"))
    world.at_slot(6)
    chases = world.chases()
    assert [chase.origin for chase in chases] == [2, 3, 4]
    if named:
        world.append(cancel(5, named=1))
    else:
        world.append(*(replace(chase, offset=5 + n) for n, chase in enumerate(chases)))
    world.at_slot(8)
    assert {word for _, word in world.answers()} == {"cancelled"}


def test_the_newest_timer_of_an_id_is_found_though_it_is_cancelled(tmp_path: Path) -> None:
    """A cancel that is sent again has the same reply; older timers do not matter."""
    world = CancelWorld(tmp_path / "data")
    world.limit_lookups(settled_from=2, settled_ms=0)
    world.append(timer(0, 50), cancel(1))
    world.append(timer(2, 51), cancel(3))
    for offset in range(4, 8):
        world.append(cancel(offset))
    world.at_slot(8)
    assert [word for _, word in world.answers()] == ["cancelled"] * 6


def test_a_timer_is_reached_below_many_that_its_cancel_does_not_match(tmp_path: Path) -> None:
    """The newest timers of the id stay: a lookup of these alone would never reach it."""
    world = CancelWorld(tmp_path / "data")
    world.limit_lookups(rows_max=10)
    world.append(*(timer(offset, 60) for offset in range(35)))
    for offset in range(35, 75):  # in the shard each would be a chase of the first one
        world.append(cancel(offset, named=3))
    world.at_slot(63)
    assert sorted(world.offsets()) == [offset for offset in range(35) if offset != 3]


def test_records_of_expired_hours_do_not_fill_every_lookup(tmp_path: Path) -> None:
    """A cancel of their id would be chased for ever."""
    world = CancelWorld(tmp_path / "data", slots=1 << 21)
    world.append(*(timer(offset, 1) for offset in range(200)))
    directory = world.shard.directory(Role.INGEST)
    commit = directory.state.commit()
    known = hashes_in(directory)
    index = IdIndex(directory, rows_max=50)
    index.find(wanted(known), commit)
    directory.state.live.raise_gc_hour(max(commit.hours) + 1)
    left = [len(index.find(wanted(known), commit).left) for _ in range(50)]
    assert left[0]
    assert not left[-1]
