"""Errors of a transaction, kafka-python's most of them, by their meaning."""

from __future__ import annotations

from kafka.errors import (
    InvalidProducerEpochError,
    InvalidRecordError,
    InvalidTimestampError,
    KafkaError,
    KafkaTimeoutError,
    MessageSizeTooLargeError,
    OutOfOrderSequenceNumberError,
    PolicyViolationError,
    ProducerFencedError,
    RecordListTooLargeError,
    RequestTimedOutError,
)

from duewheel.kafka.connect.deadline import DeadlineExceeded


class PartitionRefusesId(KafkaError):  # type: ignore[misc]  # kafka-python carries no types
    """A partition has refused a batch as one of a fenced producer, and the last batch was taken: no
    other producer has taken the id, but a record in the partition names it with a higher epoch.
    """


OUT_OF_TIME = (DeadlineExceeded, KafkaTimeoutError, RequestTimedOutError)
FENCED = (InvalidProducerEpochError, ProducerFencedError)  # another producer has taken the id
# Nothing is wrong with a partition that fails with one, unless the progress was acknowledged.
NO_VERDICT = (*OUT_OF_TIME, *FENCED)
TOO_LARGE = (MessageSizeTooLargeError, RecordListTooLargeError)
# Refusals of a batch's content. A refused timestamp is not one: with another it would be taken.
REFUSED = (*TOO_LARGE, InvalidRecordError, PolicyViolationError)
# The partition may refuse a marker, too: because of another client's records under the producer id,
# or of its topic's bounds of timestamps, which Kafka reports by either of two errors.
REFUSES_MARKERS = (*FENCED, InvalidTimestampError, InvalidRecordError)
# If the progress was not refused: another client has written under the producer id.
FOREIGN = (*FENCED, OutOfOrderSequenceNumberError)
