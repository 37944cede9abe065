"""Messages of topics that speak as another delay service does: what is delivered of them.

The record's key is the timer's id there. The message's key is what the target-key header says; it
has none without that header. (A record that has neither that header nor the service's due time is a
native one: its message keeps its key, and nothing is added.) Consumers of two of the services find
headers at the end of the message's own that say where it came from:

    etf1     scheduler-timestamp (the record's, epoch seconds), scheduler-key, scheduler-topic
    karafka  schedule_source_topic, schedule_source_partition, schedule_source_offset and, if the
             record has a key, schedule_source_key

Karafka's partition key, too, is only for choosing a partition: hashed in the place of the key. It
stays among the headers, for copies to be read by.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from duewheel.schemas import header_names as names
from duewheel.schemas.arrays import Bool, Int32
from duewheel.schemas.columns import (
    EMPTY,
    Column,
    binary,
    choose,
    concat,
    decimals,
    join,
    lengths,
    spread,
    take,
)
from duewheel.schemas.hashing import key_hashes
from duewheel.schemas.header_names import Request
from duewheel.schemas.request.headers import MODES, Field, Int8
from duewheel.schemas.request.kafka_records import KafkaRecords
from duewheel.schemas.wire.record_codec import framed, header_name

_ETF1, _KARAFKA = MODES.index("etf1"), MODES.index("karafka")


def delivered_keys(key: Column, rows: Bool, fields: Mapping[Request, Field]) -> Column:
    """The keys of the messages.

    Args:
        key: of the records.
        rows: those that speak as another service does.
        fields: the requests.
    """
    if not rows.any():
        return key
    asked = fields.get(Request.TARGET_KEY, Field.none())
    index = np.full(len(key), len(asked.rows))  # of the null behind those that are asked for
    index[asked.rows] = np.arange(len(asked.rows))
    return choose(rows, take(concat([asked.values, binary([None])]), index), key)


def placing_hashes(key: Column, rows: Bool, fields: Mapping[Request, Field]) -> Int32:
    """By which partitions are chosen: hashes of keys, or of partition keys in the given rows."""
    hashes = key_hashes(key)
    if Request.PARTITION_KEY in fields:
        field = fields[Request.PARTITION_KEY]
        asked = field.where(rows[field.rows])
        hashes[asked.rows] = key_hashes(asked.values)
    return hashes


def traces(records: KafkaRecords, mode: Int8, rows: Bool) -> tuple[Column, Int32]:
    """The headers that tell where messages came from, encoded, and how many they are in each row.

    Args:
        records: the batch.
        mode: row → index in MODES.
        rows: those that speak as another service does.
    """
    all_rows, count = Field.none(), np.zeros(len(mode), np.int32)
    for one, encoded in ((_ETF1, _etf1), (_KARAFKA, _karafka)):
        mine = np.flatnonzero(rows & (mode == one))
        if len(mine):
            values, count[mine] = encoded(records.take(mine))
            all_rows = all_rows.beside(Field(mine, values))
    return spread(all_rows.values, all_rows.rows, len(mode)), count


def _etf1(records: KafkaRecords) -> tuple[Column, int]:
    encoded = join(
        *(header_name(names.ETF1_TIMESTAMP), *framed(decimals(records.timestamp_ms // 1000))),
        *(header_name(names.ETF1_KEY), *framed(records.key)),
        *(header_name(names.ETF1_TOPIC), *framed(_topics(records))),
    )
    return encoded, 3


def _karafka(records: KafkaRecords) -> tuple[Column, Int32]:
    number = np.array([number for _, number in records.partitions], np.int32)[records.partition]
    keyed = lengths(records.key) >= 0
    key = join(header_name(names.KARAFKA_KEY), *framed(records.key))
    encoded = join(
        *(header_name(names.KARAFKA_TOPIC), *framed(_topics(records))),
        *(header_name(names.KARAFKA_PARTITION), *framed(decimals(number))),
        *(header_name(names.KARAFKA_OFFSET), *framed(decimals(records.offset))),
        choose(keyed, key, EMPTY),
    )
    return encoded, 3 + keyed.astype(np.int32)


def _topics(records: KafkaRecords) -> Column:
    return take(binary(topic.encode() for topic, _ in records.partitions), records.partition)
