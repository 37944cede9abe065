"""Lookups of the timers that a cancel may match: their bounds, and what they leave out."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.harness.cancel_world import CancelWorld, cancel, count_messages_read, timer
from tests.harness.timer_rows import P0, P1, timer_batch

from duewheel.checkpoints.process_role import Role
from duewheel.schemas.columns import binary
from duewheel.schemas.hashing import id_hashes


def chased(world: CancelWorld, offset: int, slots: range) -> int:
    """Closes the slots, and takes each chase as it comes, from this offset on; returns how many."""
    met = 0
    for slot in slots:
        world.at_slot(slot)
        chases = world.chases()[met:]
        rows = (replace(chase, offset=offset + n) for n, chase in enumerate(chases, met))
        world.append(*rows)
        met += len(chases)
    return met


@pytest.mark.parametrize("partition", [0, 1])
@pytest.mark.parametrize("delivered", [False, True])
def test_a_repeated_cancel_reads_few_messages_of_an_id_with_many_timers(
    tmp_path: Path, partition: int, delivered: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each batch would read all of them again, and the batches have everybody's messages."""
    world = CancelWorld(tmp_path / "data")
    world.limit_lookups(settled_max=5, settled_ms=0)
    world.append(*(timer(offset, 5 if delivered else 50) for offset in range(500)))
    world.at_slot(7 if delivered else 2)
    read = count_messages_read(monkeypatch)
    first = 500 if partition == 0 else 0
    for offset in range(first, first + 5):
        world.append(cancel(offset, partition=partition))
        world.at_slot(8 + offset - first)
    assert sum(read) <= (0 if partition else 1_010)
    assert partition == 1 or sum(read) >= 500


def test_all_timers_of_an_id_are_cancelled_though_a_batch_looks_at_few(tmp_path: Path) -> None:
    world = CancelWorld(tmp_path / "data")
    world.limit_lookups(rows_max=10)
    world.append(*(timer(offset, 60) for offset in range(35)), timer(0, 60, partition=1))
    world.append(cancel(35), cancel(1, partition=1))
    met = chased(world, 36, range(1, 20))
    assert met <= 14, "a batch stops ten, and a later one takes them out"
    told = [("timers-1@1", "cancelled"), ("timers-0@35", "cancelled")]
    assert world.answers() == told
    world.append(cancel(36 + met))
    world.at_slot(21)
    told.append((f"timers-0@{36 + met}", "cancelled"))
    assert world.answers() == told, "the newest timer of an id is always looked at"
    world.at_slot(63)
    assert world.sources() == []


@pytest.mark.parametrize("named", [False, True])
def test_chases_of_an_id_end_though_its_pending_timers_match_none(
    tmp_path: Path, named: bool
) -> None:
    """A producer could have the shard write chases for as long as these timers are pending."""
    world = CancelWorld(tmp_path / "data")
    world.limit_lookups(rows_max=10)
    world.append(*(timer(offset, 60) for offset in range(35)))
    world.append(cancel(35, named=1_000) if named else cancel(35))
    world.append(*(timer(offset, 60) for offset in range(36, 76)))
    assert chased(world, 76, range(1, 30)) <= 10
    assert world.answers() == [("timers-0@35", "unknown" if named else "cancelled")]
    world.at_slot(63)
    assert len(world.sources()) == (75 if named else 40)


@pytest.mark.parametrize("pending", [False, True])
def test_copies_of_one_timer_do_not_fill_the_lookups_of_its_id(
    tmp_path: Path, pending: bool
) -> None:
    world = CancelWorld(tmp_path / "data")
    world.limit_lookups(rows_max=10, settled_ms=0)
    for offset in range(30):
        world.append(timer(offset, 60 if pending and offset == 29 else offset + 2, origin=0))
        world.at_slot(offset + 1)
    world.at_slot(33)
    world.append(cancel(30))
    assert chased(world, 31, range(34, 54)) <= 10
    assert [answer for _, answer in world.answers()] == [
        "cancelled" if pending else "already_delivered"
    ]


def test_chases_end_among_other_ids_of_the_same_hash(tmp_path: Path) -> None:
    """Any producer can find such ids: murmur2 has no key. The shard would write chases for as long
    as these timers are pending.
    """
    world = CancelWorld(tmp_path / "data")
    world.limit_lookups(rows_max=10)
    ids = ids_of_one_hash(36)
    assert len(set(ids)) == 36 and len(set(id_hashes(binary(ids)).tolist())) == 1
    world.append(*(replace(timer(n, 60), timer_id=each) for n, each in enumerate(ids[1:])))
    world.append(cancel(35, timer_id=ids[0]))
    assert chased(world, 36, range(1, 30)) <= 10
    assert world.answers() == [("timers-0@35", "unknown")]
    world.append(cancel(60, timer_id=ids[7]))
    world.at_slot(63)
    assert len(world.sources()) == 34


def test_chases_end_though_a_later_cancel_has_another_id_of_the_same_hash(
    tmp_path: Path,
) -> None:
    """The timers of one id below the cancel of the other do not count for either."""
    world = CancelWorld(tmp_path / "data")
    world.limit_lookups(rows_max=10)
    one, other, *ids = ids_of_one_hash(37)
    world.append(*(replace(timer(n, 60), timer_id=each) for n, each in enumerate(ids)))
    world.append(cancel(35, timer_id=one))
    world.append(*(replace(timer(n, 60), timer_id=one) for n in range(36, 76)))
    world.append(cancel(76, timer_id=other))
    assert chased(world, 77, range(1, 30)) <= 15
    assert sorted(world.answers()) == [("timers-0@35", "unknown"), ("timers-0@76", "unknown")]
    world.at_slot(63)
    assert len(world.sources()) == 75


def ids_of_one_hash(count: int) -> list[bytes]:
    """Different ids: murmur2 takes two words as equal to two others whose mixed forms differ only
    in the highest bit, whatever its seed is.
    """
    factor, size = 0x5BD1E995, 1 << 32
    inverse = pow(factor, -1, size)

    def other(word: int) -> int:
        word = word * factor % size
        mixed = (word ^ word >> 24) * factor % size ^ 1 << 31
        word = mixed * inverse % size
        return (word ^ word >> 24) * inverse % size

    pairs = []
    for n in range(count.bit_length()):
        words = 0x41424344 + 2 * n, 0x41424345 + 2 * n
        pairs.append((words, tuple(map(other, words))))
    chosen = ([pair[n >> bit & 1] for bit, pair in enumerate(pairs)] for n in range(count))
    return [np.array(words, "<u4").tobytes() for words in chosen]


def test_a_timer_of_another_partition_with_an_equal_hash_stays_as_it_is(
    tmp_path: Path,
) -> None:
    """Equal by chance: it is neither cancelled nor taken out of later lookups."""
    world = CancelWorld(tmp_path / "data")
    world.append(timer(0, 10), timer(1, 21))
    directory = world.shard.directory(Role.INGEST)
    masks = directory.lookup_hashes(np.zeros(2, np.int64), [P0, P1], np.arange(2, dtype=np.int32))
    other = timer_batch([cancel(5, partition=1)])
    equal = timer_batch([timer(0, 20)]).id_hash ^ masks[0] ^ masks[1]
    world.engine.append(replace(other, id_hash=equal), {P1: 6})
    world.at_slot(12)
    assert world.sources() == ["timers-0@0"]
    world.append(cancel(2))
    world.at_slot(30)
    assert world.sources() == ["timers-0@0"]
