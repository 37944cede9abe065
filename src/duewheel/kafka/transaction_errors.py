"""Errors of a transaction, kafka-python's most of them, by their meaning."""

from __future__ import annotations

from kafka.errors import (
    InvalidProducerEpochError,
    InvalidRecordError,
    KafkaTimeoutError,
    MessageSizeTooLargeError,
    PolicyViolationError,
    ProducerFencedError,
    RecordListTooLargeError,
    RequestTimedOutError,
)

from duewheel.kafka.connect.deadline import DeadlineExceeded

OUT_OF_TIME = (DeadlineExceeded, KafkaTimeoutError, RequestTimedOutError)
FENCED = (InvalidProducerEpochError, ProducerFencedError)  # another producer has taken the id
# Nothing is wrong with a partition that fails with one, unless the progress was acknowledged.
NO_VERDICT = (*OUT_OF_TIME, *FENCED)
TOO_LARGE = (MessageSizeTooLargeError, RecordListTooLargeError)
# Refusals of a batch's content. A refused timestamp is not one: a clock is wrong, not the record.
REFUSED = (*TOO_LARGE, InvalidRecordError, PolicyViolationError)
