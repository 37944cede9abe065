"""Record and batch bytes, against golden bytes and kafka-python's own decoder."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pytest
from kafka.record import MemoryRecords
from tests.harness.deliveries import plain_deliveries

from duewheel.schemas.batches import Deliveries
from duewheel.schemas.wire import record_batch
from duewheel.schemas.wire.batch_header import HEADER_BYTES
from duewheel.schemas.wire.record_codec import Records
from duewheel.schemas.wire.varint import varint, varints

Headers = list[tuple[str, bytes | None]]


@dataclass
class WireMessage:
    """A delivery, one row as people think of it."""

    key: bytes | None = b"k"
    value: bytes | None = b"v"
    headers: Headers | None = None
    due_ms: int = 1_800_000_000_000
    source: bytes = b"orders.delayed-3@17"
    timer_id: bytes = b"id-1"
    roll_times: int = 0
    dead_letter: bool = False

    def delivered_headers(self) -> Headers:
        out = [*(self.headers or []), ("TIMER_SOURCE", self.source)]
        if self.dead_letter:
            return out
        out += [("TIMER_DUE_MS", b"%d" % self.due_ms), ("UNIQ_KEY", self.timer_id)]
        if self.roll_times:
            out.append(("TIMER_ROLL_TIMES", b"%d" % self.roll_times))
        return out


def framed(value: bytes | None) -> bytes:
    return varint(-1) if value is None else varint(len(value)) + value


def encoded_headers(headers: Headers | None) -> bytes:
    return b"".join(framed(name.encode()) + framed(value) for name, value in headers or [])


def deliveries(*messages: WireMessage) -> Deliveries:
    def binary(values: list[bytes]) -> pa.LargeBinaryArray:
        return pa.array(values, pa.large_binary())

    return replace(
        plain_deliveries(len(messages)),
        due_ms=np.array([m.due_ms for m in messages], np.int64),
        source=binary([m.source for m in messages]),
        timer_id=binary([m.timer_id for m in messages]),
        key_value=binary([framed(m.key) + framed(m.value) for m in messages]),
        headers=binary([encoded_headers(m.headers) for m in messages]),
        header_count=np.array([len(m.headers or []) for m in messages], np.int32),
        roll_times=np.array([m.roll_times for m in messages], np.int32),
        dead_letter=np.array([m.dead_letter for m in messages], np.bool_),
    )


def read_back(batches: list[record_batch.Batch]) -> list[tuple[object, ...]]:
    """(key, value, headers) of each record, by kafka-python."""
    out: list[tuple[object, ...]] = []
    for batch in batches:
        raw = record_batch.seal(batch.body, batch.count, timestamp_ms=1_800_000_000_123)
        records = MemoryRecords(bytes(raw))
        read = records.next_batch()
        assert read is not None and not records.has_next()
        assert read.validate_crc()
        rows = list(read)
        assert [row.offset for row in rows] == list(range(batch.count))
        assert {row.timestamp for row in rows} <= {1_800_000_000_123}
        out += [(row.key, row.value, [tuple(header) for header in row.headers]) for row in rows]
    return out


MESSAGES = {
    "plain": WireMessage(headers=[("trace", b"1")]),
    "no headers": WireMessage(),
    "null key": WireMessage(key=None),
    "null value": WireMessage(value=None),
    "both null": WireMessage(key=None, value=None),
    "both empty": WireMessage(key=b"", value=b""),
    "duplicate headers": WireMessage(headers=[("a", b"1"), ("b", b"2"), ("a", b"3"), ("a", b"1")]),
    "null and empty headers": WireMessage(
        headers=[("n", None), ("e", b""), ("", b"x"), ("", None)]
    ),
    "binary": WireMessage(
        key=bytes(range(256)), value=os.urandom(999), headers=[("é\u4e2d", b"\xff")]
    ),
    "900 kB": WireMessage(value=os.urandom(900_000)),
    "large header": WireMessage(headers=[("big", os.urandom(70_000)), ("n" * 70_000, b"")]),
    "100 headers": WireMessage(headers=[(f"h{i}", b"%d" % i) for i in range(100)]),
    "rolled": WireMessage(roll_times=3),
    "dead letter": WireMessage(
        dead_letter=True, roll_times=2, headers=[("TIMER_ERROR_CODE", b"x")]
    ),
    "past": WireMessage(due_ms=-5),
}


@pytest.mark.parametrize("name", MESSAGES)
def test_kafka_python_reads_back_a_message(name: str) -> None:
    message = MESSAGES[name]
    (batches,) = record_batch.split(deliveries(message), [1], [1 << 20])
    assert read_back(batches) == [(message.key, message.value, message.delivered_headers())]


def test_kafka_python_reads_back_all_messages_in_order() -> None:
    messages = list(MESSAGES.values())
    (batches,) = record_batch.split(deliveries(*messages), [len(messages)], [1_000_000])
    assert len(batches) == 2
    assert read_back(batches) == [(m.key, m.value, m.delivered_headers()) for m in messages]


def test_golden_record() -> None:
    message = WireMessage(key=b"k", value=None, headers=[("h", b"1")], due_ms=7, source=b"t-0@5")
    (record,) = Records.of(deliveries(message)).encode(np.array([300])).to_pylist()
    assert record == bytes.fromhex(
        "78"  # 60 bytes follow
        "00 00"  # attributes, timestamp delta 0
        "d8 04"  # offset delta 300
        "02 6b"  # key "k"
        "01"  # value null
        "08"  # 4 headers
        "02 68 02 31"  # h = 1
        "18 54 49 4d 45 52 5f 53 4f 55 52 43 45 0a 74 2d 30 40 35"  # TIMER_SOURCE = t-0@5
        "18 54 49 4d 45 52 5f 44 55 45 5f 4d 53 02 37"  # TIMER_DUE_MS = 7
        "10 55 4e 49 51 5f 4b 45 59 08 69 64 2d 31"  # UNIQ_KEY = id-1
    )


def test_golden_batch() -> None:
    sealed = record_batch.seal(
        bytes.fromhex("0e 00 00 00 02 6b 01 00"),
        1,
        timestamp_ms=0x0102030405,
        producer_id=0x1122334455,
        producer_epoch=7,
        base_sequence=9,
        transactional=True,
    )
    assert sealed == bytes.fromhex(
        "0000000000000000"  # base offset
        "00000039"  # 57 bytes follow
        "00000000"  # leader epoch
        "02"  # magic
        "c2c4f75a"  # CRC-32C
        "0010"  # transactional
        "00000000"  # last offset delta
        "0000000102030405 0000000102030405"  # first and largest timestamp
        "0000001122334455 0007 00000009"  # producer id and epoch, base sequence
        "00000001"  # records
        "0e 00 00 00 02 6b 01 00"
    )


@pytest.mark.parametrize("bytes_max", [100, 200, 1_000, 20_000, 1 << 20])
def test_batches_stay_within_the_bound(bytes_max: int) -> None:
    rng = np.random.default_rng(bytes_max)
    messages = [
        WireMessage(value=bytes(int(size)), timer_id=b"%d" % i)
        for i, size in enumerate(rng.integers(0, 300, 2_000))
    ]
    rows = deliveries(*messages)
    alone = record_batch.bytes_alone(rows)
    (batches,) = record_batch.split(rows, [len(rows)], [bytes_max])
    row = 0
    for batch in batches:
        size = HEADER_BYTES + len(batch.body)
        assert size <= bytes_max or (batch.count == 1 and size == alone[row])
        row += batch.count
    assert row == len(messages)
    assert [key_value[1] for key_value in read_back(batches)] == [m.value for m in messages]


def test_size_alone_is_that_of_the_batch_made() -> None:
    rows = deliveries(*MESSAGES.values())
    alone = record_batch.bytes_alone(rows).tolist()
    for row, size in enumerate(alone):
        ((batch,),) = record_batch.split(rows.take(np.array([row])), [1], [1])
        assert len(record_batch.seal(batch.body, batch.count, timestamp_ms=0)) == size


def test_no_rows_no_batches() -> None:
    assert record_batch.split(deliveries(), [0], [1_000]) == [[]]
    assert record_batch.split(deliveries(), [], []) == []


def test_rows_of_many_partitions_are_cut_as_if_each_were_encoded_alone() -> None:
    rng = np.random.default_rng(1)
    sizes = rng.integers(0, 300, 1_000).tolist()
    rows = deliveries(*(WireMessage(value=bytes(size)) for size in sizes))
    ends = [1, 2, 40, 40, 340, 999, 1_000]  # one is empty
    limits = [1 << 20, 10, 1 << 20, 100, 5_000, 20_000, 300]
    firsts = [0, *ends[:-1]]
    alone = [
        record_batch.split(rows.slice(first, end), [end - first], [limit])
        for first, end, limit in zip(firsts, ends, limits, strict=True)
    ]
    assert record_batch.split(rows, ends, limits) == [batches for (batches,) in alone]
    assert [len(batches) for (batches,) in alone[:4]] == [1, 1, 1, 0]
    assert min(len(batches) for (batches,) in alone[4:6]) > 5


def test_columns_of_varints_are_those_of_single_ones() -> None:
    edges = [1 << bits for bits in range(62)]
    numbers = [-1, 0, *(edge + step for edge in edges for step in (-1, 0, 1))]
    assert varints(np.array(numbers)).to_pylist() == [varint(n) for n in numbers]
    assert varints(np.array([], np.int64)).to_pylist() == []
