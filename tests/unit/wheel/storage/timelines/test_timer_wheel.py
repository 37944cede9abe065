"""The ring: linked runs, a redo, and entries of a later lap."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.harness.killed import Killed
from tests.harness.timelines import wheel_only

from duewheel.errors import CorruptFile
from duewheel.wheel.storage.byte_layouts import NO_POSITION
from duewheel.wheel.storage.runs import Runs
from duewheel.wheel.storage.timelines.timer_wheel import TimerWheel

pytestmark = wheel_only

RING = 16
END = np.full(3, 1 << 20)  # of a log that has whatever the wheel leads to


def made(path: Path) -> TimerWheel:
    new = TimerWheel.create(path, RING)
    new.put_in_place()
    new.close()
    return TimerWheel(path, RING)


@pytest.fixture
def wheel(tmp_path: Path) -> TimerWheel:
    path = tmp_path / "timerwheel"
    return made(path)


def runs(*rows: tuple[int, int, int, int, int]) -> Runs:
    """Rows of slot, first_pos, last_pos, prev_pos, count."""
    return Runs(*np.array(rows, np.int64).reshape(-1, 5).T)


def entries(wheel: TimerWheel) -> list[tuple[int, ...]]:
    return [tuple(map(int, entry.item())) for entry in wheel.range(0, RING)]


def test_a_slot_collects_its_runs(wheel: TimerWheel) -> None:
    wheel.apply(runs((3, 0, 52, NO_POSITION, 2), (5, 104, 104, NO_POSITION, 1)), batch=1)
    wheel.apply(runs((3, 156, 260, 52, 3)), batch=2)
    assert entries(wheel) == [(3, 0, 260, 5, 2), (5, 104, 104, 1, 1)]
    assert wheel.last_positions(np.array([3, 4, 5]), END).tolist() == [260, NO_POSITION, 104]


def test_an_entry_on_disk_is_these_bytes(wheel: TimerWheel) -> None:
    wheel.apply(runs((2**33 + 3, 52, 2**34, NO_POSITION, 7)), batch=2**31 + 9)
    data = wheel.path.read_bytes()
    at = (2**33 + 3) % RING * 32
    assert data[at : at + 32] == struct.pack(">qqqii", 2**33 + 3, 52, 2**34, 7, 9)
    unused = [struct.pack(">qqqii", place - RING, 0, 0, 0, 0) for place in range(RING)]
    assert data[:at] + data[at + 32 :] == b"".join(unused[: at // 32] + unused[at // 32 + 1 :])


def test_doing_a_batch_again_changes_nothing(wheel: TimerWheel) -> None:
    wheel.apply(runs((3, 0, 52, NO_POSITION, 2)), batch=1)
    second = runs((3, 104, 104, 52, 1), (4, 156, 156, NO_POSITION, 1))
    wheel.apply(second, batch=2)
    before = wheel.path.read_bytes()
    wheel.apply(second, batch=2)
    assert wheel.path.read_bytes() == before


def test_a_damaged_name_of_a_batch_hides_no_run_from_its_redo(wheel: TimerWheel) -> None:
    """Of batch 1, but one bit made it batch 2, which a kill has left half applied."""
    wheel.apply(runs((3, 0, 52, NO_POSITION, 2)), batch=2)
    with pytest.raises(CorruptFile, match="batch 2 ends slot 3 elsewhere"):
        wheel.apply(runs((3, 104, 104, 52, 1)), batch=2)


class HalfStores(np.ndarray[Any, Any]):
    """An array in which the n-th assignment reaches only half of its elements."""

    left = 0

    def __setitem__(self, key: Any, value: Any) -> None:
        if HalfStores.left == 0:
            if isinstance(key, np.ndarray):
                half = len(key) // 2
                np.ndarray.__setitem__(self, key[:half], np.asarray(value)[:half])
            raise Killed
        HalfStores.left -= 1
        np.ndarray.__setitem__(self, key, value)


def test_a_batch_killed_at_any_store_is_finished_by_redo(tmp_path: Path) -> None:
    # An entry of the lap before, one with a run of an older batch, empty ones.
    old = runs((3, 0, 0, NO_POSITION, 1), (5, 52, 104, NO_POSITION, 2))
    new = runs(
        (3 + RING, 156, 208, NO_POSITION, 2),
        (5, 260, 312, 104, 2),
        (6, 364, 364, NO_POSITION, 1),
        (7, 416, 416, NO_POSITION, 1),
    )
    stores = 0
    finished = False
    images = set()
    while not finished:
        path = tmp_path / str(stores)
        wheel = made(path)
        wheel.apply(old, batch=1)
        killed = TimerWheel(path, RING)
        # Only the arrays themselves see each store.
        killed._entries = killed._entries.view(HalfStores)  # noqa: SLF001
        killed._num_magic = killed._num_magic.view(HalfStores)  # noqa: SLF001
        HalfStores.left = stores
        try:
            killed.apply(new, batch=2)
            finished = True
        except Killed:
            wheel.apply(new, batch=2)
        images.add(path.read_bytes())
        stores += 1
    assert stores == 5
    assert len(images) == 1
    assert wheel.last_positions(np.array([3, 3 + RING, 5]), END).tolist() == [NO_POSITION, 208, 312]


@pytest.mark.parametrize("lap", [0, 1, 7])
def test_a_range_is_read_in_slot_order_around_the_end(wheel: TimerWheel, lap: int) -> None:
    start = lap * RING + 10
    slots = [start + 1, start + 5, start + 9, start + RING]
    wheel.apply(runs(*((s, i * 52, i * 52, NO_POSITION, 1) for i, s in enumerate(slots))), 1)

    def found(after: int, until: int) -> list[int]:
        return [int(slot) for slot in wheel.range(after, until)["time"]]

    assert found(start, start + RING) == slots
    assert found(start, start) == []
    assert found(start + 1, start + 9) == slots[1:3]
    assert found(start + 4, start + 5) == slots[1:2]
    assert found(start + RING, start + 2 * RING) == []
    assert wheel.count(start + 5, start + RING) == 2


def test_a_copy_does_not_change_any_more(wheel: TimerWheel) -> None:
    wheel.apply(runs((3, 0, 0, NO_POSITION, 1)), batch=1)
    taken = (wheel.range(0, RING), wheel.snapshot())
    before = [entries.tobytes() for entries in taken]
    wheel.apply(runs((3, 52, 52, 0, 1)), batch=2)
    assert [entries.tobytes() for entries in taken] == before


def test_a_file_of_another_length_is_refused(wheel: TimerWheel) -> None:
    with pytest.raises(CorruptFile, match="512 bytes long, expected 1024"):
        TimerWheel(wheel.path, 2 * RING)
