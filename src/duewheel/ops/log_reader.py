"""The reader of one of duewheel's own topics."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TypeVar

from duewheel import factory
from duewheel.config.settings import Settings
from duewheel.deadline import Deadline
from duewheel.errors import INIT_MAKES_IT
from duewheel.kafka.log.reader import LogReader
from duewheel.ops.connection import ANSWER_S
from duewheel.schemas.batches import TopicPartition

T = TypeVar("T")


def log_reader(settings: Settings, topic: str) -> LogReader:
    """A reader of a topic of duewheel's own; close it.

    Raises:
        Misconfigured: there is no such topic, or no right to describe it.
        KafkaUnavailable: no answer in time.
    """
    client = factory.kafka_clients(settings, "consumer")
    reader = LogReader(client, [topic], partial(Deadline, ANSWER_S))
    try:
        reader.existing(hint=INIT_MAKES_IT)
    except BaseException:
        reader.close()
        raise
    return reader


def by_number(values: Mapping[TopicPartition, T]) -> dict[int, T]:
    """The values of one topic's partitions, by their numbers."""
    return {number: each for (_, number), each in values.items()}
