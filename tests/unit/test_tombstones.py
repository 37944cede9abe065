"""Which cancels meet which rows, and what they are told: many of one id, and against all pairs."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable

import numpy as np
import pytest

from duewheel.schemas.columns import binary
from duewheel.schemas.header_names import Answer
from duewheel.wheel.answers import WORDS
from duewheel.wheel.cancel_log import CancelRows
from duewheel.wheel.growing import GrowingTombstones
from duewheel.wheel.tombstones import NOTHING, Filter, Tombstones, superseded
from duewheel.wheel.verdicts import Rows, verdicts

PARTITIONS = [("timers", 0), ("timers", 1)]
PLACES = {p: index for index, p in enumerate(PARTITIONS)}
MANY = 40_000
NONE_DAMAGED = np.empty(0, np.int64)
BYTES_MAX = 64 * 1024 * 1024  # pairs would take 1,000 times as much
ASKED_FOR = 12  # the first of them


def cancels_of(ids: list[bytes], offset: list[int], partition: list[int]) -> Tombstones:
    count = len(ids)
    index, zeros = np.array(partition, np.int32), np.zeros(count, np.int64)
    # Few hashes: ids have them in common.
    hashes = np.array([len(each) for each in ids], np.int64)
    at = np.array(offset, np.int64)
    rows = CancelRows(index, index, at, hashes, binary(ids), zeros, zeros, zeros, zeros > 0)
    return Tombstones.known(rows, index, 0)


def rows_of(ids: list[bytes], origin: list[int], partition: list[int]) -> Rows:
    count = len(ids)
    hashes = np.array([len(each) for each in ids], np.int64)
    index, at = np.array(partition, np.int32), np.array(origin, np.int64)
    flags = np.zeros(count, np.bool_)
    return Rows(index, at, hashes, binary(ids), np.full(count, 7), flags, ~flags)


def leaves_out(cancels: Filter, rows: Rows) -> list[bool]:
    met = cancels.leaves_out(PARTITIONS, rows.partition, rows.origin, rows.id_hash, rows.timer_id)
    return [bool(each) for each in met]


def peak_bytes(work: Callable[[], object]) -> int:
    tracemalloc.start()
    work()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return peak


def test_the_filter_of_an_id_that_is_rescheduled_over_and_over_is_one_entry() -> None:
    places = list(range(MANY))
    live = cancels_of([b"same"] * MANY, places, [0] * MANY)
    cancels = Filter((), PLACES).beside(live)
    assert len(cancels) == 1
    rows = rows_of([b"same"] * MANY, places, [0] * MANY)
    assert sum(leaves_out(cancels, rows)) == MANY - 1
    assert peak_bytes(lambda: leaves_out(cancels, rows)) < BYTES_MAX


def test_an_id_that_is_rescheduled_over_and_over_is_looked_up_in_bounded_memory() -> None:
    places = list(range(MANY))
    live = cancels_of([b"same"] * MANY, places, [0] * MANY)
    rows, settled = rows_of([b"same"] * MANY, places, [0] * MANY), np.ones(MANY, np.bool_)
    word, first, last = verdicts(live, settled, rows, live, NONE_DAMAGED)
    assert [WORDS[each] for each in word] == [Answer.UNKNOWN] + [Answer.CANCELLED] * (MANY - 1)
    assert (first[0], set(first[1:].tolist())) == (-NOTHING, {7})
    assert (last[0], set(last[1:].tolist())) == (NOTHING, {7})
    assert peak_bytes(lambda: verdicts(live, settled, rows, live, NONE_DAMAGED)) < BYTES_MAX


def test_adding_a_few_cancels_to_many_moves_few() -> None:
    ids = [b"%d" % i for i in range(2_000)]
    cancels = Filter((), PLACES).beside(cancels_of(ids, list(range(2_000)), [0] * 2_000))
    (longest,) = cancels.runs
    for i in range(400):
        cancels = cancels.beside(cancels_of([b"new-%d" % i], [3_000 + i], [0]))
        assert cancels.runs[0] is longest
        assert len(cancels.runs) < 8
    for i in range(400, 700):
        cancels = cancels.beside(cancels_of([b"new-%d" % i], [3_000 + i], [0]))
    assert len(cancels.runs[0]) > 2_500
    assert all(leaves_out(cancels, rows_of(ids[1:], [0] * 1_999, [0] * 1_999)))


def chosen(rng: np.random.Generator, count: int) -> tuple[list[bytes], list[int], list[int]]:
    ids = [bytes(rng.choice(list(b"abc"), 1)) * int(rng.integers(1, 3)) for _ in range(count)]
    return ids, rng.integers(0, 12, count).tolist(), rng.integers(0, 2, count).tolist()


def meets(cancels: Tombstones, i: int, rows: Rows, j: int) -> bool:
    return bool(
        cancels.partition[i] == rows.partition[j]
        and cancels.timer_id[i] == rows.timer_id[j]
        and rows.origin[j] < cancels.offset[i]
    )


@pytest.mark.parametrize("seed", range(60))
def test_what_is_left_out_is_what_a_pair_of_cancel_and_row_says(seed: int) -> None:
    rng = np.random.default_rng(seed)
    parts = [cancels_of(*chosen(rng, int(rng.integers(1, 9)))) for _ in range(4)]
    cancels, rows = Filter((), PLACES), rows_of(*chosen(rng, 40))
    for part in parts:
        cancels = cancels.beside(part)
    expected = [
        any(meets(part, i, rows, j) for part in parts for i in range(len(part)))
        for j in range(len(rows))
    ]
    assert leaves_out(cancels, rows) == expected


def told(asked: Tombstones, i: int, settled: bool, rows: Rows, others: Tombstones) -> Answer | None:
    """What the cancel is told, of all pairs."""
    met = [j for j in range(len(rows)) if meets(asked, i, rows, j)]
    if any(rows.slot[j] > asked.after[i] and not rows.was_out[j] for j in met):
        return Answer.CANCELLED
    if not settled:
        return None
    left_out = {
        rows.origin[j]
        for j in met
        for k in range(len(others))
        if meets(others, k, rows, j) and rows.slot[j] > others.after[k]
    }
    delivered = any(rows.ends[j] and rows.origin[j] not in left_out for j in met)
    return Answer.ALREADY_DELIVERED if delivered else Answer.UNKNOWN


@pytest.mark.parametrize("seed", range(60))
def test_cancels_are_told_what_pairs_of_them_and_rows_say(seed: int) -> None:
    rng = np.random.default_rng(seed)
    known, (ids, origin, partition) = cancels_of(*chosen(rng, 20)), chosen(rng, 30)
    known.after[:] = rng.integers(0, 12, len(known))
    flags = np.array(rng.integers(0, 2, (3, 30)), np.bool_)
    found = rows_of(ids, origin, partition)
    slot = rng.integers(1, 12, 30)
    rows = Rows(
        found.partition, found.origin, found.id_hash, found.timer_id, slot, flags[0], flags[1]
    )
    asked = known.take(np.arange(ASKED_FOR))
    settled = np.array(rng.integers(0, 2, ASKED_FOR), np.bool_)
    word, first, last = verdicts(asked, settled, rows, known, NONE_DAMAGED)
    for i in range(ASKED_FOR):
        met = [slot[j] for j in range(30) if meets(asked, i, rows, j)]
        assert first[i] == min([slot for slot in met if slot > asked.after.min()], default=-NOTHING)
        assert last[i] == max([*met, NOTHING])
        answer = told(asked, i, bool(settled[i]), rows, known)
        assert (WORDS[word[i]] if word[i] >= 0 else None) == answer


@pytest.mark.parametrize("seed", range(20))
def test_whose_place_is_taken_is_what_pairs_of_cancels_say(seed: int) -> None:
    rng = np.random.default_rng(seed)
    known = cancels_of(*chosen(rng, 40))
    known.hour[:], known.position[:] = rng.integers(0, 3, 40), rng.permutation(40)
    may = np.array(rng.integers(0, 2, 40), np.bool_)
    ids, places = known.timer_id.to_pylist(), known.partition.tolist()

    def written(i: int) -> tuple[int, int]:
        return int(known.hour[i]), int(known.position[i])

    found = superseded(known, may)
    for i in range(40):
        behind = [
            j
            for j in range(40)
            if may[j] and (ids[j], places[j]) == (ids[i], places[i])
            if (known.offset[j], *written(j)) > (known.offset[i], *written(i))
        ]
        assert found[i] == bool(behind)
    assert not len(superseded(known.take(np.arange(0)), may[:0]))


def test_columns_grow_and_keep_what_the_mask_says() -> None:
    rng, growing = np.random.default_rng(1), GrowingTombstones()
    parts = [cancels_of(*chosen(rng, count)) for count in (1, 5, 0, 40)]
    for part in parts:
        growing.append(part)
    ids = [value for part in parts for value in part.timer_id.to_pylist()]
    assert growing.rows.timer_id.to_pylist() == ids
    growing.rows.word[3] = 2
    kept = growing.kept(np.arange(46) % 3 == 0)
    assert kept.rows.timer_id.to_pylist() == ids[::3]
    assert kept.rows.word.tolist() == [-1, 2] + [-1] * 14
    assert kept.rows.offset.tolist() == np.concatenate([p.offset for p in parts])[::3].tolist()
