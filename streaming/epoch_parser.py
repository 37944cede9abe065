"""Records to timers, each under the settings of its epoch.

Usually all rows of a batch belong to the newest epoch, and are parsed once. Rows of older ones come
only when they are read again after a loss: these are parsed anew, under their own contract.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, Self, TypeVar

import numpy as np

from duewheel.checkpoints.config_epochs import Epochs
from duewheel.errors import ConfigError, RecoveryRefused
from duewheel.schemas.arrays import Int64
from duewheel.schemas.batches import TimerBatch
from duewheel.schemas.request.contract import Contract


class Rows(Protocol):
    """What is parsed: an Arrow table of records."""

    def take(self, rows: Int64) -> Self:
        """Some of them, in this order."""
        ...


Records = TypeVar("Records", bound=Rows)


def parse_by_epoch(
    records: Records, parsers: Sequence[Callable[[Records], TimerBatch]], epochs: Epochs
) -> TimerBatch:
    """The timers in `records`, each as its epoch has it; in offset order within a partition.

    Args:
        records: of any epochs.
        parsers: what makes timers of records, for each of `epochs`.
        epochs: oldest first.
    """
    batch = parsers[-1](records)
    index = epochs.of_rows(batch.partitions, batch.partition, batch.offset)
    newest = len(epochs) - 1
    if (index == newest).all():
        return batch
    # An older epoch's offsets are the lower ones: this keeps them in order.
    parts = [
        parse(records.take(rows))
        for number, parse in enumerate(parsers[:-1])
        if len(rows := np.flatnonzero(index == number))
    ]
    parts.append(batch.take(np.flatnonzero(index == newest)))
    first, *others = parts
    for part in others:
        first = first.followed_by(part)
    return first


def contracts(epochs: Epochs, dead_letter_topic: str) -> list[Contract]:
    """What the messages of each epoch may say.

    Raises:
        RecoveryRefused: this version cannot judge as an epoch demands.
    """
    try:
        return [
            Contract.from_slot_values(epoch.values, dead_letter_topic) for epoch in epochs.epochs
        ]
    except ConfigError as error:
        raise RecoveryRefused(
            f"this version cannot judge messages as the progress demands: {error}"
        ) from error
