"""Decides the consequences of a batch that has failed by itself, from its error and the progress.

The progress is in the last batch of its transaction, which stands for the cluster: if it has failed
by itself, too, the whole cluster may be down. Then only a refusal of the content has consequences.

The order of a failure:

    1. `transact` of the producer gives the outcomes of all batches to the publisher
    2. `consequences_of` decides those of each batch that has failed by itself
    3. the publisher notes them: refusal_limits.py makes the next batches smaller or dead letters,
       unavailable_partitions.py parks rows, transactional_ids.py does not wait long for a marker;
       for all batches together, resting_timer_topics.py parks timers of the timer topics
    4. `transact` raises the first error; the publisher drops its clients, and raises PublishDoubt
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kafka.errors import (
    InvalidRecordError,
    InvalidTimestampError,
    OutOfOrderSequenceNumberError,
    TopicAuthorizationFailedError,
)

from duewheel.kafka.ledger.producer_internals import Outcome
from duewheel.kafka.targets.resting_timer_topics import WhenToRest
from duewheel.kafka.transaction_errors import FENCED, OUT_OF_TIME, REFUSED
from duewheel.wheel.encoded import Part

# Nothing is wrong with a partition that fails with one, unless the progress was acknowledged.
_INCONCLUSIVE = (*OUT_OF_TIME, *FENCED)
# The partition may refuse a marker, too: because of another client's records under the producer id,
# or of its topic's bounds of timestamps, which Kafka reports by either of two errors.
_REFUSES_MARKERS = (*FENCED, InvalidTimestampError, InvalidRecordError)
# Another client has written under the producer id.
_FOREIGN = (*FENCED, OutOfOrderSequenceNumberError)


@dataclass(frozen=True, slots=True)
class Consequences:
    """The consequences of a failed batch.

    Attributes:
        shows_limit: it is encoded again in halves, or its record becomes a dead letter.
        closes_partition: its partition takes no writes for now.
        may_refuse_marker: the next start does not wait for the partition's marker for long.
        is_foreign: another client has written to its topic under the producer id.
        rest: when timer topics rest.
    """

    shows_limit: bool = False
    closes_partition: bool = False
    may_refuse_marker: bool = False
    is_foreign: bool = False
    rest: WhenToRest = WhenToRest.NEVER


@dataclass(frozen=True, slots=True)
class Cause:
    """Parts that have aborted a transaction, and when the timer topics of their timers rest."""

    parts: Sequence[Part]
    text: str
    rest: WhenToRest


def consequences_of(
    error: Exception, progress: Outcome, *, is_whole: bool = False, is_trial: bool = False
) -> Consequences:
    """The consequences of one batch.

    Args:
        is_whole: it cannot be divided.
        is_trial: its partition has failed before, and has taken no write since.
    """
    may_refuse_marker = isinstance(error, _REFUSES_MARKERS) and not progress.failed_itself
    if isinstance(error, REFUSED):
        return Consequences(
            shows_limit=not is_whole,
            closes_partition=is_whole,
            may_refuse_marker=may_refuse_marker,
            rest=WhenToRest.AT_ONCE,
        )
    if progress.failed_itself:
        return Consequences()
    rest, is_foreign = WhenToRest.NEVER, isinstance(error, _FOREIGN)
    if is_foreign:
        rest = WhenToRest.AT_ONCE
    elif isinstance(error, TopicAuthorizationFailedError):
        # Also in a trial: metadata has shown the right since the failure before.
        rest = WhenToRest.AFTER_ANOTHER
    elif may_refuse_marker and not is_trial:  # trials become rare
        rest = WhenToRest.AFTER_ANOTHER
    return Consequences(
        closes_partition=progress.error is None or not isinstance(error, _INCONCLUSIVE),
        may_refuse_marker=may_refuse_marker,
        is_foreign=is_foreign,
        rest=rest,
    )
