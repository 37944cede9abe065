"""Finds the rows that are too large for their topic, or as copies too large to be held.

Pure functions over columns: no client, any thread.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from duewheel.checkpoints.progress import COPY_BYTES_MAX
from duewheel.schemas.arrays import Bool
from duewheel.schemas.batches import Deliveries
from duewheel.schemas.columns import lengths
from duewheel.schemas.wire.batch_header import HEADER_BYTES
from duewheel.schemas.wire.copy_mac import HEADER_BYTES_MAX as MAC_HEADER_BYTES
from duewheel.schemas.wire.record_batch import bytes_alone
from duewheel.wheel.target_rules import NO_TARGET, Target

# A record and its added headers without the columns' own bytes: names, lengths, numbers.
_OVERHEAD_BYTES_MAX = HEADER_BYTES + 160


def too_large(deliveries: Deliveries, targets: Mapping[str, Target]) -> Bool:
    """Rows that their topic refuses even in a batch of their own, and copies too large to hold."""
    limit_of = [targets.get(topic, NO_TARGET).batch_bytes_max for topic in deliveries.targets]
    limit = np.array(limit_of, np.int64)[deliveries.target]
    # A larger copy could not be held, and while its timer topic takes no writes, each transaction
    # with it would fail, with everybody's timers.
    limit = np.where(deliveries.is_copy, np.minimum(limit, COPY_BYTES_MAX), limit)
    columns = (
        deliveries.key_value,
        deliveries.headers,
        deliveries.source,
        deliveries.timer_id,
    )
    macs = np.where(deliveries.is_copy, MAC_HEADER_BYTES, 0)
    at_most = _OVERHEAD_BYTES_MAX + sum((lengths(column) for column in columns), macs)
    close = np.flatnonzero(at_most > limit)
    rows = np.zeros(len(deliveries), np.bool_)
    # The exact size costs as much as encoding: only where the bound does not decide.
    if len(close):
        rows[close] = bytes_alone(deliveries.take(close)) + macs[close] > limit[close]
    return rows
