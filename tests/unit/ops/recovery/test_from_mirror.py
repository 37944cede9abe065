"""How many timers of a mirrored partition are written, and which are unclear."""

from __future__ import annotations

import numpy as np
from tests.harness.mirrored import T0, record, rows

from duewheel.ops.recovery.evidence import NOTHING
from duewheel.ops.recovery.from_mirror import _decide_partition, _MirrorTally
from duewheel.schemas.batches import NEVER


def test_a_window_that_counts_as_delivered_is_not_unclear() -> None:
    spread = [record(n, TIMER_WINDOW_MS=1_000)._replace(key=None) for n in (5, 50)]
    tally = _MirrorTally()
    waiting = _decide_partition(
        tally, "orders.delayed", rows(*spread), NOTHING, np.full(1, NEVER), T0 + 20_000
    )

    assert waiting.tolist() == [1]
    assert (tally.assumed, tally.windows) == (1, 1)
