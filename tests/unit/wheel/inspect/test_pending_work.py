"""The work of a count of pending timers that all differ in slot or kind: producers choose both."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.harness.local_world import LocalWorld, ring, timer
from tests.harness.timer_rows import P0, timer_batch

from duewheel.wheel.inspect import topic_counts
from duewheel.wheel.inspect.pending_counts import PendingTimers
from duewheel.wheel.storage import log_scan
from duewheel.wheel.storage.data_directory import DataDirectory

BLOCKS, BLOCK = 64, 64


class SortedNumbers:
    """Counts the elements of all arrays that numpy sorts."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.count = 0
        for name in ("sort", "argsort", "unique", "union1d"):
            patch.setattr(np, name, self._counted(getattr(np, name)))

    def _counted(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arrays: Any, **options: Any) -> Any:
            self.count += sum(np.size(array) for array in arrays)
            return function(*arrays, **options)

        return counted

    def of(self, work: Callable[[], object]) -> int:
        before = self.count
        work()
        return self.count - before


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LocalWorld:
    """With a timer in each slot."""
    monkeypatch.setattr(log_scan, "_RECORDS_AT_ONCE", BLOCK)
    world = LocalWorld(tmp_path / "data", ring(2 * BLOCKS * BLOCK))
    append(world, BLOCKS * BLOCK)
    return world


def append(world: LocalWorld, count: int) -> None:
    first = world.engine.marks[P0]
    world.append(*(timer(0, offset, 10 + offset) for offset in range(first, first + count)))


def test_a_count_sorts_each_key_as_often_as_blocks_double(
    world: LocalWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    pending = PendingTimers(DataDirectory(world.path, world.wheel))
    numbers = SortedNumbers(monkeypatch)
    doublings = BLOCKS.bit_length() - 1
    assert 0 < numbers.of(pending.count) <= BLOCKS * BLOCK * (doublings + 4)
    assert pending.count().total == BLOCKS * BLOCK


def test_timers_with_targets_of_their_own_cost_no_more(
    world: LocalWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A producer has invented the names."""
    monkeypatch.setattr(topic_counts, "TARGETS_KEPT", BLOCK)
    first = world.engine.marks[P0]
    rows = [timer(0, first + n, 10 + n) for n in range(BLOCKS * BLOCK)]
    names = [f"none.{n}" for n in range(len(rows))]
    batch = replace(timer_batch(rows), targets=names, target=np.arange(len(rows), dtype=np.int32))
    world.engine.append(batch, {P0: first + len(rows)})
    pending = PendingTimers(DataDirectory(world.path, world.wheel))
    numbers = SortedNumbers(monkeypatch)
    doublings = BLOCKS.bit_length()
    assert 0 < numbers.of(pending.count) <= 2 * BLOCKS * BLOCK * (doublings + 8)
    append(world, 20)
    assert 0 < numbers.of(pending.count) < 1_000


def test_a_further_count_sorts_the_new_keys_alone(
    world: LocalWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    pending = PendingTimers(DataDirectory(world.path, world.wheel))
    pending.count()
    numbers = SortedNumbers(monkeypatch)
    append(world, 20)
    world.at_slot(12)  # three leave
    assert 0 < numbers.of(pending.count) < 200
    assert pending.count().total == BLOCKS * BLOCK + 17
