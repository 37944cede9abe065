"""Damage to records of the cancel log: whoever reads over them notices it, wanted or not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.unit.test_cancels import NOW_MS, P0, P1, PRECISION_MS, World, cancel, timer

from duewheel.errors import CorruptFile, RecoveryPending
from duewheel.testing import Timer, timer_batch
from duewheel.wheel.bringing_again import brought_again
from duewheel.wheel.cancel_log import FOLDER, CancelLog
from duewheel.wheel.check import check
from duewheel.wheel.data_directory import Role
from duewheel.wheel.layout import MAGIC_CUT_OFF, RECORD_BYTES

MakeWorld = Callable[..., World]
HOUR = 480_000
LAST_OF_HASH = RECORD_BYTES - 1
STAMP_MS = NOW_MS + 63 * PRECISION_MS
FIRST = replace(timer(0, 200), timestamp_ms=NOW_MS)  # it rolls


@pytest.fixture
def make_world(tmp_path: Path) -> MakeWorld:
    return lambda **settings: World(tmp_path / "data", **settings)


@pytest.fixture
def log(tmp_path: Path) -> CancelLog:
    """Three cancels: as it came, brought again, and cut off."""
    log = CancelLog(tmp_path)
    batch = timer_batch([cancel(1), cancel(2, timer_id=b"b")])
    lengths = log.write(HOUR, (0, 0), batch, np.zeros(1, np.int32), NOW_MS)
    (rows,) = log.read(HOUR, 0, lengths[0])
    log.write_again(HOUR, lengths, rows.take(np.array([0])), NOW_MS)
    log.cut(HOUR, np.array([RECORD_BYTES]))
    return log


def flip(path: Path, at: int, bits: int = 1) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= bits
    path.write_bytes(bytes(data))


def flip_hash(world: World) -> None:
    (segment,) = (world.path / FOLDER).iterdir()
    flip(segment, LAST_OF_HASH)


def read_again(world: World, *rows: Timer) -> None:
    """Ingest notices the damage at the last row; all is read from the beginning."""
    with pytest.raises(RecoveryPending, match="no record of a cancel"):
        world.append(rows[-1])
    assert not check(world.path, world.wheel).ok
    world.shard.offsets_at = lambda _: {P0: 0, P1: 0}
    world.restart(Role.DEQUEUE, Role.INGEST)
    world.append(*(row for row in rows if row.offset >= world.engine.marks[P0]))
    world.at_slot(300)


def test_a_damaged_hash_is_noticed_before_the_copy_leaves(make_world: MakeWorld) -> None:
    world = make_world(reply_topic=None)
    world.append(FIRST)
    world.at_slot(64)
    world.publisher.ends = {P0: 3}
    world.append(cancel(1))
    world.at_slot(66)
    world.at_slot(67)
    assert world.known() == (0, 0)
    flip_hash(world)
    read_again(world, FIRST, cancel(1), replace(timer(2, 200, origin=0), timestamp_ms=STAMP_MS))
    assert len(world.sources()) == 1, "the roll, and nothing else"


def test_a_damaged_hash_does_not_make_false_what_was_told(make_world: MakeWorld) -> None:
    """Two timers of one id: one is in the wheel and met, of the other a copy is on its way."""
    world = make_world()
    world.append(FIRST)
    world.at_slot(64)
    world.publisher.ends = {P0: 4}
    world.append(timer(1, 70), cancel(2))
    world.at_slot(66)
    assert world.answers() == [("timers-0@2", "cancelled")]
    world.at_slot(72)
    flip_hash(world)
    copy = replace(timer(3, 200, origin=0), timestamp_ms=STAMP_MS)
    read_again(world, FIRST, timer(1, 70), cancel(2), copy)
    assert len(world.sources()) == 1, "the roll, and nothing else"
    assert world.answers() == [("timers-0@2", "cancelled")]


def test_damage_in_a_segment_that_is_given_up_stops_nobody(make_world: MakeWorld) -> None:
    world = make_world(reply_topic=None)
    world.append(FIRST, cancel(1))
    directory = world.shard.directory(Role.INGEST)
    commit = directory.state.commit()
    (hour,) = commit.cancels
    copy = timer_batch([replace(timer(2, 200, origin=0), timestamp_ms=STAMP_MS)])
    flip_hash(world)
    with pytest.raises(CorruptFile):
        brought_again(directory, commit, copy)
    world.shard.directory(Role.DEQUEUE).state.set_gc_cancels(hour + 1)
    assert brought_again(directory, commit, copy) is None


@pytest.mark.parametrize("record", range(3))
def test_every_single_bit_of_a_record_is_noticed(log: CancelLog, record: int) -> None:
    path, first = log.files.path(HOUR), record * RECORD_BYTES
    for bit in range(8 * RECORD_BYTES):
        at = first + bit // 8
        flip(path, at, 1 << bit % 8)
        with pytest.raises(CorruptFile) as told:
            list(log.stretches(HOUR, 0, 3 * RECORD_BYTES))
        assert told.value.offset == first
        flip(path, at, 1 << bit % 8)
    assert len(list(log.stretches(HOUR, 0, 3 * RECORD_BYTES))) == 1


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
            list(log.stretches(HOUR, 0, RECORD_BYTES))


@pytest.mark.parametrize("first", range(12, RECORD_BYTES - 8, 8))
def test_the_highest_bits_of_two_words_do_not_undo_one_another(log: CancelLog, first: int) -> None:
    flip(log.files.path(HOUR), first + 8, 0x80)
    flip(log.files.path(HOUR), first, 0x80)
    with pytest.raises(CorruptFile):
        list(log.stretches(HOUR, 0, RECORD_BYTES))


def test_cutting_off_keeps_the_check_and_the_request_right(log: CancelLog) -> None:
    ((_, records),) = log.stretches(HOUR, 0, 3 * RECORD_BYTES)
    assert ((records["magic"] & MAGIC_CUT_OFF) != 0).tolist() == [False, True, False]
    assert len(log.requests_at(HOUR, np.arange(3) * RECORD_BYTES).timer_id) == 3


@pytest.mark.parametrize("using", [CancelLog.cut, CancelLog.requests_at])
def test_damage_is_not_sealed_nor_overlooked_in_single_records(
    log: CancelLog, using: Callable[..., Any]
) -> None:
    flip(log.files.path(HOUR), LAST_OF_HASH)
    with pytest.raises(CorruptFile):
        using(log, HOUR, np.zeros(1, np.int64))
    with pytest.raises(CorruptFile):
        list(log.stretches(HOUR, 0, RECORD_BYTES))
