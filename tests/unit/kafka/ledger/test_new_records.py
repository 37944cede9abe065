"""Batches of the records that a command writes."""

from __future__ import annotations

import pytest

from duewheel.kafka.ledger.new_records import NewRecord, parts_of
from duewheel.schemas.wire.batch_header import HEADER_BYTES
from duewheel.schemas.wire.record_rows import rows_of


def record(number: int, partition: int, size: int = 10) -> NewRecord:
    headers = [("n", b"%d" % number)]
    return NewRecord(b"name %d" % number, "t", partition, b"%d" % number, bytes(size), headers)


@pytest.mark.parametrize(
    ("fits", "expected"),
    [
        (3, {0: [[0, 2, 4], [6]], 1: [[1, 3, 5]]}),
        (1, {0: [[0], [2], [4], [6]], 1: [[1], [3], [5]]}),
        (0, {0: [[0], [2], [4], [6]], 1: [[1], [3], [5]]}),  # each exceeds the limit alone
    ],
)
def test_records_fill_batches_in_their_order(
    fits: int, expected: dict[int, list[list[int]]]
) -> None:
    records = [record(number, number % 2) for number in range(7)]
    bytes_max = HEADER_BYTES + fits * (records[0].bytes_alone - HEADER_BYTES)
    found: dict[int, list[list[int]]] = {}
    for part in parts_of(records, lambda _: bytes_max):
        numbers = [
            int(key or b"") for _, _, key, _, _ in rows_of(part.batch.body, part.batch.count)
        ]
        assert part.source == (b"name %d" % numbers[0] if len(numbers) == 1 else None)
        assert len(part.batch.body) <= max(bytes_max, records[0].bytes_alone) - HEADER_BYTES
        found.setdefault(part.partition, []).append(numbers)
    assert found == expected
