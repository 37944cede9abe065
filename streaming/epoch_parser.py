"""Parses records into timers, each under the settings epoch of its offset.

Usually all rows of a batch belong to the newest epoch, and one pass suffices. Rows of older epochs
come only when a recovery reads them again: a second pass parses them under their own contract.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol, Self, TypeVar

import numpy as np

from duewheel.checkpoints.config_epochs import Epochs
from duewheel.errors import ConfigError, RecoveryRefused
from duewheel.schemas.arrays import Int64
from duewheel.schemas.batches import TimerBatch
from duewheel.schemas.request.parser import Contract, parse
from duewheel.schemas.request.skipped_records import parse_but_skipped
from duewheel.schemas.wire.kafka_records import KafkaRecords


class Rows(Protocol):
    """The part of an Arrow table that the parser needs."""

    def take(self, rows: Int64) -> Self:
        """The given rows, in the given order."""
        ...


Records = TypeVar("Records", bound=Rows)


def parse_by_epoch(
    records: Records, parsers: Sequence[Callable[[Records], TimerBatch]], epochs: Epochs
) -> TimerBatch:
    """The timers in `records`, each under its epoch, by the parser of that epoch; in offset order
    within a partition.
    """
    batch = parsers[-1](records)
    index = epochs.of_rows(batch.partitions, batch.partition, batch.offset)
    newest = len(epochs) - 1
    if (index == newest).all():
        return batch
    # An older epoch has the lower offsets: oldest first keeps the offset order.
    parts = [
        parse(records.take(rows))
        for number, parse in enumerate(parsers[:-1])
        if len(rows := np.flatnonzero(index == number))
    ]
    parts.append(batch.take(np.flatnonzero(index == newest)))
    first, *others = parts
    for part in others:
        first = first.extended_by(part)
    return first


def parser(epochs: Epochs, dead_letter_topic: str) -> Callable[[KafkaRecords], TimerBatch]:
    """Parses records to timers, each under its epoch; skipped ones become dead letters.

    Raises:
        RecoveryRefused: as `contracts`.
    """
    of_epochs = contracts(epochs, dead_letter_topic)
    parsers = [partial(parse, contract=contract) for contract in of_epochs]
    return partial(
        parse_but_skipped,
        parser=partial(parse_by_epoch, parsers=parsers, epochs=epochs),
        skipped=epochs.skipped,
        dead_letter_topic=dead_letter_topic,
    )


def contracts(epochs: Epochs, dead_letter_topic: str) -> list[Contract]:
    """The message contract of each epoch.

    Raises:
        RecoveryRefused: this version cannot compile the rules of an epoch.
    """
    try:
        return [
            Contract.from_slot_values(epoch.values, dead_letter_topic, epoch.copy_keys)
            for epoch in epochs.epochs
        ]
    except ConfigError as error:
        raise RecoveryRefused(
            f"this version cannot apply the message rules of the progress: {error}"
        ) from error
