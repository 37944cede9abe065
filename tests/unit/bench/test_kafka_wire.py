from __future__ import annotations

import struct

import numpy as np
import pytest
from tests.bench.duewheel_system import load_requests, timer_records
from tests.bench.kafka_consumer import numbers
from tests.bench.kafka_wire import Fetched, committed
from tests.bench.system import TimerLoad

from duewheel.schemas.wire.batch_header import HEADER_BYTES
from duewheel.schemas.wire.record_batch import seal, split
from duewheel.schemas.wire.varint import varint

CONTROL = 1 << 5


def a_batch(first: int, count: int, producer: int = -1) -> bytes:
    number = np.arange(first, first + count)
    (batches,) = split(timer_records(number, number), [count], [1 << 20])
    return at_offset(
        first,
        seal(
            batches[0].body,
            count,
            timestamp_ms=1,
            producer_id=producer,
            transactional=producer >= 0,
        ),
    )


def a_marker(offset: int, producer: int, kind: int) -> bytes:
    key, value = struct.pack(">hh", 0, kind), struct.pack(">hi", 0, 0)
    record = bytes(3) + varint(len(key)) + key + varint(len(value)) + value + varint(0)
    sealed = seal(
        varint(len(record)) + record, 1, timestamp_ms=1, producer_id=producer, transactional=True
    )
    sealed[22] |= CONTROL
    return at_offset(offset, sealed)


def at_offset(offset: int, batch: bytearray) -> bytes:
    batch[:8] = struct.pack(">q", offset)
    return bytes(batch)


def test_numbers_are_found_in_the_records_of_the_load() -> None:
    batch = a_batch(998, 500)
    assert numbers(memoryview(batch)[HEADER_BYTES:]).tolist() == list(range(998, 1498))
    assert numbers(memoryview(b"")).tolist() == []


def test_aborted_transactions_and_markers_have_no_records() -> None:
    abort, commit = 0, 1
    log = [
        a_batch(0, 2, producer=7),
        a_batch(2, 3, producer=8),
        a_marker(5, 7, abort),
        a_batch(6, 1, producer=7),
        a_marker(7, 8, commit),
        a_marker(8, 7, commit),
        a_batch(9, 2),
        a_batch(11, 5)[:-1],
    ]
    fetched = Fetched([(7, 0)], memoryview(b"".join(log)))
    seen = [(offset, numbers(records).tolist()) for offset, records in committed(fetched)]
    assert seen == [
        (2, []),
        (5, [2, 3, 4]),
        (6, []),
        (7, [6]),
        (8, []),
        (9, []),
        (11, [9, 10]),
    ]


@pytest.mark.parametrize("open_loop", [True, False])
def test_a_load_is_cut_into_requests_by_time(open_loop: bool) -> None:
    send_ms = 1_000_000 + np.arange(100) * 7 if open_loop else None
    requests = load_requests(TimerLoad(0, np.full(100, 2_000_000), send_ms))
    assert sum(body.count(b"##0") for _, body in requests) == 100
    if send_ms is None:
        assert [at for at, _ in requests] == [0]
    else:
        assert [at for at, _ in requests] == sorted(
            {int(t) // 20: t for t in send_ms[::-1]}.values()
        )
