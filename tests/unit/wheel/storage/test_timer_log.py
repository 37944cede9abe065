"""The log: chains of runs walked back in lockstep, runs read again, damage noticed."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from duewheel.errors import CorruptFile
from duewheel.wheel.slots import hour_of
from duewheel.wheel.storage.byte_layouts import (
    ENTRY,
    MAGIC_ABANDONED,
    MAGIC_TIMER,
    NO_POSITION,
    RECORD,
    Entries,
    distance_of,
    pack_reserved,
)
from duewheel.wheel.storage.timer_log import Records, TimerLog, runs_in

HOUR = 500_000
PRECISION_MS = 7
BASE = 257_142_858


def write_log(
    path: Path, batches: list[list[int]]
) -> tuple[TimerLog, Records, dict[int, list[int]]]:
    """A log of the given batches of slots, and each slot's record positions, oldest first."""
    last: dict[int, int] = defaultdict(lambda: NO_POSITION)
    positions = defaultdict(list)
    records = np.zeros(sum(map(len, batches)), RECORD)
    row = 0
    for batch in batches:
        for slot in sorted(set(batch)):
            for distance in range(batch.count(slot)):
                records[row]["size"] = 52
                records[row]["magic"] = MAGIC_TIMER
                records[row]["prev_pos"] = last[slot]
                records[row]["write_time"] = slot * PRECISION_MS - row
                records[row]["delay"] = row
                reserved = pack_reserved(np.array([distance]), np.array([2**40 - 1 - row]))
                records[row]["reserved"] = reserved[0]
                last[slot] = 52 * row
                positions[slot].append(52 * row)
                row += 1
    log = TimerLog(path)
    log.files.make_folder()
    log.files.write(HOUR, records.tobytes(), 0)
    return log, records, positions


def entries_of(positions: dict[int, list[int]]) -> Entries:
    return np.array(
        [(slot, at[0], at[-1], len(at), 1) for slot, at in sorted(positions.items())], ENTRY
    )


slots = st.integers(BASE, BASE + 6)


@settings(max_examples=60)
@given(
    batches=st.lists(st.lists(slots, min_size=1, max_size=12), min_size=1, max_size=8),
    alone_max=st.sampled_from([0, 3, 99]),
)
def test_a_walk_finds_every_slot_s_records_in_order(
    tmp_path_factory: pytest.TempPathFactory, batches: list[list[int]], alone_max: int
) -> None:
    log, _, positions = write_log(tmp_path_factory.mktemp("log"), batches)
    found = log.walk(HOUR, entries_of(positions), alone_max=alone_max)
    walked: dict[int, list[int]] = defaultdict(list)
    rows = zip(found.slot.tolist(), found.first_pos.tolist(), found.count.tolist(), strict=True)
    for slot, first, count in rows:
        walked[slot] += [first + 52 * i for i in range(count)]
    assert walked == positions
    assert found.slot.tolist() == sorted(found.slot.tolist())
    log.close()


@settings(max_examples=60)
@given(
    batches=st.lists(st.lists(slots, min_size=1, max_size=12), min_size=2, max_size=4),
    abandoned=st.integers(0, 3),
)
def test_the_last_batch_is_read_back_as_runs_without_what_was_abandoned(
    tmp_path_factory: pytest.TempPathFactory, batches: list[list[int]], abandoned: int
) -> None:
    log, records, _ = write_log(tmp_path_factory.mktemp("log"), batches)
    begin = sum(map(len, batches[:-1]))
    kept = sorted(set(batches[-1]))[abandoned:]
    records = records[begin:].copy()
    slot = (records["write_time"].astype(np.int64) + records["delay"]) // PRECISION_MS
    records["magic"][~np.isin(slot, kept)] = MAGIC_ABANDONED
    runs = runs_in(records, 52 * begin, PRECISION_MS)
    assert runs.slot.tolist() == kept
    assert runs.count.tolist() == [batches[-1].count(slot) for slot in kept]
    first = [begin + sorted(batches[-1]).index(slot) for slot in kept]
    assert runs.first_pos.tolist() == [52 * row for row in first]
    assert (runs.last_pos - runs.first_pos).tolist() == [52 * (n - 1) for n in runs.count]
    assert runs.prev_pos.tolist() == [records["prev_pos"][row - begin] for row in first]
    log.close()


def test_a_reader_sees_what_is_appended_behind_its_view(tmp_path: Path) -> None:
    log, records, _ = write_log(tmp_path, [[BASE, BASE]])
    reader = TimerLog(tmp_path)
    assert len(reader.view(HOUR, 104)) == 2
    with pytest.raises(CorruptFile, match="ends before position 156"):
        reader.view(HOUR, 156)
    log.files.write(HOUR, records.tobytes(), 104)
    assert reader.view(HOUR, 208).tobytes() == records.tobytes() * 2
    # A torn record behind the committed length is no record.
    log.files.write(HOUR, b"torn", 208)
    assert reader.view(HOUR, 208).nbytes == 208
    assert TimerLog(tmp_path).view(HOUR, 208).nbytes == 208
    assert reader.read(HOUR, 52, 156).tobytes() == (records.tobytes() * 2)[52:156]
    reader.forget_below(HOUR + 1)
    assert len(reader.view(HOUR, 208)) == 4


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        ("last_pos", 52 * 7, "ends before position"),
        ("last_pos", -104, "outside the log"),
        ("last_pos", 53, "outside the log"),
        ("last_pos", 52 * 2, "has 1 records, its entry says 4"),
        ("num", 5, "has 4 records, its entry says 5"),
    ],
)
@pytest.mark.parametrize("alone_max", [0, 9])
def test_an_entry_that_does_not_fit_the_log_is_damage(
    tmp_path: Path, field: str, value: int, reason: str, alone_max: int
) -> None:
    log, _, positions = write_log(tmp_path, [[BASE, BASE + 1, BASE], [BASE], [BASE]])
    entries = entries_of(positions)
    assert entries["num"].tolist() == [4, 1]
    entries[field][0] = value
    with pytest.raises(CorruptFile, match=reason):
        log.walk(HOUR, entries, alone_max=alone_max)


@pytest.mark.parametrize(
    ("row", "field", "value", "reason"),
    [
        (3, "prev_pos", 52 * 3, "runs forward"),
        (3, "prev_pos", 52 * 9, "runs forward"),
        (3, "prev_pos", -2, "outside the log"),
        (3, "reserved", 9 << 40, "outside the log"),
        (0, "prev_pos", 52, "runs forward"),
    ],
)
@pytest.mark.parametrize("alone_max", [0, 9])
def test_a_chain_that_cannot_be_is_damage(
    tmp_path: Path, row: int, field: str, value: int, reason: str, alone_max: int
) -> None:
    log, records, positions = write_log(tmp_path, [[BASE, BASE + 1, BASE], [BASE]])
    records[row][field] = value
    log.files.write(HOUR, records.tobytes(), 0)
    with pytest.raises(CorruptFile, match=reason):
        log.walk(HOUR, entries_of(positions), alone_max=alone_max)


@pytest.mark.parametrize(
    ("field", "change"),
    [("prev_pos", 52 * 3 + 1), ("write_time", 3_600_000), ("delay", -(1 << 30))],
)
def test_runs_that_cannot_be_are_not_linked(tmp_path: Path, field: str, change: int) -> None:
    """A disk that returns stale bytes of a record can lead to such a run."""
    log, records, _ = write_log(tmp_path, [[BASE, BASE + 1], [BASE]])
    hour = hour_of(BASE, PRECISION_MS)
    assert log.runs(hour, records, 0, PRECISION_MS).first_pos.tolist() == [0, 52, 104]
    records[2][field] += change
    with pytest.raises(CorruptFile, match="a run of slot"):
        log.runs(hour, records, 0, PRECISION_MS)
    assert len(log.runs(hour, records[:2], 0, PRECISION_MS)) == 2


@pytest.mark.parametrize("size", [0, 1, 51])
def test_a_log_without_a_whole_record_is_damage(tmp_path: Path, size: int) -> None:
    log, _, positions = write_log(tmp_path, [[BASE]])
    log.files.cut(HOUR, size)
    with pytest.raises(CorruptFile, match="the log ends"):
        log.walk(HOUR, entries_of(positions))
    entries = entries_of(positions)
    entries["last_pos"] = -52
    with pytest.raises(CorruptFile, match="outside the log"):
        log.walk(HOUR, entries)


@settings(max_examples=60)
@given(
    batches=st.lists(st.lists(slots, min_size=1, max_size=12), min_size=1, max_size=8),
    wanted=st.integers(1, 9),
)
def test_a_whole_log_comes_in_pieces_that_cut_no_run(
    tmp_path_factory: pytest.TempPathFactory, batches: list[list[int]], wanted: int
) -> None:
    log, records, _ = write_log(tmp_path_factory.mktemp("log"), batches)
    blocks = list(log.blocks(HOUR, records.nbytes, block_records=wanted))
    position = 0
    for start, block in blocks:
        assert start == position
        assert distance_of(block["reserved"][:1]) == 0
        position += block.nbytes
    assert b"".join(block.tobytes() for _, block in blocks) == records.tobytes()
    longest = max(batch.count(slot) for batch in batches for slot in batch)
    assert max(len(block) for _, block in blocks) < 2 * max(wanted, longest + 1)
    log.close()
