"""How far apart partitions may stand that come together in one shard: all must fit its ring."""

from __future__ import annotations

import pytest

from duewheel.checkpoints.epochs import PRECISION, WINDOW, Epochs
from duewheel.checkpoints.progress import PartitionProgress, Progress
from duewheel.errors import RecoveryRefused
from duewheel.reshard import require_room
from duewheel.shards import Written
from duewheel.testing import TIMER_TOPIC
from duewheel.wheel.layout import WheelConfig

PRECISION_MS = 10
WHEEL = WheelConfig(PRECISION_MS, 30, 20 * PRECISION_MS, margin_ms=0)
EPOCHS = Epochs.first({PRECISION: PRECISION_MS, WINDOW: WHEEL.window_ms})
RING = WHEEL.ring
R = 1_000


def written(shard: int, shards: int, at_slot: int, *slots: int) -> Written:
    """A record of then: its partitions have come to these slots."""
    parts = {
        (TIMER_TOPIC, shard + shards * index): PartitionProgress(r, 5)
        for index, r in enumerate(slots)
    }
    progress = Progress(shard, shards, "a directory", 1, 1, EPOCHS, parts)
    return Written(progress, at_slot * PRECISION_MS)


def test_what_a_shard_had_taken_when_it_was_written_must_fit_beside_the_last_one() -> None:
    behind = written(0, 2, R + 45, R)
    window = WHEEL.window_ms // PRECISION_MS
    furthest = R + RING - 1 - window  # a timer that was written then is due no later than that
    ahead = written(1, 2, furthest, furthest - 5)
    require_room(WHEEL, [behind, ahead], 1)
    later = written(1, 2, furthest + 1, furthest - 4)
    with pytest.raises(RecoveryRefused, match="shard 0 is too far behind"):
        require_room(WHEEL, [behind, later], 1)
    require_room(WHEEL, [behind, later], 2)


def test_no_shard_has_taken_more_than_its_ring_holds() -> None:
    long_ago = R + 10 * RING
    require_room(WHEEL, [written(0, 2, long_ago, R), written(1, 2, long_ago, R)], 1)
    with pytest.raises(RecoveryRefused, match=f"{RING} slots further"):
        require_room(WHEEL, [written(0, 2, long_ago, R), written(1, 2, long_ago, R + 1)], 1)


def test_partitions_that_stand_apart_in_one_shard_may_stay_together_however_late_it_is() -> None:
    """They came together while there was room. What is sealed can be undone."""
    late = R + 10 * RING
    require_room(WHEEL, [written(0, 1, late, R, R + 9)], 1)
    require_room(WHEEL, [written(0, 2, late, R, R + 9), written(1, 2, late, R + 70)], 2)
