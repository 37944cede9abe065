"""The timer topics as a stream of Kafka records, raw: nothing is parsed in Spark.

- Only committed records (`read_committed`), with their headers.
- Where to start is said for every partition by number: from the engine's marks.
- Data loss does not fail the query: it would fail again at every restart. The sink compares
  offsets with the engine's marks instead and reports what is missing.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from pyspark.sql import DataFrame, SparkSession

from duewheel.schemas.batches import TopicPartition

COLUMNS = ("topic", "partition", "offset", "timestamp", "key", "value", "headers")

EARLIEST = -2  # as a starting offset

# What the tasks' consumers are set to, unless the configuration says otherwise.
_CONSUMER = {
    # So many a poll hands Spark at most: 10–15 % faster than the default of 500.
    "max.poll.records": "5000",
    # So long the broker holds a fetch that finds nothing, by default 500 ms, and answers nothing
    # else on that connection. With each poll the consumer sends the next fetch ahead, and then
    # Spark asks on the same connection for the partition's bounds: in each batch, every partition
    # with new messages kept its core waiting for as long. Spark polls only for what is there, so
    # little is asked twice, unless messages vanish after the batch was planned.
    "fetch.max.wait.ms": "5",
}


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """What to read.

    Attributes:
        bootstrap_servers: host:port, comma separated.
        topics: the timer topics.
        starting_offsets: next offset, or EARLIEST, for every partition that is read. Counts
            only where there is no checkpoint.
        only: whether those partitions are all that is read; else the topics are, with whatever
            partitions they come to have.
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
    """What a reader's consumers are set to, as Spark takes it; `given` is without `kafka.`."""
    return {f"kafka.{name}": value for name, value in {**_CONSUMER, **given}.items()}


def timer_stream(spark: SparkSession, options: SourceOptions) -> DataFrame:
    """The stream, with COLUMNS; rows of a partition come in offset order."""
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
    """As the source's option takes them."""
    topics: dict[str, list[int]] = {}
    for topic, partition in sorted(partitions):
        topics.setdefault(topic, []).append(partition)
    return json.dumps(topics)


def starting_offsets_json(offsets: Mapping[TopicPartition, int]) -> str:
    """As the source's option takes it. Spark refuses it unless every partition is named."""
    topics: dict[str, dict[str, int]] = {}
    for (topic, partition), offset in sorted(offsets.items()):
        topics.setdefault(topic, {})[str(partition)] = offset
    return json.dumps(topics)
