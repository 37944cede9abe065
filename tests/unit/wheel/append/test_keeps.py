"""Timers that are dropped while an earlier one of their id is pending."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.harness.cancel_world import CancelWorld, cancel, count_messages_read, timer
from tests.harness.local_world import NOW_MS, PRECISION_MS
from tests.harness.timer_rows import P0, P1, TimerRow

from duewheel.checkpoints.process_role import Role
from duewheel.wheel.storage.full_check import check


def keep(offset: int, slot: int, *, partition: int = 0, timer_id: bytes = b"a") -> TimerRow:
    due_ms = NOW_MS + slot * PRECISION_MS
    return TimerRow(partition, offset, due_ms, timer_id=timer_id, request="keep")


@pytest.fixture
def world(tmp_path: Path) -> CancelWorld:
    return CancelWorld(tmp_path / "data")


@pytest.mark.parametrize("together", [True, False])
def test_the_first_timer_of_an_id_stays(world: CancelWorld, together: bool) -> None:
    rows = [keep(0, 9), keep(1, 3), keep(2, 5, timer_id=b"b"), keep(0, 5, partition=1)]
    for batch in [rows] if together else [[row] for row in rows]:
        world.append(*batch)
    world.at_slot(20)
    assert world.sources() == ["timers-0@2", "timers-1@0", "timers-0@0"]
    assert sorted(world.answers()) == [
        ("timers-0@0", "taken"),
        ("timers-0@1", "kept"),
        ("timers-0@2", "taken"),
        ("timers-1@0", "taken"),
    ]
    assert {value["request"] for value in world.values()} == {"keep"}
    assert (world.answered(), world.answered(P1)) == (3, 1)
    assert check(world.path, world.wheel).ok


def test_a_timer_without_keep_blocks_and_is_not_blocked(world: CancelWorld) -> None:
    world.append(timer(0, 9), keep(1, 5), timer(2, 6))
    world.at_slot(20)
    assert world.sources() == ["timers-0@2", "timers-0@0"]
    assert world.answers() == [("timers-0@1", "kept")]


@pytest.mark.parametrize("together", [True, False])
def test_a_cancel_frees_the_id(world: CancelWorld, together: bool) -> None:
    rows = [keep(0, 9), keep(1, 9), cancel(2), keep(3, 9), keep(4, 9)]
    for batch in [rows] if together else [[row] for row in rows]:
        world.append(*batch)
    world.at_slot(20)
    assert world.sources() == ["timers-0@3"]
    assert [word for _, word in world.answers()] == ["taken", "kept", "cancelled", "taken", "kept"]


def test_a_dropped_timer_is_no_timer_for_a_cancel(world: CancelWorld) -> None:
    """It would say `cancelled` of a timer that was delivered."""
    world.append(keep(0, 3))
    world.append(keep(1, 50))
    world.at_slot(9)
    world.append(cancel(2))
    world.at_slot(10)
    (chase,) = world.chases()
    world.append(replace(chase, offset=3))
    world.at_slot(12)
    assert world.sources() == ["timers-0@0"]
    assert world.answers()[-1] == ("timers-0@2", "already_delivered")


def test_a_timer_in_a_closed_slot_counts_as_delivered(world: CancelWorld) -> None:
    world.append(keep(0, 5))
    world.clock.set(NOW_MS + 5 * PRECISION_MS)
    assert world.shard.dequeue is not None
    assert world.shard.dequeue.tick()
    world.append(keep(1, 9))
    world.at_slot(12)
    assert world.sources() == ["timers-0@0", "timers-0@1"]


def test_a_batch_that_is_read_again_after_a_kill_decides_the_same(
    world: CancelWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed before the commit page: nobody has seen the first decision."""
    world.append(keep(0, 9))
    rows = [keep(1, 5), cancel(2), keep(3, 7), keep(4, 8)]
    ingest = world.shard.directory(Role.INGEST)

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as context:
        context.setattr(ingest.state, "write_commit", killed)
        with pytest.raises(KeyboardInterrupt):
            world.append(*rows)
    world.shard.kill(Role.INGEST)
    world.shard.start_ingest()
    world.append(*rows)
    world.at_slot(20)
    assert world.sources() == ["timers-0@3"]
    assert [word for _, word in world.answers()] == ["taken", "kept", "cancelled", "taken", "kept"]


def test_after_a_loss_of_the_files_a_dropped_timer_stays_dropped(
    world: CancelWorld, tmp_path: Path
) -> None:
    rows = [keep(0, 40), keep(1, 9), timer(2, 6, partition=1)]
    world.append(*rows)
    world.at_slot(5)
    world.lose_files(tmp_path / "other", {P0: 0, P1: 0})
    world.append(*rows)
    world.at_slot(50)
    assert world.sources() == ["timers-1@2", "timers-0@0"]
    words = dict(world.answers())
    assert (len(world.answers()), words["timers-0@1"]) == (2, "kept")


def test_a_timer_that_is_read_again_reads_few_messages_of_an_id_with_many(
    world: CancelWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each batch would read all of them again, though one that is pending decides. A cancel of
    another id that is read again, in the same batch, reads all of its own.
    """
    rows_max, count = 20, 200
    pending = [timer(offset, 50) for offset in range(count)]
    others = [TimerRow(1, n, NOW_MS + 500, timer_id=b"b") for n in range(100)]
    batches = [[keep(count + n, 50), cancel(100 + n, partition=1, timer_id=b"b")] for n in range(6)]
    for rows in [[*pending, *others], *batches]:
        world.append(*rows)
    world.at_slot(5)
    world.lose_files(tmp_path / "other", {P0: 0, P1: 0})
    world.limit_lookups(rows_max=rows_max)
    world.append(*pending, *others)
    read = count_messages_read(monkeypatch)
    for turn, rows in enumerate(batches):
        read.clear()
        world.append(*rows)
        assert rows_max <= sum(read) <= rows_max + (1 if turn > 1 else len(others))
    world.at_slot(60)
    assert len(world.sources()) == count
    assert {word for source, word in world.answers() if "timers-0" in source} == {"kept"}


def test_a_batch_without_the_header_looks_nothing_up(
    world: CancelWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("duewheel.wheel.append.cancel_files.keeps.dropped", None)
    world.append(timer(0, 5), cancel(1), timer(2, 6))
    world.at_slot(20)
    assert world.sources() == ["timers-0@2"]


def test_a_batch_with_many_ids_overlooks_no_pending_timer(tmp_path: Path) -> None:
    """Timers of the windows before, which have left, would take the bounded number of messages."""
    world = CancelWorld(tmp_path / "data")
    world.limit_lookups(rows_max=60, settled_ms=0)
    ids, windows = [b"device %d" % n for n in range(40)], 5
    for window in range(windows):
        for turn in range(2):
            first = (2 * window + turn) * len(ids)
            slot = 4 * window + 3
            world.append(*(keep(first + n, slot, timer_id=each) for n, each in enumerate(ids)))
        world.at_slot(4 * window + 4)
    world.at_slot(4 * windows + 4)
    words = [word for _, word in world.answers()]
    assert words == windows * (len(ids) * ["taken"] + len(ids) * ["kept"])
    assert len(world.sources()) == windows * len(ids)
