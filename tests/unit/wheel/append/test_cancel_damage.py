"""Damage and loss of the files of cancels: detected by their readers, and repaired."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.harness.cancel_world import CancelWorld, cancel, timer
from tests.harness.local_world import NOW_MS
from tests.harness.timer_rows import P0, P1, timer_batch

from duewheel.checkpoints.local_state import RecoveryRecord
from duewheel.checkpoints.process_role import Role
from duewheel.errors import CorruptFile, RecoveryPending
from duewheel.runtime.checkpointer import DurableCheckpoints
from duewheel.schemas import columns
from duewheel.wheel.slots import HOUR_MS
from duewheel.wheel.storage import cancel_log
from duewheel.wheel.storage.byte_layouts import CANCELLATION, RECORD_BYTES
from duewheel.wheel.storage.cancel_log import CANCELLED, CHASE, CancelLog
from duewheel.wheel.storage.cancelled_records import CancelledRecords
from duewheel.wheel.storage.full_check import check, check_hour

MakeWorld = Callable[..., CancelWorld]
HOUR = 480_000


@pytest.fixture
def make_world(tmp_path: Path) -> MakeWorld:
    return lambda **settings: CancelWorld(tmp_path / "data", **settings)


@pytest.fixture
def log(tmp_path: Path) -> CancelLog:
    """Three cancels: replied to, chased, and cut off."""
    log = CancelLog(tmp_path)
    for folder in log.folders:
        folder.make_folder()
    batch = timer_batch([cancel(1), cancel(2, timer_id=b"b"), cancel(3)])
    outcome = np.array([CANCELLED, CHASE, CANCELLED], np.int32)
    log.write(HOUR, (0, 0), batch, np.zeros(1, np.int32), outcome, NOW_MS)
    log.cut(HOUR, np.array([2 * RECORD_BYTES]), np.array([7], np.int32))
    return log


def flip(path: Path, at: int, bits: int = 1) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= bits
    path.write_bytes(bytes(data))


@pytest.mark.parametrize("folder", [*cancel_log.FOLDERS, "cancelled"])
def test_a_lost_file_is_noticed(make_world: MakeWorld, folder: str) -> None:
    world = make_world()
    world.append(timer(0, 50), cancel(1))
    world.at_slot(2)
    world.shard.kill(Role.DEQUEUE)
    world.shard.kill(Role.INGEST)
    (lost,) = (world.path / folder).iterdir()
    lost.unlink()
    assert not check(world.path, world.wheel).ok
    world.shard.start_dequeue()
    record = RecoveryRecord.read(world.path)
    assert record is not None and record.case == "files lost"


@pytest.mark.parametrize("is_durable", [False, True])
@pytest.mark.parametrize("hour", [-1, NOW_MS // HOUR_MS + 1, 10**9])
def test_segments_with_open_cancels_are_not_given_up(
    make_world: MakeWorld, hour: int, is_durable: bool
) -> None:
    world, rows = make_world(), (timer(0, 50), cancel(1))
    world.append(*rows)
    if is_durable:
        with closing(DurableCheckpoints(world.path)) as checkpoints:
            checkpoints.write()
    world.state.live.set_gc_cancels(hour)  # as damage would
    (finding,) = check(world.path, world.wheel).findings
    assert f"cancels below hour {hour} are dropped" in finding.detail
    world.kill()
    world.shard.offsets_at = lambda _: {P0: 0, P1: 0}
    world.shard.start_dequeue()
    world.shard.start_ingest()
    recovered = world.state.commit()
    assert bool(recovered.cancels) == is_durable
    if not is_durable:
        world.append(*rows)
    world.at_slot(2)
    if is_durable:
        assert world.answers() == [("timers-0@1", "cancelled")]
    else:  # read again, it is written again: a copy of the timer may be on its way
        assert [chase.origin for chase in world.chases()] == [1]
    assert check(world.path, world.wheel).ok


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
    (segment,) = (world.path / folder).iterdir()
    data = bytearray(segment.read_bytes())
    data[at] ^= bits
    segment.write_bytes(bytes(data))
    assert not check(world.path, world.wheel).ok
    with pytest.raises(RecoveryPending):
        world.at_slot(2)


def test_a_mark_that_is_lost_is_set_again(make_world: MakeWorld) -> None:
    """A kill between commit page and mark; a loss of power may take it, too."""
    world = make_world()
    world.append(timer(0, 50), cancel(1))
    (log,) = (world.path / "timerlog").iterdir()
    data = bytearray(log.read_bytes())
    assert data[12] == ord("C")
    data[12] = 0
    log.write_bytes(bytes(data))
    assert [f.code for f in check(world.path, world.wheel).findings] == ["not_marked"]
    directory = world.shard.directory(Role.INGEST)
    ((hour, lengths),) = directory.state.commit().hours.items()
    directory.mark_cancelled(hour, lengths, 0)
    assert check(world.path, world.wheel).ok
    world.at_slot(60)
    assert world.sources() == []


@pytest.mark.parametrize("octet", [0x42, 0xFF])
def test_a_mark_that_is_none_is_damage(make_world: MakeWorld, octet: int) -> None:
    world = make_world()
    world.append(timer(0, 5))
    (log,) = (world.path / "timerlog").iterdir()
    data = bytearray(log.read_bytes())
    data[12] = octet
    log.write_bytes(bytes(data))
    with pytest.raises(RecoveryPending, match="does not match its checksum"):
        world.at_slot(9)


def test_a_damaged_segment_leads_to_reading_again(make_world: MakeWorld) -> None:
    world = make_world()
    rows = [timer(0, 50), cancel(1)]
    world.append(*rows)
    world.shard.kill(Role.DEQUEUE)
    world.shard.kill(Role.INGEST)
    (segment,) = (world.path / cancel_log.REQUESTS_FOLDER).iterdir()
    data = bytearray(segment.read_bytes())
    data[70] ^= 0x40
    segment.write_bytes(bytes(data))
    world.restart(Role.DEQUEUE)
    with pytest.raises(RecoveryPending, match="does not match its checksum"):
        world.at_slot(2)
    world.shard.offsets_at = lambda _: {P0: 0, P1: 0}
    world.restart(Role.DEQUEUE, Role.INGEST)
    assert world.engine.marks[P0] == 0
    world.append(*rows)
    world.at_slot(3)
    world.append(*(replace(chase, offset=2) for chase in world.chases()))
    world.at_slot(60)
    assert (world.sources(), world.answers()) == ([], [("timers-0@1", "cancelled")])


@pytest.mark.parametrize("record", range(3))
def test_every_single_bit_of_a_record_is_noticed(log: CancelLog, record: int) -> None:
    path, first = log.files.path(HOUR), record * RECORD_BYTES
    for bit in range(8 * RECORD_BYTES):
        at = first + bit // 8
        flip(path, at, 1 << bit % 8)
        with pytest.raises(CorruptFile) as found:
            log.records(HOUR, 0, 3 * RECORD_BYTES)
        assert found.value.offset == first
        flip(path, at, 1 << bit % 8)
    assert len(log.records(HOUR, 0, 3 * RECORD_BYTES)) == 3


@pytest.mark.parametrize("seed", range(5))
def test_several_bits_are_noticed(log: CancelLog, seed: int) -> None:
    rng, path = np.random.default_rng(seed), log.files.path(HOUR)
    sound = path.read_bytes()
    for _ in range(200):
        data = np.frombuffer(sound, np.uint8).copy()
        bits = rng.choice(8 * RECORD_BYTES, rng.integers(2, 6), replace=False)
        np.bitwise_xor.at(data, bits // 8, (1 << bits % 8).astype(np.uint8))
        path.write_bytes(data.tobytes())
        with pytest.raises(CorruptFile):
            log.records(HOUR, 0, RECORD_BYTES)


@pytest.mark.parametrize("first", range(12, RECORD_BYTES - 8, 8))
def test_the_highest_bits_of_two_words_do_not_undo_one_another(log: CancelLog, first: int) -> None:
    flip(log.files.path(HOUR), first + 8, 0x80)
    flip(log.files.path(HOUR), first, 0x80)
    with pytest.raises(CorruptFile):
        log.records(HOUR, 0, RECORD_BYTES)


def test_cutting_off_keeps_the_check_and_the_request_right(log: CancelLog) -> None:
    records = log.records(HOUR, 0, 3 * RECORD_BYTES)
    assert (records["magic"] >> 16).tolist() == [0, 0, 7]
    rows = log.read(HOUR, records, np.arange(3) * RECORD_BYTES)
    assert rows.cut_at.tolist() == [0, 0, 7]
    assert rows.outcome.tolist() == [CANCELLED, CHASE, CANCELLED]
    assert rows.requests.timer_id.to_pylist() == [b"a", b"b", b"a"]


def test_damage_is_not_sealed_by_cutting_off(log: CancelLog) -> None:
    flip(log.files.path(HOUR), RECORD_BYTES - 1)
    with pytest.raises(CorruptFile):
        log.cut(HOUR, np.zeros(1, np.int64), np.ones(1, np.int32))


def test_large_requests_are_read_one_by_one(tmp_path: Path) -> None:
    """A recovery, which must not run out of memory at each start, reads them all."""
    log = CancelLog(tmp_path)
    for folder in log.folders:
        folder.make_folder()
    requests = timer_batch([cancel(0), cancel(1), cancel(2)])
    large = replace(requests, key_value=columns.binary([b"v" * (5 << 20)] * 3))
    outcome, source = np.full(3, CANCELLED, np.int32), np.zeros(1, np.int32)
    lengths = log.write(HOUR, (0, 0), large, source, outcome, NOW_MS)
    blocks = list(log.blocks(HOUR, lengths[0]))
    assert [rows.position.tolist() for rows in blocks] == [[0], [RECORD_BYTES], [2 * RECORD_BYTES]]
    assert [rows.requests.prefix["source_offset"].tolist() for rows in blocks] == [[0], [1], [2]]


def test_many_cancels_of_an_hour_are_read_in_parts(make_world: MakeWorld) -> None:
    """So a recovery takes no more memory for more of them: 21 million would have taken 2 GB."""
    world, many = make_world(), 1_000_000
    world.append(timer(0, 50), cancel(1))
    directory = world.shard.directory(Role.INGEST)
    with directory.locked() as commit:
        ((hour, lengths),) = commit.hours.items()
    (row,) = directory.cancelled.read(hour, 0, lengths.cancelled_bytes)
    of_all = np.full(many, row["offset"]), np.full(many, row["position"])
    end = directory.cancelled.write(hour, lengths.cancelled_bytes, *of_all)
    lengths = lengths._replace(cancelled_bytes=end)
    verifier = directory.timeline.verifier(0, directory.state.linked)
    tracemalloc.start()
    try:
        directory.restore_cancelled(hour, lengths)
        report = check_hour(directory, hour, lengths, verifier)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (report.records, report.findings) == (1, [])
    assert peak < many * CANCELLATION.itemsize


def test_every_single_bit_of_a_cancelled_record_is_noticed(tmp_path: Path) -> None:
    """A wrong position would take a timer that nobody has cancelled."""
    cancelled = CancelledRecords(tmp_path)
    cancelled.files.make_folder()
    end = cancelled.write(HOUR, 0, np.array([7, 2**40]), np.array([52, 104]))
    assert cancelled.read(HOUR, 0, end)["position"].tolist() == [52, 104]
    path = cancelled.files.path(HOUR)
    for bit in range(8 * end):
        flip(path, bit // 8, 1 << bit % 8)
        with pytest.raises(CorruptFile) as found:
            cancelled.read(HOUR, 0, end)
        assert found.value.offset == bit // 8 // CANCELLATION.itemsize * CANCELLATION.itemsize
        flip(path, bit // 8, 1 << bit % 8)
