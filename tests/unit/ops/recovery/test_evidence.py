"""The evidence of a receipts topic, to which any program may write."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from tests.harness.record_batches import Record, batch

from duewheel.kafka.log.columns import committed_records
from duewheel.kafka.log.leader_requests import Fetched
from duewheel.ops.recovery.evidence import EvidenceReader, records_in
from duewheel.schemas.wire import kafka_records

RECEIPTS = ("receipts", 0)
RECEIPT = b'{"source":"timers-0@17","target":"orders","target_partition":3,"due_ms":1800000000000}'


def test_a_batch_of_many_records_comes_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parsed at once, 2,000,000 records of a producer's kilobytes would take 1.7 GB."""
    monkeypatch.setattr(kafka_records, "SLICE_ROWS", 4)
    fetched = Fetched(RECEIPTS, memoryview(batch([(5, None, b"", [])] * 10)), [], 1, 10)
    reader: Any = SimpleNamespace(read=lambda *_: [[fetched]])
    slices = [each.offset.tolist() for each in records_in(reader, {RECEIPTS: (1, 10)})]
    assert slices == [[1, 2, 3, 4], [5, 6, 7, 8], [9]]


def test_the_newest_receipt_is_no_record_of_another_program() -> None:
    reader = EvidenceReader([("timers", 0)])
    records: list[Record] = [(5, b"a", RECEIPT, []), (9, b"a", b"{}", [])]
    fetched = Fetched(RECEIPTS, memoryview(batch(records)), [], 0, 1 << 40)
    for read in committed_records([fetched], {RECEIPTS: (0, 2)}):
        reader._add_receipts(read)  # noqa: SLF001 - with a reader it needs Kafka

    assert reader.newest_ms == 5
