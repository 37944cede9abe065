"""The input of a task of the query. Spark's planning processes import this and no library."""

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
    """The settings that all tasks of a query share."""

    kafka: Mapping[str, Any]  # options of kafka-python's clients, with the servers
    topics: Sequence[str]  # the timer topics
    epochs: str  # the settings epochs, as `Epochs.text`
    dead_letter_topic: str
    # Through it tasks hand timers to the driver (handover_folder.py). Empty: they go through Spark.
    folder: str


@dataclass
class TaskShare(InputPartition):
    """The part of a batch that one task reads."""

    ranges: OffsetRanges  # first offset, and the end, of each partition
    bytes_max: int  # of the records in them, decompressed; it reads no further (byte_budget.py)
