"""What the tasks hand over is what the driver takes; in files, these are removed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from tests.harness.timer_rows import TimerRow, timer_batch

from duewheel.schemas.batches import TimerBatch
from duewheel.streaming.task_rows import SCHEMA, row_of, row_of_ends, take_timers

NOW_MS = 1_800_000_000_000


def rows(partition: int, offsets: Sequence[int]) -> list[TimerRow]:
    """Timers; some are rejected."""
    return [
        TimerRow(partition, offset, NOW_MS + offset, rejected=offset % 5 == 4) for offset in offsets
    ]


def handed_over(parts: Sequence[TimerBatch], folder: str) -> pa.Table:
    return pa.Table.from_batches([row_of(part, folder) for part in parts])


@pytest.mark.parametrize("in_files", [False, True])
def test_parts_come_as_one_batch_in_their_order(tmp_path: Path, *, in_files: bool) -> None:
    of_parts = [rows(0, range(40)), rows(2, [7]), rows(0, range(50, 60))]
    folder = str(tmp_path) if in_files else ""
    table = handed_over([timer_batch(part) for part in of_parts], folder)
    ends = [{("a", 0): 40, ("a", 2): 7}, {("b", 1): 5}]
    added = [{"a": 3}, {"a": 2, "c": 1}]
    table = pa.concat_tables([table, pa.Table.from_batches(map(row_of_ends, ends, added))])
    assert len(list(tmp_path.iterdir())) == 3 * in_files
    found, early, added_messages = take_timers(table, folder)
    assert early == {**ends[0], **ends[1]}
    assert added_messages == {"a": 5, "c": 1}
    wanted = timer_batch([row for part in of_parts for row in part])
    assert list(tmp_path.iterdir()) == []
    for field in fields(wanted):
        mine, its = getattr(wanted, field.name), getattr(found, field.name)
        if isinstance(mine, np.ndarray):
            assert mine.dtype == its.dtype, field.name
            assert np.array_equal(mine, its), field.name
        else:
            assert mine == its, field.name


def test_an_empty_batch_has_no_rows() -> None:
    timers, early, added_messages = take_timers(SCHEMA.empty_table(), "")
    assert (len(timers), early, added_messages) == (0, {}, {})
