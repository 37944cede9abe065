"""What a task of the query is given. Spark's planning processes import this and no library."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import InputPartition

if TYPE_CHECKING:  # it imports numpy and pyarrow
    from duewheel.schemas.batches import OffsetRanges

# Of the rows that tasks hand over.
TIMERS, EARLY_ENDS = "timers", "early_ends"


@dataclass(frozen=True, slots=True)
class TaskSettings:
    """The settings that all tasks of a query share.

    Attributes:
        kafka: options of kafka-python's clients, with the servers.
        topics: the timer topics.
        epochs: the settings epochs, as `Epochs.text`.
        dead_letter_topic: of rejected records.
        folder: through which tasks hand timers to the driver (handover_folder.py). Empty: they go
            through Spark.
    """

    kafka: Mapping[str, Any]
    topics: Sequence[str]
    epochs: str
    dead_letter_topic: str
    folder: str


@dataclass
class TaskShare(InputPartition):
    """The part of a batch that one task reads.

    Attributes:
        ranges: first offset, and the one behind the last, of each partition.
        bytes_max: of the records in them, decompressed; it reads no further (byte_budget.py).
    """

    ranges: OffsetRanges
    bytes_max: int
