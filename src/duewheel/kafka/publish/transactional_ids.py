"""The transactional ids of a shard: its first one, and a further one after each that is blocked.

Kafka ends a transaction with a marker in each of its partitions, and gives the id to no producer
before. A partition without a leader takes no marker for now. A partition refuses every marker if a
record in it names the same producer id with a higher epoch, which any client with Write on the
topic can write, or if a setting of its topic does not permit the marker. The id is *blocked* then,
and the shard uses the next one.

The order lets only one of two processes commit. The newest progress names, in a header, the ids
that may still be used: those that were blocked when they were last tried, and the present one.

    1. take every id that the progress names, or find it blocked; a new id if the last is blocked
    2. read the progress, past open transactions
    3. the shard is taken, if 1 has found the same ids blocked, and 2 the same names. Else the ids
       in use are named, by another process or by writing the progress again; 1 follows again

So a process has named its new id before it tries the blocked ones for the last time. Another
process that takes a blocked id after that trial reads the new name, and takes the new id as well; a
process that has taken a blocked id before is fenced by the trial.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import structlog
from kafka import KafkaAdminClient
from kafka.admin import TransactionState
from kafka.errors import TransactionalIdNotFoundError

from duewheel.deadline import Deadline
from duewheel.errors import KafkaUnavailable, PublishDoubt
from duewheel.kafka.connect.clients import KafkaClients
from duewheel.kafka.ledger.transactional_producer import TransactionalProducer
from duewheel.kafka.log.reader import LogReader
from duewheel.kafka.targets.unavailable_partitions import UnavailablePartitions
from duewheel.kafka.transaction_limits import TransactionLimits
from duewheel.schemas.batches import TopicPartition
from duewheel.schemas.partition_names import partition_name, some_of

_ENDING = (TransactionState.PREPARE_ABORT, TransactionState.PREPARE_COMMIT)
_ASK_S = 5.0  # for the state of a transaction
_FIRST_TRY_S = 1.0  # to take an id, if Kafka does not end its transaction
_HASTE_S = 1.0  # how long an id may take that a partition has refused
_RECHECK_S = 30.0  # between looks at the blocked ids

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Ending:
    """A transaction that Kafka is ending."""

    transactional_id: str
    state: str
    # As the coordinator knows, without its marker: the one that refuses it, and perhaps others
    partitions: frozenset[TopicPartition]
    coordinator: int  # the broker

    def __str__(self) -> str:
        return (
            f"Kafka cannot end a transaction of {self.transactional_id!r}: it is in {self.state}, "
            f"and one of these partitions refuses its marker: "
            f"{some_of(map(partition_name, self.partitions))}; broker {self.coordinator} "
            "coordinates it"
        )


def settle_ids(
    named: tuple[int, ...],
    take: Callable[[tuple[int, ...]], tuple[int, ...]],
    read: Callable[[], tuple[int, ...]],
    claim: Callable[[tuple[int, ...]], None],
) -> tuple[int, ...]:
    """Takes a shard in the order of the module's head; returns its ids.

    Args:
        named: the ids that the progress names, as read before.
        take: TransactionalIds.take.
        read: reads the progress; the ids that it names.
        claim: writes the progress again, with these ids.
    """
    given, tried = named, set[int]()
    while True:
        tried.update(given)
        taken = take(given)
        named = read()
        if taken == given == named:
            return taken
        if not tried.issuperset(named):
            given = tuple(sorted({*taken, *named}))
            continue
        if taken != named:
            claim(taken)
        given = taken


class TransactionalIds:
    """See the module's head. Ids have numbers, from 0 on. Not thread-safe.

    Attributes:
        producer: owns the present id while it is open.
        numbers: of the blocked ids and the present one, as `take` has found them.
        blocked: the transactions of the blocked ids.
    """

    def __init__(
        self,
        clients: KafkaClients,
        first: str,
        limits: TransactionLimits,
        stopping: threading.Event | None,
        reader: LogReader,
        unavailable: UnavailablePartitions,
    ) -> None:
        """Connects nothing. `first` is the id with the number 0; `unavailable` gets the topics that
        blocked ids close.
        """
        self._clients, self._first, self._limits = clients, first, limits
        self._stopping = stopping
        self._reader, self._unavailable = reader, unavailable
        self._recheck = Deadline(_RECHECK_S)
        self._refusing: frozenset[str] = frozenset()  # topics that have refused a batch
        self._in_haste = False
        self._admin: KafkaAdminClient | None = None
        self.producer = TransactionalProducer(clients, first, limits, stopping, self.is_ending)
        self.numbers: tuple[int, ...] = (0,)
        self.blocked: Sequence[Ending] = ()

    def take(
        self,
        admin: KafkaAdminClient,
        numbers: Sequence[int],
        topics: Iterable[str],
        deadline: Deadline,
    ) -> tuple[int, ...]:
        """Takes these ids; the producer has the last one, or if that is blocked a new one, and
        loads the metadata of the topics.

        Returns:
            The blocked ids, and the one that the producer has.

        Raises:
            KafkaUnavailable: no answer in time, or none that shows why Kafka does not give an id.
        """
        self.producer.stop()
        *others, last = numbers
        blocked = self._endings(admin, others, deadline)
        for number in others:
            if number not in blocked:
                self._open(number, [], deadline)
        while (ending := self._try(admin, last, topics, deadline)) is not None:
            blocked[last] = ending
            last += 1
            log.warning("a transactional id is blocked: the next one is used", reason=str(ending))
        self.blocked = tuple(blocked.values())
        self._admin, self.numbers = admin, (*blocked, last)
        return self.numbers

    def are_blocked(
        self, admin: KafkaAdminClient, numbers: Sequence[int], *, otherwise: bool = True
    ) -> bool:
        """Whether all of these ids are still blocked; without an answer of Kafka, `otherwise`."""
        try:
            endings = self._endings(admin, numbers, Deadline(_ASK_S, self._stopping))
        except KafkaUnavailable:
            return otherwise
        return len(endings) == len(numbers)

    def is_ending(self) -> bool:
        """Whether Kafka still ends a transaction of the present id; False without an answer."""
        admin, present = self._admin, self.numbers[-1:]
        return admin is not None and self.are_blocked(admin, present, otherwise=False)

    def note_refusing(self, topics: Iterable[str]) -> None:
        """These topics have refused a batch, and may refuse the marker, too. The next start waits
        only for a moment until Kafka has written it.
        """
        self._refusing, self._in_haste = self._refusing.union(topics), True

    def note_settled(self) -> None:
        """The shard is taken, with these ids."""
        self._recheck, self._in_haste = Deadline(_RECHECK_S), False
        self._close_topics()

    def require_blocked(self, admin: KafkaAdminClient) -> None:
        """Checks from time to time whether the ids are still blocked, and which topics they close.

        Raises:
            PublishDoubt: one can be taken: a start takes it, and opens the topics that it closed.
        """
        blocked = self.numbers[:-1]
        if blocked and not self._recheck.remaining_s():
            self._recheck = Deadline(_RECHECK_S)
            if not self.are_blocked(admin, blocked):
                raise PublishDoubt("a blocked transactional id can be taken again")
            self._close_topics()

    def _close_topics(self) -> None:
        """Closes the topics that refuse the marker of a blocked id. The other topics of its
        transaction have the marker already, though the coordinator may not know that.
        """
        closed = dict[str, str]()
        for ending in self.blocked:
            topics = {topic for topic, _ in ending.partitions}
            if len(topics) > 1:
                topics &= self._refusing.union(topic for topic, _ in self._unmarked(ending))
            refusing = frozenset(each for each in ending.partitions if each[0] in topics)
            closed |= dict.fromkeys(topics, str(replace(ending, partitions=refusing)))
        self._refusing &= closed.keys()
        self._unavailable.close_topics(closed)

    def _unmarked(self, ending: Ending) -> frozenset[TopicPartition]:
        """The partitions with records of a transaction that lack the marker, although the leader
        answers: the last stable offset stays below the end. Another client's transaction may be the
        reason, for now.
        """
        partitions = list(ending.partitions)
        try:
            with self._reader.bounded_by(Deadline(self._limits.quiet_s)):
                # The end first: later records are stable, too, unless a transaction is open.
                ends = self._reader.present_ends(partitions, committed=False)
                stable = self._reader.present_ends(partitions, committed=True)
        except KafkaUnavailable:
            return frozenset()
        return frozenset(p for p, end in ends.items() if stable.get(p, end) < end)

    def _name(self, number: int) -> str:
        return f"{self._first}~{number}" if number else self._first

    def _open(self, number: int, topics: Iterable[str], deadline: Deadline) -> None:
        self.producer.transactional_id = self._name(number)
        self.producer.open(topics, deadline)

    def _try(
        self,
        admin: KafkaAdminClient,
        number: int,
        topics: Iterable[str],
        deadline: Deadline,
    ) -> Ending | None:
        """Takes an id, or returns the transaction that blocks it: Kafka has not ended it after
        about `ending_s` of the limits, or a partition refuses its marker.

        Kafka writes the markers of a broker one by one, for seconds if there are many, and the
        marker of the next id would come after them. So a partition refuses its marker only if no
        partition gets one between two attempts.
        """
        ending_s = _HASTE_S if self._in_haste else self._limits.ending_s
        wait_s = min(_FIRST_TRY_S, ending_s)
        late = frozenset[TopicPartition]()  # at the attempt before
        while True:
            attempt = deadline.part(wait_s)
            try:
                self._open(number, topics, attempt)
            except KafkaUnavailable:
                found = dict[int, Ending]()
                with suppress(KafkaUnavailable):  # a broker before 3.0 cannot say
                    found = self._endings(admin, [number], Deadline(_ASK_S, self._stopping))
                ending, before = found.get(number), late
                if ending and not before and 2 * wait_s > ending_s:
                    return ending
                late = self._unmarked(ending) if ending else frozenset()
                if ending and before and before <= late:
                    return ending
                if not deadline.remaining_s() or (attempt.remaining_s() and not ending):
                    raise
                if not late:
                    wait_s = min(2 * wait_s, ending_s)  # a start may take seconds on a busy host
            else:
                return None

    def _endings(
        self, admin: KafkaAdminClient, numbers: Sequence[int], deadline: Deadline
    ) -> dict[int, Ending]:
        """The transactions of these ids that Kafka is ending."""
        names = {self._name(number): number for number in numbers}
        if not names:
            return {}
        ask = partial(_described, admin, list(names))
        found = self._clients.call(deadline, "describe transactional ids", ask)
        return {
            names[name]: Ending(
                name, each.state.value, frozenset(each.topic_partitions), each.coordinator_id
            )
            for name, each in found.items()
            if each.state in _ENDING
        }


def _described(admin: KafkaAdminClient, names: Sequence[str]) -> dict[str, Any]:
    """The descriptions of the ids that Kafka knows: it forgets an unused one after a week."""
    try:
        described: dict[str, Any] = admin.describe_transactions(names)
    except TransactionalIdNotFoundError:
        alone = [[name] for name in names] if len(names) > 1 else []
        return {name: each for one in alone for name, each in _described(admin, one).items()}
    return described
