"""The consequences of a batch that has failed by itself."""

from __future__ import annotations

from dataclasses import replace

import pytest
from kafka.errors import (
    InvalidProducerEpochError,
    InvalidRecordError,
    InvalidTimestampError,
    KafkaTimeoutError,
    MessageSizeTooLargeError,
    NotEnoughReplicasError,
    OutOfOrderSequenceNumberError,
    PolicyViolationError,
    ProducerFencedError,
    RecordListTooLargeError,
    RequestTimedOutError,
    TopicAuthorizationFailedError,
    UnknownError,
)

from duewheel.deadline import DeadlineExceeded
from duewheel.kafka.ledger.producer_internals import Outcome
from duewheel.kafka.publish.failed_batches import Consequences, consequences_of
from duewheel.kafka.targets.resting_timer_topics import WhenToRest

TAKEN = Outcome(None, failed_itself=False)
ABORTED = Outcome(UnknownError("aborted"), failed_itself=False)
FAILED = Outcome(UnknownError("failed"), failed_itself=True)

AT_ONCE = WhenToRest.AT_ONCE
NOTHING = Consequences()
CLOSED = Consequences(closes_partition=True)
LIMIT = Consequences(shows_limit=True, rest=AT_ONCE)
LIMIT_AND_MARKER = replace(LIMIT, may_refuse_marker=True)
FOREIGN = Consequences(may_refuse_marker=True, is_foreign=True, rest=AT_ONCE)
FOREIGN_CLOSED = replace(FOREIGN, closes_partition=True)
OUT_OF_ORDER = replace(CLOSED, is_foreign=True, rest=AT_ONCE)
FORBIDDEN = replace(CLOSED, rest=WhenToRest.AFTER_ANOTHER)
TIMESTAMP = replace(FORBIDDEN, may_refuse_marker=True)


@pytest.mark.parametrize(
    ("error", "if_taken", "if_aborted", "if_failed"),
    [
        (MessageSizeTooLargeError, LIMIT, LIMIT, LIMIT),
        (RecordListTooLargeError, LIMIT, LIMIT, LIMIT),
        (PolicyViolationError, LIMIT, LIMIT, LIMIT),
        (InvalidRecordError, LIMIT_AND_MARKER, LIMIT_AND_MARKER, LIMIT),
        (InvalidProducerEpochError, FOREIGN_CLOSED, FOREIGN, NOTHING),
        (ProducerFencedError, FOREIGN_CLOSED, FOREIGN, NOTHING),
        (OutOfOrderSequenceNumberError, OUT_OF_ORDER, OUT_OF_ORDER, NOTHING),
        (InvalidTimestampError, TIMESTAMP, TIMESTAMP, NOTHING),
        (TopicAuthorizationFailedError, FORBIDDEN, FORBIDDEN, NOTHING),
        (DeadlineExceeded, CLOSED, NOTHING, NOTHING),
        (KafkaTimeoutError, CLOSED, NOTHING, NOTHING),
        (RequestTimedOutError, CLOSED, NOTHING, NOTHING),
        # Whether anybody expected it or not
        (NotEnoughReplicasError, CLOSED, CLOSED, NOTHING),
        (UnknownError, CLOSED, CLOSED, NOTHING),
    ],
)
def test_the_consequences_depend_on_the_progress(
    error: type[Exception],
    if_taken: Consequences,
    if_aborted: Consequences,
    if_failed: Consequences,
) -> None:
    found = [consequences_of(error("it"), progress) for progress in (TAKEN, ABORTED, FAILED)]
    assert found == [if_taken, if_aborted, if_failed]


@pytest.mark.parametrize("progress", [TAKEN, ABORTED, FAILED])
def test_a_refusal_of_a_batch_that_cannot_be_divided_closes_its_partition(
    progress: Outcome,
) -> None:
    found = consequences_of(RecordListTooLargeError("18"), progress, is_whole=True)
    assert found == Consequences(closes_partition=True, rest=AT_ONCE)
    assert consequences_of(KafkaTimeoutError("expired"), ABORTED, is_whole=True) == NOTHING


@pytest.mark.parametrize(
    ("error", "rest"),
    [
        (InvalidTimestampError, WhenToRest.NEVER),
        (InvalidRecordError, AT_ONCE),
        (OutOfOrderSequenceNumberError, AT_ONCE),
        (TopicAuthorizationFailedError, WhenToRest.AFTER_ANOTHER),
        (UnknownError, WhenToRest.NEVER),
    ],
)
def test_a_trial_of_a_partition_has_no_timer_topic_rest_for_its_timestamps(
    error: type[Exception], rest: WhenToRest
) -> None:
    for progress in (TAKEN, ABORTED):
        assert consequences_of(error("it"), progress, is_trial=True).rest is rest
