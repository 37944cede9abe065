"""Which batches of a fenced producer show that another one has the transactional id."""

from __future__ import annotations

import pytest
from kafka.errors import InvalidProducerEpochError, KafkaTimeoutError, UnknownError

from duewheel.errors import Displaced
from duewheel.kafka.connect.clients import KafkaClients
from duewheel.kafka.ledger import transactional_producer
from duewheel.kafka.ledger.producer_internals import Outcome
from duewheel.kafka.ledger.transactional_producer import TransactionalProducer
from duewheel.kafka.transaction_errors import PartitionRefusesId, doubt_of
from duewheel.kafka.transaction_limits import TransactionLimits

FENCED = Outcome(InvalidProducerEpochError("fenced"), failed_itself=True)
ABORTED_SO = Outcome(InvalidProducerEpochError("fenced"), failed_itself=False)
ABORTED = Outcome(KafkaTimeoutError("no result"), failed_itself=False)
TAKEN = Outcome(None, failed_itself=False)
FAILED = Outcome(UnknownError("failed"), failed_itself=True)


@pytest.mark.parametrize(
    ("outcomes", "is_ending", "is_displaced"),
    [
        ([FENCED, TAKEN], False, False),
        ([FENCED, ABORTED], True, False),
        ([FENCED, ABORTED], False, True),
        ([TAKEN, FENCED], True, True),  # the last batch: of a partition of the shard's own
        ([FENCED, FENCED], True, True),
        ([FENCED, FAILED], True, True),
        ([ABORTED_SO, ABORTED_SO], True, True),  # by the coordinator
    ],
)
def test_a_refusal_of_a_partition_is_no_other_owner(
    monkeypatch: pytest.MonkeyPatch, outcomes: list[Outcome], is_ending: bool, is_displaced: bool
) -> None:
    seen = list[Outcome]()
    limits = TransactionLimits()
    producer = TransactionalProducer(KafkaClients({}), "t", limits, None, lambda: is_ending)
    monkeypatch.setattr(producer, "_opened", object)
    monkeypatch.setattr(transactional_producer, "commit_all", lambda *_, **__: outcomes)
    with pytest.raises((InvalidProducerEpochError, PartitionRefusesId)) as caught:
        producer.transact([], 0, on_failure=seen.extend)
    assert seen == outcomes
    assert isinstance(doubt_of(caught.value, ""), Displaced) == is_displaced
