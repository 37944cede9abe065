"""Delivered keys and headers of messages in the drop-in modes of other delay services.

The record's key is the timer's id. The message's key is the value of the target-key header, or null
without that header. A record with neither that header nor the service's due time is a native one:
its message keeps its key and gets no headers. Two of the services add headers that name the source,
after the message's own:

    etf1     scheduler-timestamp (the record's, epoch seconds), scheduler-key, scheduler-topic
    karafka  schedule_source_topic, schedule_source_partition, schedule_source_offset and, if the
             record has a key, schedule_source_key

Karafka's partition key replaces the key in the hash that chooses a partition. It stays among the
headers because copies need it.

The names under which these services request a due time and a target are DROP_IN in
schemas/header_names.py.
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
    scatter,
    take,
)
from duewheel.schemas.hashing import key_hashes
from duewheel.schemas.header_names import Request
from duewheel.schemas.request.headers import MODES, Field, Int8
from duewheel.schemas.wire.kafka_records import KafkaRecords
from duewheel.schemas.wire.record_codec import framed, header_name

_ETF1, _KARAFKA = MODES.index("etf1"), MODES.index("karafka")


def delivered_keys(key: Column, rows: Bool, fields: Mapping[Request, Field]) -> Column:
    """The keys of the messages. `rows` are those of a drop-in mode."""
    if not rows.any():
        return key
    target_key = fields.get(Request.TARGET_KEY, Field.none())
    index = np.full(len(key), len(target_key.rows))  # of the null after the requested keys
    index[target_key.rows] = np.arange(len(target_key.rows))
    return choose(rows, take(concat([target_key.values, binary([None])]), index), key)


def placing_hashes(key: Column, rows: Bool, fields: Mapping[Request, Field]) -> Int32:
    """The hashes that choose partitions: of keys, or of partition keys in the given rows."""
    hashes = key_hashes(key)
    if Request.PARTITION_KEY in fields:
        field = fields[Request.PARTITION_KEY]
        partition_key = field.where(rows[field.rows])
        hashes[partition_key.rows] = key_hashes(partition_key.values)
    return hashes


def traces(records: KafkaRecords, mode: Int8, rows: Bool) -> tuple[Column, Int32]:
    """The headers that name the source of messages, encoded, and their number in each row. `rows`
    are those of a drop-in mode.
    """
    all_rows, count = Field.none(), np.zeros(len(mode), np.int32)
    for one, encoded in ((_ETF1, _etf1), (_KARAFKA, _karafka)):
        mine = np.flatnonzero(rows & (mode == one))
        if len(mine):
            values, count[mine] = encoded(records.take(mine))
            all_rows = all_rows.beside(Field(mine, values))
    return scatter(all_rows.values, all_rows.rows, len(mode)), count


def _etf1(records: KafkaRecords) -> tuple[Column, int]:
    encoded = join(
        *(header_name(names.ETF1_TIMESTAMP), *framed(decimals(records.timestamp_ms // 1000))),
        *(header_name(names.ETF1_KEY), *framed(records.key.column())),
        *(header_name(names.ETF1_TOPIC), *framed(_topics(records))),
    )
    return encoded, 3


def _karafka(records: KafkaRecords) -> tuple[Column, Int32]:
    number = np.array([number for _, number in records.partitions], np.int32)[records.partition]
    keyed = ~records.key.is_null
    key = join(header_name(names.KARAFKA_KEY), *framed(records.key.column()))
    encoded = join(
        *(header_name(names.KARAFKA_TOPIC), *framed(_topics(records))),
        *(header_name(names.KARAFKA_PARTITION), *framed(decimals(number))),
        *(header_name(names.KARAFKA_OFFSET), *framed(decimals(records.offset))),
        choose(keyed, key, EMPTY),
    )
    return encoded, 3 + keyed.astype(np.int32)


def _topics(records: KafkaRecords) -> Column:
    return take(binary(topic.encode() for topic, _ in records.partitions), records.partition)
