"""Reads a range of the timer topics with a batch query, with the stream's columns (source.py).

Non-null values are replaced by empty ones: no rule checks them, and they are most of a message. The
memory of a range thus does not depend on the size of messages.
"""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as sql

from duewheel.errors import DuewheelError
from duewheel.schemas.batches import OffsetRanges
from duewheel.streaming.query import cause
from duewheel.streaming.source import COLUMNS, consumer_options, partitions_json
from duewheel.streaming.source import starting_offsets_json as offsets_json


def read_range(
    spark: SparkSession, bootstrap_servers: str, kafka: Mapping[str, str], between: OffsetRanges
) -> pa.Table:
    """The committed records of a range with the stream's columns; each non-null value is empty.
    Rows of a partition are in offset order.

    Args:
        spark: a session with the Kafka connector.
        bootstrap_servers: host:port, comma separated.
        kafka: further consumer options, without the prefix `kafka.`.
        between: for each partition the first offset, and the one behind the last. A bound above
            the last stable offset would make the query wait for an open transaction.

    Raises:
        KafkaUnavailable: the brokers did not answer for minutes.
        DuewheelError: Spark failed.
    """
    reader = spark.read.format("kafka").options(**consumer_options(kafka))
    frame = (
        reader.option("assign", partitions_json(between))
        .option("kafka.bootstrap.servers", bootstrap_servers)
        .option("kafka.isolation.level", "read_committed")
        .option("startingOffsets", offsets_json({p: first for p, (first, _) in between.items()}))
        .option("endingOffsets", offsets_json({p: end for p, (_, end) in between.items()}))
        .option("includeHeaders", "true")
        .option("failOnDataLoss", "false")
        .load()
        .select(*COLUMNS)
        .withColumn("value", sql.when(sql.col("value").isNotNull(), sql.lit(b"")))
    )
    try:
        return frame.toArrow()
    except PySparkException as error:
        raise cause(str(error), None) from error
    except (Py4JError, OSError) as error:
        raise DuewheelError(f"Spark's JVM has ended: {error}") from error
