"""The state file and its alternating pages: after a kill at any store, and with refused content."""

from __future__ import annotations

import mmap
from functools import partial
from pathlib import Path

import pytest
from tests.harness.killed import Killed
from tests.harness.manual_host import ManualHost

from duewheel.checkpoints import state_file as state_module
from duewheel.checkpoints.checksummed_pages import Page, PagePair
from duewheel.checkpoints.commit_and_close_pages import (
    NO_COMMIT,
    Close,
    Commit,
    HourLengths,
    marks_to,
)
from duewheel.checkpoints.live_fields import Heartbeat
from duewheel.checkpoints.process_role import Role
from duewheel.checkpoints.progress_mirror import Mirror
from duewheel.checkpoints.state_file import FORMAT, Damage, State
from duewheel.errors import ConfigError, CorruptFile, DuewheelError

PAGE = 256
# Keys of the JSON, and the fields.
MARKS = (("c_before", "marks_before"), ("c", "marks"), ("marks", "marks"))


class DyingMap(mmap.mmap):
    """An anonymous mapping whose writer dies before its n-th store."""

    stores_left: int | None = None

    def __setitem__(self, key: object, value: object) -> None:
        if self.stores_left == 0:
            raise Killed
        if self.stores_left is not None:
            self.stores_left -= 1
        super().__setitem__(key, value)  # type: ignore[call-overload]


def pair(mapped: mmap.mmap) -> PagePair:
    return PagePair(mapped, 0, PAGE)


@pytest.fixture
def mapped() -> DyingMap:
    return DyingMap(-1, 2 * PAGE)


def test_nothing_is_read_before_the_first_write(mapped: DyingMap) -> None:
    assert pair(mapped).read() is None
    assert not pair(mapped).written()


def test_the_newest_page_counts_and_is_marked_alone(mapped: DyingMap) -> None:
    pages = pair(mapped)
    for number in range(1, 6):
        payload = b"payload %d" % number
        assert pages.write(payload) == number
        assert pages.read() == Page(number, payload, marked=False)
        pages.mark(number)
        assert pair(mapped).read() == Page(number, payload, marked=True)


@pytest.mark.parametrize("before", range(4))
def test_a_writer_killed_at_any_store_leaves_the_page_before(mapped: DyingMap, before: int) -> None:
    for number in range(before):
        pair(mapped).write(b"page %d" % number)
    known = pair(mapped).read()
    for stores in range(100):
        mapped.stores_left = stores
        try:
            pair(mapped).write(b"the next page")
        except Killed:
            assert pair(mapped).read() == known
            # What an empty pair and a torn first page have in common.
            assert pair(mapped).written() == (before > 0)
        else:
            break
    assert stores > 1
    page = pair(mapped).read()
    assert page is not None and page.payload == b"the next page"


def test_a_changed_byte_makes_the_page_before_count(mapped: DyingMap) -> None:
    pages = pair(mapped)
    pages.write(b"first")
    pages.write(b"second")
    at = mapped.find(b"second")
    for byte in (at, at + 5, at - 12, at - 16):  # payload, crc, length
        mapped[byte] ^= 1
        page = pages.read()
        assert page is not None and page.payload == b"first"
        mapped[byte] ^= 1


def test_a_page_that_does_not_fit_is_refused_and_the_old_one_stays(mapped: DyingMap) -> None:
    pages = pair(mapped)
    pages.write(b"old")
    with pytest.raises(DuewheelError, match="do not fit"):
        pages.write(b"y" * PAGE)
    page = pages.read()
    assert page is not None and page.payload == b"old"


def test_pages_are_written_as_they_are_read(mapped: DyingMap) -> None:
    pages = pair(mapped)
    pages.write(b"one")
    with pytest.raises(AssertionError, match="deflated"):
        pages.write(b"x would be inflated")
    with pytest.raises(AssertionError, match="newest"):
        pages.mark(2)
    mapped[:PAGE], mapped[PAGE:] = mapped[PAGE:], mapped[:PAGE]  # whole, but in the other's place
    assert pages.read() is None


# ---- the state file ------------------------------------------------------------------------------


@pytest.fixture
def host() -> ManualHost:
    return ManualHost()


@pytest.fixture
def state(tmp_path: Path, host: ManualHost) -> State:
    return State.create(tmp_path, precision_ms=50, slots=1000, fs=host)


def test_a_new_file_says_nothing_yet(state: State) -> None:
    assert state.commit() == NO_COMMIT
    assert state.close() is None
    assert state.mirror() is None
    assert (state.starts, state.dequeue_starts, state.live.gc_hour) == (0, 0, 0)
    assert state.live.heartbeat(Role.INGEST) == Heartbeat(0, 0, 0)
    assert state.damage is Damage.NONE


def test_what_is_written_is_read_by_another_process(state: State, tmp_path: Path) -> None:
    marks = {("a.b-c", 0): 7, ("a.b-c", 11): 2**53, ("z", 3): 0}
    hours = {500_000: HourLengths(104, 300, 52), 500_001: HourLengths(52, 99, 52)}
    close = Close(10, {("z", 3): 1}, 12, marks)
    state.write_commit(Commit(1, marks, hours, 3))
    state.write_close(close)
    state.write_mirror(Mirror(-5, 2, b"progress"))
    state.live.beat(Role.DEQUEUE, 4711, 1_800_000_000_000, 12)
    assert state.count_dequeue_start() == 1
    other = State.open(tmp_path)
    assert other.commit() == Commit(1, marks, hours, 3)
    state.mark_applied()
    assert other.commit().applied
    assert other.close() == close
    assert other.mirror() == Mirror(-5, 2, b"progress")
    assert other.live.heartbeat(Role.DEQUEUE) == Heartbeat(4711, 1_800_000_000_000, 12)
    assert other.live.heartbeat(Role.INGEST) == Heartbeat(0, 0, 0)
    assert other.dequeue_starts == 1
    assert other.uuid == state.uuid


@pytest.mark.parametrize(
    "broken",
    [
        Commit(1, {("z", 3): -1}, {}, 0),
        Commit(-1, {}, {}, 0),
        Commit(1, {}, {500_000: HourLengths(52, -1, 52)}, 0),
        Close(10, {}, 12, {("z", 3): -1}),
        Close(10, {}, 9, {}),
    ],
)
def test_numbers_that_no_page_has_are_neither_written_nor_read(broken: Commit | Close) -> None:
    with pytest.raises(AssertionError):
        broken.to_json()
    content = broken._asdict()
    content |= {key: marks_to(content[field]) for key, field in MARKS if field in content}
    reading = (
        Close.from_json if isinstance(broken, Close) else partial(Commit.from_json, applied=False)
    )
    with pytest.raises(ValueError, match="negative"):
        reading(content)


def test_a_batch_is_not_applied_until_it_is_marked_itself(state: State) -> None:
    for batch in range(1, 5):
        state.write_commit(Commit(batch, {}, {}, 0))
        assert not state.commit().applied
        state.mark_applied()
        assert state.commit().applied


def test_the_floor_never_moves_back(state: State) -> None:
    state.write_close(Close(1, {}, 5, {}))
    with pytest.raises(AssertionError, match="never moves back"):
        state.write_close(Close(1, {}, 4, {}))


def test_another_geometry_is_refused_with_both_sides(state: State) -> None:
    state.require(50, 1000)
    with pytest.raises(
        ConfigError, match=r"precision_ms=50, slots=1000.*precision_ms=10, slots=1000.*app\.id"
    ):
        state.require(10, 1000)
    with pytest.raises(ConfigError, match=r"slots=2000.*read again from Kafka"):
        state.require(50, 2000)


def test_damage_is_named_not_read(state: State, tmp_path: Path) -> None:
    state.write_commit(Commit(1, {}, {}, 0))
    state.release()
    path = tmp_path / "state"
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    with pytest.raises(CorruptFile, match="bytes long"):
        State.open(tmp_path)
    path.write_bytes(whole[:20] + b"?" + whole[21:])
    with pytest.raises(CorruptFile, match="identity"):
        State.open(tmp_path)
    at = whole.index(b'"batch"')
    path.write_bytes(whole[:at] + b"?" + whole[at + 1 :])
    with pytest.raises(CorruptFile, match="neither"):
        State.open(tmp_path).commit()


def test_the_page_cache_is_lost_at_a_boot_without_a_clean_stop(
    state: State, host: ManualHost
) -> None:
    state.begin()
    assert not state.needs_recovery
    host.boot()
    assert state.damage is Damage.CACHE_LOST


def test_nothing_is_lost_at_a_boot_after_a_clean_stop(state: State, host: ManualHost) -> None:
    state.begin()
    state.set_stopped_cleanly()
    host.boot()
    assert state.stopped_cleanly
    assert state.damage is Damage.NONE
    state.begin()
    assert not state.stopped_cleanly


@pytest.mark.parametrize("stopped_before", [False, True])
def test_a_start_is_on_the_disk_before_anything_else_is_done(
    state: State,
    host: ManualHost,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    stopped_before: bool,
) -> None:
    if stopped_before:
        state.begin()
        state.set_stopped_cleanly()
    disk = tmp_path / "disk"
    disk.mkdir()
    (disk / "state").write_bytes((tmp_path / "state").read_bytes())
    monkeypatch.setattr(
        State, "sync", lambda _: (disk / "state").write_bytes((tmp_path / "state").read_bytes())
    )
    state.begin()
    host.boot()
    assert State.open(disk, host).damage is Damage.CACHE_LOST


def test_damage_stays_until_the_files_are_recovered(
    state: State, host: ManualHost, tmp_path: Path
) -> None:
    state.begin()
    host.boot()
    state.begin()  # forgets the boot before
    assert State.open(tmp_path, host).damage is Damage.CACHE_LOST
    state.note_damage(Damage.FILES_LOST)
    state.note_damage(Damage.CACHE_LOST)
    assert state.damage is Damage.FILES_LOST
    state.set_generation(3)
    state.set_recovered(3)
    assert (state.damage, state.recovered, state.needs_recovery) == (Damage.NONE, 3, False)
    state.set_generation(4)
    assert state.needs_recovery


def test_a_directory_of_another_format_names_the_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as before:
        before.setattr(state_module, "FORMAT", FORMAT - 1)
        State.create(tmp_path, 50, 64).release()
    said = f"has format {FORMAT - 1}; this version reads {FORMAT}.*move .* away.*--take-over"
    with pytest.raises(ConfigError, match=said):
        State.open(tmp_path)
