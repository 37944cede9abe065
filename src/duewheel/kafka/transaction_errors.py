"""Errors of a transaction, kafka-python's most of them, by their meaning."""

from __future__ import annotations

from kafka.errors import (
    InvalidProducerEpochError,
    InvalidRecordError,
    KafkaError,
    KafkaTimeoutError,
    MessageSizeTooLargeError,
    PolicyViolationError,
    ProducerFencedError,
    RecordListTooLargeError,
    RequestTimedOutError,
)

from duewheel.deadline import DeadlineExceeded
from duewheel.errors import Displaced, PublishDoubt, TransactionTooSlow


class PartitionRefusesId(KafkaError):  # type: ignore[misc]  # kafka-python carries no types
    """A partition has refused a batch as one of a fenced producer, but no other producer has taken
    the id: a record in the partition names it with a higher epoch.
    """


OUT_OF_TIME = (DeadlineExceeded, KafkaTimeoutError, RequestTimedOutError)
FENCED = (InvalidProducerEpochError, ProducerFencedError)  # another producer has taken the id
TOO_LARGE = (MessageSizeTooLargeError, RecordListTooLargeError)
# Refusals of a batch's content. A refused timestamp is not one: with another it would be taken.
REFUSED = (*TOO_LARGE, InvalidRecordError, PolicyViolationError)


def doubt_of(error: Exception, text: str, *, was_begun: bool = True) -> PublishDoubt:
    """The doubt that an error of a transaction leaves, with this text."""
    is_late, is_fenced = isinstance(error, OUT_OF_TIME), isinstance(error, FENCED)
    kind = TransactionTooSlow if is_late else Displaced if is_fenced else PublishDoubt
    return kind(text, was_begun=was_begun)
