"""The consequences of batches that have failed by themselves: decided, and carried out.

`consequences_of` decides by the error of a batch and by the outcome of the progress. The progress
is in the last batch of its transaction, which stands for the cluster: if it has failed by itself,
too, the whole cluster may be down. Then only a refusal of the content has consequences.

The order of a failure:

    1. `transact` of the producer gives the outcomes of all batches to FailedBatches
    2. that lets refusal_limits.py make the next batches smaller or dead letters,
       unavailable_partitions.py park rows, transactional_ids.py not wait long for a marker; and
       for all batches together, resting_timer_topics.py park timers of the timer topics
    3. `transact` raises the first error; the publisher drops its clients, and raises PublishDoubt
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

from duewheel.kafka.ledger.producer_internals import NoAnswer, NotInKafka, Outcome, causes
from duewheel.kafka.publish.transactional_ids import TransactionalIds
from duewheel.kafka.targets.refusal_limits import RefusalLimits
from duewheel.kafka.targets.resting_timer_topics import RestingTimerTopics, WhenToRest
from duewheel.kafka.targets.unavailable_partitions import UnavailablePartitions
from duewheel.kafka.transaction_errors import FENCED, OUT_OF_TIME, REFUSED
from duewheel.wheel.publisher_protocol import Prepared, PublishAttempt

# A partition that fails with one of these may be sound, unless the progress was acknowledged.
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


class FailedBatches:
    """Carries out the consequences. The publisher's thread owns it."""

    def __init__(
        self,
        refusals: RefusalLimits,
        unavailable: UnavailablePartitions,
        resting: RestingTimerTopics,
        ids: TransactionalIds,
    ) -> None:
        self._refusals, self._unavailable = refusals, unavailable
        self._resting, self._ids = resting, ids

    def note_outcomes(
        self, attempt: PublishAttempt, seconds: float, outcomes: Sequence[Outcome]
    ) -> None:
        """An attempt of so many seconds has failed, with these outcomes of its batches."""
        failures, foreign = [], set[str]()
        # The timer topics that rest, each with the reason. They are noted together: two parts of
        # one transaction are no second refusal.
        resting: dict[WhenToRest, dict[str, str]]
        resting = {WhenToRest.AT_ONCE: {}, WhenToRest.AFTER_ANOTHER: {}}
        for part, error in causes(attempt.parts, outcomes):
            partition, name = (part.topic, part.partition), type(error).__name__
            is_trial = self._unavailable.has_failed(partition)
            follow = consequences_of(error, outcomes[-1], is_whole=part.is_whole, is_trial=is_trial)
            if follow.shows_limit:
                self._refusals.note_refusal(part, error)
            if follow.closes_partition:
                failures.append((partition, name))
            if follow.may_refuse_marker:
                # A hint, unless the progress was acknowledged: Kafka names them at the next start.
                self._ids.note_refusing([part.topic])
            if follow.is_foreign:
                foreign.add(part.topic)
            if follow.rest in resting:
                why = f"{part.topic} refused a record: {name}"
                resting[follow.rest] |= dict.fromkeys(attempt.rows.timer_topics_of([part]), why)
        if foreign := foreign.intersection(topic for topic, _ in attempt.progress.partitions):
            # Copies have aborted it, and a rest of their timers would only make more of them.
            self._unavailable.throttle_copies(frozenset(foreign), seconds)
        self._unavailable.note_failures(failures)
        for rest, why_of in resting.items():
            self._resting.note_refusals(why_of, seconds, rest)

    def note_error(self, rows: Prepared, seconds: float, error: Exception) -> None:
        """A step with these rows has failed after so many seconds. Some errors name topics that
        Kafka does not have, or partitions that have left their batches unanswered.
        """
        if isinstance(error, NotInKafka):
            absent = [part for part in rows.parts if part.topic in error.topics]
            why = dict.fromkeys(rows.timer_topics_of(absent), str(error))
            self._resting.note_refusals(why, seconds, WhenToRest.AFTER_ANOTHER)
        elif isinstance(error, NoAnswer):
            late = [((each.topic, each.partition), "no answer") for each in error.partitions]
            self._unavailable.note_failures(late)
