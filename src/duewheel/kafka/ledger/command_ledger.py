"""The ledger of whatever writes records of a source: commands, the relay.

The position says how far the source was read; it is a record of the state topic. As both are
committed together, a source's record is written once, whatever is killed and however often a
command runs.

Of two runs with the same transactional id the one that opens last fences the other, which ends: if
it took the id back, neither would finish.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar

import numpy as np
import structlog
from kafka import KafkaAdminClient

from duewheel.clock import Clock
from duewheel.config.settings import Settings
from duewheel.errors import Displaced, KafkaUnavailable, PublishDoubt, TransactionTooSlow
from duewheel.kafka import shard_settings
from duewheel.kafka.connect.clients import KafkaClients, close
from duewheel.kafka.ledger import producer_internals as internals
from duewheel.kafka.ledger.new_records import NewRecord, parts_of
from duewheel.kafka.ledger.transactional_producer import TransactionalProducer
from duewheel.kafka.progress.newest import newest_record
from duewheel.kafka.progress.state_topic import state_partition
from duewheel.kafka.targets.refusal_limits import RefusalLimits
from duewheel.kafka.targets.target_cache import TargetCache, require_usable
from duewheel.kafka.transaction_errors import REFUSED, doubt_of
from duewheel.schemas.request.preview import Rejection
from duewheel.schemas.wire.single_record import single
from duewheel.wheel import target_rules
from duewheel.wheel.doubt_resolution import CommitOutcome, CommitResult, Ledger, PositionRecord
from duewheel.wheel.encoded import Part
from duewheel.wheel.target_rules import Reason, Target, reason_text

P = TypeVar("P", bound=PositionRecord)

log = structlog.get_logger(__name__)

_REFUSALS_MAX = 100  # per chunk; each one halves the batches or finds a bad record


@dataclass(frozen=True, slots=True)
class LedgerSpec(Generic[P]):
    """The ledger of one command.

    Attributes:
        command: names it in errors.
        name: of its transactional id, after the app's.
        key: of the position's record.
        decode: reads the value of that record; gets None before the first.
    """

    command: str
    name: str
    key: bytes
    decode: Callable[[bytes | None], P]


class CommandLedger(Generic[P]):
    """Writes the records of one command. Not thread-safe.

    Example:
        position = ledger.open(dry_run=False)
        result = ledger.write(records, after)  # its position: `after`, or the one to plan by again
    """

    def __init__(self, settings: Settings, spec: LedgerSpec[P], clock: Clock) -> None:
        """Opens an admin client, and no producer."""
        self._spec, self._clock = spec, clock
        self._partition = state_partition(settings.state_topic, 0)
        self._clients = KafkaClients(settings.kafka.client_options("consumer"))
        self._limits = shard_settings.publisher_limits(settings)
        self._refusal_limits = RefusalLimits()
        self._targets = TargetCache(self._clients, self._limits, self._refusal_limits)
        self._ledger = Ledger(self._start, self._publish)
        transactional_id = f"{settings.app.id}.{spec.name}"
        self._producer = TransactionalProducer(self._clients, transactional_id, self._limits)
        self._admin = self._clients.open(KafkaAdminClient, self._limits.starting())
        self._refusals = 0

    @property
    def refused(self) -> frozenset[bytes]:
        """The names of the records that a broker has refused."""
        return self._refusal_limits.refused

    def open(self, *, dry_run: bool) -> P:
        """Fences every other run, and returns the position. A dry run fences none, so another run's
        open transaction may hide the position from it.
        """
        position = self._read() if dry_run else self._ledger.open()
        assert position is not None, "`decode` gives the first one"
        return position

    def resolve(self, topics: Iterable[str]) -> dict[str, Target]:
        """The targets of topics; KafkaUnavailable without an answer in time."""
        names = list(topics)
        deadline = self._limits.starting(topics=len(names))
        return self._targets.resolve(self._admin, names, deadline)

    def existing(self, topics: Iterable[str]) -> dict[str, Target]:
        """As `resolve`.

        Raises:
            Misconfigured: one of them takes no records.
        """
        targets = self.resolve(topics)
        require_usable(targets, self._clients.address)
        return targets

    def refusals(
        self, records: Sequence[NewRecord], targets: Mapping[str, Target]
    ) -> list[Rejection | None]:
        """Why each record can never be written: by the rules of its target, or as a broker has
        refused it before; None if it can.
        """
        number = {topic: n for n, topic in enumerate(targets)}
        limits = [targets[each.topic].batch_bytes_max for each in records]
        reasons = target_rules.why_not(
            list(targets.values()),
            np.array([number[each.topic] for each in records], np.int32),
            np.array([each.partition for each in records], np.int32),
            np.array([each.key is None for each in records], np.bool_),
            np.array([each.bytes_alone for each in records]) > np.array(limits),
        )
        refused = [each.name in self.refused for each in records]
        reasons[np.array(refused, np.bool_) & (reasons == Reason.NONE)] = Reason.RECORD_REFUSED
        return [
            Rejection(reason.code, reason_text(reason, each.topic, targets[each.topic]))
            if reason is not Reason.NONE
            else None
            for each, reason in zip(records, map(Reason, reasons.tolist()), strict=True)
        ]

    def write(self, records: Sequence[NewRecord], position: P) -> CommitResult[P]:
        """Commits the records, in order within each partition, with the position after them.

        Returns:
            The outcome, with the position that Kafka has now. Records that are not committed took
            too long (TransactionTooSlow); or a broker has refused some: `refused`, and the limits
            of targets, have changed.

        Raises:
            KafkaUnavailable: no transaction survives the settings of a topic; nothing was begun.
            PublishDoubt: the records are not committed for another reason, another run has begun,
                or Kafka does not answer.
        """
        before = self._refusals
        result = self._ledger.commit(records, position)
        if result.outcome is CommitOutcome.COMMITTED:
            self._refusals = 0
        elif result.doubt is not None:
            has_new_refusals = before < self._refusals < _REFUSALS_MAX
            is_slow = isinstance(result.doubt, TransactionTooSlow)
            is_slow &= result.outcome is CommitOutcome.ABORTED
            if not (has_new_refusals or is_slow):
                raise result.doubt
        if result.doubt is not None:
            log.warning(
                "transaction in doubt", outcome=result.outcome.name, reason=str(result.doubt)
            )
        return result

    def takes_writes(self, records: Sequence[NewRecord]) -> bool:
        """Whether the partitions of all records take writes, by metadata from now."""
        self._targets.forget()
        targets = self.resolve({record.topic for record in records})
        return all(targets[each.topic].takes_writes(each.partition) for each in records)

    def close(self) -> None:
        """Closes the clients; the next `open`, or a time-out, aborts an open transaction."""
        self._producer.stop()
        close(self._admin)

    def _read(self) -> P:
        deadline = self._limits.starting()  # it outlasts an earlier run's open transaction
        record = newest_record(self._clients, self._partition, self._spec.key, deadline)
        return self._spec.decode(None if record is None else record.value)

    def _start(self, doubt: PublishDoubt | None) -> P:
        if isinstance(doubt, Displaced):
            raise doubt  # to take the id back would fence the other run
        try:
            self._producer.open([self._partition[0]], self._limits.starting())
            return self._read()
        except KafkaUnavailable as error:
            raise doubt or error from None

    def _publish(self, records: Sequence[NewRecord], position: P) -> int | None:
        targets = self.resolve({record.topic for record in records})
        for topic, target in sorted(targets.items()):
            if target.closed_by:
                # Kafka would block the transactional id, and with it the command for every topic.
                why = f"topic {topic!r} takes no writes: {target.closed_by}"
                raise KafkaUnavailable(f"{self._spec.command}: {why}")
        parts = parts_of(records, lambda topic: targets[topic].batch_bytes)
        batches = [((part.topic, part.partition), part.batch) for part in parts]
        # In the same transaction: a kill would skip records if it were written before them, and
        # repeat some if it were written after them.
        batches.append((self._partition, single(self._spec.key, position.encode())))
        deadline = self._limits.preparing(topics=len(targets))
        on_failure = partial(self._note_refusals, parts)
        try:
            self._producer.warm_metadata(targets, deadline)
            return self._producer.transact(batches, self._clock.now_ms(), on_failure=on_failure)
        except Exception as error:  # noqa: BLE001 - kafka-python raises any
            reason = f"{self._spec.command}: {self._clients.explain(error)}"
            raise doubt_of(error, f"{reason}: run it again, nothing is doubled") from None

    def _note_refusals(self, parts: Sequence[Part], outcomes: Sequence[internals.Outcome]) -> None:
        causes = internals.causes(parts, outcomes)
        refused = [(part, error) for part, error in causes if isinstance(error, REFUSED)]
        for part, error in refused:
            self._refusal_limits.note_refusal(part, error)
        if refused:
            self._refusals += 1
            self._targets.forget()  # its targets contain limits
