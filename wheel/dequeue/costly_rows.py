"""Bounds the rows of one transaction for targets whose settings make appends slow.

Each such append delays all rows of the transaction; kafka/targets/costly_targets.py names the
settings. All costly targets together have the share of a transaction below; beyond it their rows
are parked, and come back later: their own messages are late, and no others.

Pure functions over columns: no client, any thread.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from duewheel.schemas.arrays import Bool, Int64
from duewheel.schemas.batches import Deliveries
from duewheel.schemas.columns import lengths
from duewheel.wheel.target_rules import Target

# The share of a transaction: appends cost up to 25 ms each, compression 4 s per MiB.
_PARTITIONS_MAX = 8
_BYTES_MAX = 128 * 1024
_BATCHES_MAX = 16  # of one partition, if its topic takes small ones only


def beyond_share(
    deliveries: Deliveries, targets: Sequence[Target | None], place: Int64, bound: Bool
) -> Bool:
    """Selects the rows of costly targets beyond the share, or all of them during a rest. Of one
    partition these are always its last rows, so none overtakes another.

    Args:
        targets: by index, as rows name them.
        place: of each row, a number of its topic-partition.
        bound: rows that cannot wait; they count, and are never selected.
    """
    none = np.zeros(len(deliveries), np.bool_)
    limit = [0 if one is None or not one.costly_by else _bytes_max(one) for one in targets]
    if not any(limit):
        return none
    row_limit = np.array(limit, np.int64)[deliveries.target]
    costly = np.flatnonzero(row_limit)
    if not len(costly):
        return none
    over = np.ones(len(costly), np.bool_)
    if not any(one is not None and one.rests for one in targets):
        size = lengths(deliveries.key_value) + lengths(deliveries.headers)
        _, first, partition = np.unique(place[costly], return_index=True, return_inverse=True)
        rank = np.argsort(np.argsort(first))[partition]  # partitions in the order of first rows
        over = np.cumsum(size[costly] / row_limit[costly]) > 1
        over |= rank >= _PARTITIONS_MAX
        over[0] = False  # a large row leaves alone
    rows = none.copy()
    rows[costly[over]] = True
    return rows & ~bound


def _bytes_max(target: Target) -> int:
    return min(_BYTES_MAX, _BATCHES_MAX * target.batch_bytes_max)
