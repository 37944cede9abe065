"""The timer topics as a stream of raw Kafka records: Spark parses nothing.

- Only committed records (`read_committed`), with their headers.
- Every partition has an explicit starting offset, from the engine's marks.
- Data loss does not fail the query: it would fail again at every restart. The sink compares
  offsets with the engine's marks instead and reports the missing ones.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from pyspark.sql import DataFrame, SparkSession

from duewheel.schemas.batches import TopicPartition

COLUMNS = ("topic", "partition", "offset", "timestamp", "key", "value", "headers")

EARLIEST = -2  # as a starting offset

# Defaults of the tasks' consumers; the configuration overrides them.
_CONSUMER = {
    # 10–15 % faster than the default of 500.
    "max.poll.records": "5000",
    # The broker holds an empty fetch this long, by default 500 ms, and blocks the connection
    # meanwhile. Each poll sends the next fetch ahead, and Spark then requests the partition's
    # bounds on the same connection: with the default, every partition with new messages blocks its
    # core for 500 ms in each batch. Spark polls only for existing offsets, so a short wait repeats
    # few fetches.
    "fetch.max.wait.ms": "5",
}


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """The topics and offsets to read.

    Attributes:
        bootstrap_servers: host:port, comma separated.
        topics: the timer topics.
        starting_offsets: next offset, or EARLIEST, for every partition that is read. Ignored where
            a checkpoint exists.
        only: whether to read only those partitions; otherwise all of the topics, later ones too.
        max_offsets_per_trigger: most rows of one batch.
        kafka: further consumer options, without the prefix `kafka.`.
    """

    bootstrap_servers: str
    topics: Sequence[str]
    starting_offsets: Mapping[TopicPartition, int]
    max_offsets_per_trigger: int
    only: bool = False
    kafka: Mapping[str, str] = field(default_factory=dict)


def consumer_options(given: Mapping[str, str]) -> dict[str, str]:
    """The options of a reader's consumers in Spark's form; `given` is without `kafka.`."""
    return {f"kafka.{name}": value for name, value in {**_CONSUMER, **given}.items()}


def timer_stream(spark: SparkSession, options: SourceOptions) -> DataFrame:
    """The stream with COLUMNS. Rows of a partition are in offset order."""
    reader = spark.readStream.format("kafka").options(**consumer_options(options.kafka))
    if options.only:
        reader = reader.option("assign", partitions_json(options.starting_offsets))
    else:
        reader = reader.option("subscribe", ",".join(options.topics))
    return (
        reader.option("kafka.bootstrap.servers", options.bootstrap_servers)
        .option("kafka.isolation.level", "read_committed")
        .option("startingOffsets", starting_offsets_json(options.starting_offsets))
        .option("maxOffsetsPerTrigger", str(options.max_offsets_per_trigger))
        .option("includeHeaders", "true")
        .option("failOnDataLoss", "false")
        .load()
        .select(*COLUMNS)
    )


def partitions_json(partitions: Iterable[TopicPartition]) -> str:
    """The value of the source's option `assign`."""
    topics: dict[str, list[int]] = {}
    for topic, partition in sorted(partitions):
        topics.setdefault(topic, []).append(partition)
    return json.dumps(topics)


def starting_offsets_json(offsets: Mapping[TopicPartition, int]) -> str:
    """The value of an offsets option of the source. Spark refuses it if a partition is missing."""
    topics: dict[str, dict[str, int]] = {}
    for (topic, partition), offset in sorted(offsets.items()):
        topics.setdefault(topic, {})[str(partition)] = offset
    return json.dumps(topics)
