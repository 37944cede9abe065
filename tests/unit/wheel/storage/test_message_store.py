"""Stored messages read back in any order, a few calls for neighbours, each one verified."""

from __future__ import annotations

import random
import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.harness.timer_rows import TimerRow, timer_batch

from duewheel.checkpoints.fs import read_into
from duewheel.errors import CorruptFile
from duewheel.schemas.arrays import Int64
from duewheel.schemas.batches import TimerBatch
from duewheel.schemas.columns import binary, lengths
from duewheel.wheel.append.placement import first_of_each
from duewheel.wheel.storage import message_store
from duewheel.wheel.storage.byte_layouts import NO_POSITION, PREFIX_BYTES
from duewheel.wheel.storage.message_store import MessageStore, split_by_limits
from duewheel.wheel.storage.record_builder import RowPositions, log_records, seal, stored_messages
from duewheel.wheel.storage.timer_log import Records

HOUR = 500_000
SLOT = 36_000_000_000
IDS = np.arange(3, dtype=np.int32)


def write(store: MessageStore, batch: TimerBatch, position: Int64) -> Records:
    """Store the rows at the given positions; returns their log records."""
    messages = stored_messages(batch, IDS)
    slot = np.full(len(batch), SLOT)
    places = RowPositions(
        slot, slot, position, np.full(len(batch), NO_POSITION), first_of_each(slot)
    )
    records = log_records(
        batch,
        np.zeros(len(batch), np.bool_),
        batch.id_hash,
        places,
        lengths(messages),
        50,
        SLOT * 50,
        "key",
    )
    octets = seal(messages, records, batch.id_hash)
    ends = np.cumsum(lengths(messages))
    store.files.make_folder()
    for row, at in enumerate(position.tolist()):
        size = int(records["size_py"][row])
        store.files.write(HOUR, octets[int(ends[row]) - size : int(ends[row])], at)
    return records


def some(count: int) -> TimerBatch:
    return timer_batch([TimerRow(0, offset, SLOT * 50 - offset) for offset in range(count)])


@pytest.mark.parametrize("gap", [0, 1, 5_000, 8_192, 8_193, 100_000])
@pytest.mark.parametrize("shuffled", [False, True])
def test_messages_come_back_in_the_records_order(tmp_path: Path, gap: int, shuffled: bool) -> None:
    store = MessageStore(tmp_path)
    batch = some(40)
    size = lengths(stored_messages(batch, IDS))
    records = write(store, batch, np.cumsum(size + gap) - size)
    rows = list(range(40))
    if shuffled:
        random.Random(gap).shuffle(rows)
    found = store.read(HOUR, records[rows])
    expected = batch.take(np.array(rows))
    assert found.timer_id.equals(expected.timer_id)
    targets = [expected.targets[index].encode() for index in expected.target.tolist()]
    assert found.target.to_pylist() == targets
    assert found.key_value.equals(expected.key_value)
    assert found.headers.equals(expected.headers)
    assert found.prefix["source_offset"].tolist() == rows
    assert found.prefix["due_ms"].tolist() == expected.due_ms.tolist()
    store.close()


def test_a_message_without_anything_but_its_prefix(tmp_path: Path) -> None:
    store = MessageStore(tmp_path)
    nothing = binary([b"", b""])
    batch = replace(some(2), timer_id=nothing, key_value=nothing, headers=nothing, targets=[""] * 3)
    records = write(store, batch, np.array([0, PREFIX_BYTES]))
    found = store.read(HOUR, records)
    columns = (found.timer_id, found.target, found.key_value, found.headers)
    assert [column.to_pylist() for column in columns] == [[b"", b""]] * 4


def test_every_byte_of_a_message_and_of_its_record_is_checked(tmp_path: Path) -> None:
    store = MessageStore(tmp_path)
    records = write(store, some(3).take(np.array([2])), np.array([7]))
    path = store.files.path(HOUR)
    whole = path.read_bytes()
    for at in range(7, len(whole)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises(CorruptFile, match="does not match its checksum") as caught:
            store.read(HOUR, records)
        assert caught.value.offset == 7
    path.write_bytes(whole)
    for field in ("prev_pos", "magic", "write_time", "delay", "topic_hash", "reserved"):
        changed = records.copy()
        changed[field] += 1
        with pytest.raises(CorruptFile, match="does not match its checksum"):
            store.read(HOUR, changed)
    assert len(store.read(HOUR, records).prefix) == 1


def test_ids_are_checked_and_read_without_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cancel of a few bytes would else have megabytes read, as often as it is sent."""
    store = MessageStore(tmp_path)
    batch = replace(some(3), key_value=binary([bytes(1 << 20)] * 3))
    size = lengths(stored_messages(batch, IDS))
    records = write(store, batch, np.cumsum(size) - size)
    read = list[int]()

    def counted(fd: int, into: memoryview, *rest: Any) -> None:
        read.append(len(into))
        read_into(fd, into, *rest)

    monkeypatch.setattr(message_store, "read_into", counted)
    path, whole = store.files.path(HOUR), bytes(store.files.read(HOUR, 0, int(size[0])))
    prefix, ids = store.read_ids(HOUR, records[::-1])
    assert ids.equals(batch.timer_id.take([2, 1, 0]))
    assert prefix["source_offset"].tolist() == [2, 1, 0]
    assert sum(read) <= 3 * (PREFIX_BYTES + 255)
    end = PREFIX_BYTES + int(prefix["id_size"][2])
    for at in range(4, end + 1):  # the first four are the checksum of all
        with path.open("r+b") as file:
            file.write(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 : end + 1])
        if at == end:
            store.read_ids(HOUR, records)  # no part of it
            continue
        with pytest.raises(CorruptFile, match="does not match its checksum"):
            store.read_ids(HOUR, records)
    with pytest.raises(CorruptFile, match="does not match its checksum"):
        store.read(HOUR, records)
    changed = records.copy()
    changed["write_time"] += 1
    with pytest.raises(CorruptFile, match="does not match its checksum"):
        store.read_ids(HOUR, changed)


def test_one_bad_message_is_named_among_good_ones(tmp_path: Path) -> None:
    store = MessageStore(tmp_path)
    records = write(store, some(5), np.arange(5) * 1_000)
    store.files.write(HOUR, b"?", 3_000 + PREFIX_BYTES)
    with pytest.raises(CorruptFile) as caught:
        store.read(HOUR, records[::-1])
    assert caught.value.offset == 3_000
    assert len(store.read(HOUR, records[:3]).prefix) == 3


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        ("offset_py", 10**6, "file ends"),
        ("offset_py", -1, "points at no message"),
        ("size_py", PREFIX_BYTES - 1, "points at no message"),
        ("size_py", 10**6, "file ends"),
    ],
)
def test_a_record_that_points_outside_is_damage(
    tmp_path: Path, field: str, value: int, reason: str
) -> None:
    store = MessageStore(tmp_path)
    records = write(store, some(2), np.array([0, 1_000]))
    records[field][1] = value
    with pytest.raises(CorruptFile, match=reason):
        store.read(HOUR, records)


def test_a_record_that_asks_for_gigabytes_is_refused_without_them(tmp_path: Path) -> None:
    store = MessageStore(tmp_path)
    records = write(store, some(2), np.array([0, 1_000]))
    records["size_py"][1] = 2**31 - 1
    tracemalloc.start()
    try:
        with pytest.raises(CorruptFile, match="file ends"):
            store.read(HOUR, records)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 10**6


def test_what_is_verified_at_once_is_bounded(tmp_path: Path) -> None:
    records = write(MessageStore(tmp_path), some(9), np.arange(9) * 1_000)
    records["size_py"] = [1, 2, 3, 100, 1, 1, 1, -1, 8]
    parts = split_by_limits(records, records_max=3, bytes_max=8)
    found = [part["size_py"].tolist() for part in parts]
    assert found == [[1, 2, 3], [100], [1, 1, 1], [-1, 8]]
    assert list(split_by_limits(records[:0])) == []
