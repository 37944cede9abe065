"""From which offsets a start reads Kafka; nothing is read of files that are not kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

import pytest

from duewheel.checkpoints.commit_and_close_pages import NO_COMMIT, Commit
from duewheel.checkpoints.config_epochs import Epochs
from duewheel.checkpoints.durable_checkpoint import Durable
from duewheel.checkpoints.local_state import Keep
from duewheel.checkpoints.progress import PartitionProgress, Progress
from duewheel.schemas.batches import TopicPartition
from duewheel.wheel.recovery.first_offsets import kept_commit, start_marks
from duewheel.wheel.slots import HOUR_MS, WheelConfig

P: TopicPartition = ("timers", 0)
WHEEL = WheelConfig(1_000, 1 << 20, 24 * HOUR_MS, HOUR_MS)
EPOCHS = Epochs.first({"precision_ms": 1_000, "roll_window_ms": 24 * HOUR_MS})
PROGRESS = Progress(0, 1, "uuid", 4, 7, EPOCHS, {P: PartitionProgress(0, 50, replied_below=50)})
COMMIT = NO_COMMIT._replace(marks={P: 30})
DURABLE = Durable(7, {P: 20}, {5: (64, 100, 8)}, 2, None, 0, {"timers": "id"}, 1, {5: (8, 8)})


def damaged() -> NoReturn:
    raise AssertionError("of files that are not kept")


@pytest.mark.parametrize(
    ("keep", "commit", "durable", "expected"),
    [
        (Keep.ALL, lambda: COMMIT, damaged, 30),
        (Keep.DURABLE, damaged, lambda: DURABLE, 20),
        (Keep.DURABLE, damaged, lambda: None, 10),
        (Keep.NOTHING, damaged, damaged, 10),
    ],
)
def test_a_start_reads_from_the_marks_of_what_it_keeps_else_from_the_first_pending_row(
    keep: Keep,
    commit: Callable[[], Commit],
    durable: Callable[[], Durable | None],
    expected: int,
) -> None:
    kept = kept_commit(keep, commit, durable)
    assert start_marks(kept, WHEEL, PROGRESS, lambda _: {P: 10}) == {P: expected}


def test_the_page_of_a_durable_checkpoint_has_all_that_it_keeps() -> None:
    kept = kept_commit(Keep.DURABLE, damaged, lambda: DURABLE)
    assert isinstance(kept, Commit)
    assert (kept.batch, kept.placed, kept.topics, kept.cancels) == (7, 2, 1, {5: (8, 8)})
    assert kept.hours[5].log_bytes == 64
    assert kept.topic_ids == {"timers": "id"}
