"""The evidence of a receipts topic, to which any program may write."""

from __future__ import annotations

from tests.harness.record_batches import Record, batch

from duewheel.kafka.log.columns import committed_records
from duewheel.kafka.log.leader_requests import Fetched
from duewheel.ops.recovery.evidence import EvidenceReader

RECEIPTS = ("receipts", 0)
RECEIPT = b'{"source":"timers-0@17","target":"orders","target_partition":3,"due_ms":1800000000000}'


def test_the_newest_receipt_is_no_record_of_another_program() -> None:
    reader = EvidenceReader([("timers", 0)])
    records: list[Record] = [(5, b"a", RECEIPT, []), (9, b"a", b"{}", [])]
    fetched = Fetched(RECEIPTS, memoryview(batch(records)), [], 0, 1 << 40)
    for read in committed_records([fetched], {RECEIPTS: (0, 2)}):
        reader._add_receipts(read)  # noqa: SLF001 - with a reader it needs Kafka

    assert reader.newest_ms == 5
