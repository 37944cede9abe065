"""Progress that an older version has written: read, applied, and changed by this one.

progress_df0bc3f.bin is the record of a new shard of commit df0bc3f: its copies have no MAC, and all
targets are open but those of timer.targets_deny.

Also of checkpoints/packed_columns.py.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from tests.harness.deliveries import NOW_MS, rows
from tests.harness.source_table import SourceRow, as_table, read_records
from tests.harness.timer_rows import headers_of, suite_parameters

from duewheel.checkpoints.config_epochs import Epochs
from duewheel.checkpoints.progress import Progress
from duewheel.schemas.batches import TimerBatch
from duewheel.schemas.request.acceptance_rules import compile_suite, load_suite
from duewheel.schemas.request.parser import Contract
from duewheel.schemas.request.topic_settings import TopicContract
from duewheel.streaming.epoch_parser import parser
from duewheel.wheel.dequeue.requeue import waiting_copies

BEFORE = Path(__file__).with_name("progress_df0bc3f.bin").read_bytes()
TIMERS = ("timers", 0)
NOW = Contract(
    (1_000,),
    {"timers": TopicContract(targets=("bills",))},
    "dead",
    compile_suite(load_suite(), suite_parameters(max_delay_ms=60_000)),
)


def copy_of(offset: int) -> SourceRow:
    """A parked copy without a MAC, of the timer at offset 3; overdue since long."""
    due = replace(rows(["bills"], [0]), origin_offset=np.array([3]), due_ms=np.array([NOW_MS]))
    this = np.array([True])
    copy: Any = waiting_copies(due, this, np.array([NOW_MS + 900]), this)
    headers = headers_of(copy.headers[0].as_py(), int(copy.header_count[0]))
    return SourceRow(offset, NOW_MS + 500, headers, 0, value=b"v")


def read(epochs: Epochs, *records: SourceRow) -> TimerBatch:
    return parser(epochs, "dead")(read_records(as_table(list(records))))


def test_its_settings_apply_to_what_was_written_under_them() -> None:
    progress = Progress.decode(BEFORE)
    assert (progress.shards, progress.partitions[TIMERS].closed_mark) == (1, 5)
    plain = SourceRow(5, NOW_MS, [("REAL_TOPIC", b"anything")], 0, value=b"v")
    batch = read(progress.epochs, plain, copy_of(6))
    assert [batch.targets[index] for index in batch.target.tolist()] == ["anything", "bills"]
    assert batch.due_ms.tolist()[0] == NOW_MS + 5_000, "the delay of its topic"
    assert (batch.origin_offset.tolist(), batch.retries.tolist()) == ([5, 3], [0, 1])
    assert Progress.decode(progress.encode()) == progress


def test_its_copies_stay_copies_below_the_first_key() -> None:
    """Settings change at 6, as far as ingest has read; the key holds from 8, the log's end."""
    values = {**NOW.slot_values(), "precision_ms": 50, "roll_window_ms": 86_400_000}
    epochs = Progress.decode(BEFORE).epochs.extended_by(values, {TIMERS: 6})
    assert "parameters.targets_denied" in epochs.epochs[0].changes(values)
    epochs = epochs.extended_by(values, {TIMERS: 8}).drawing_key(lambda _: 7)
    epochs = Epochs.from_json(json.loads(epochs.text))
    batch = read(epochs, copy_of(5), copy_of(7), copy_of(8))
    assert batch.origin_offset.tolist() == [3, 3, 8]
    assert batch.forged.tolist() == [False, False, True]
    assert batch.rejections() == {}
