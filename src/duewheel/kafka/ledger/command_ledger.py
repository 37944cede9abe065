"""The ledger of a command that writes records: `dlq replay`, `send --file`, the trial of `doctor`.

The position says how far a source was read; it is a record of the state topic. As both are
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

import structlog
from kafka import KafkaAdminClient, KafkaProducer
from kafka.structs import TopicPartition as Place

from duewheel.clock import Clock
from duewheel.errors import Displaced, KafkaUnavailable, PublishDoubt
from duewheel.kafka.connect.clients import ClientSettings, close
from duewheel.kafka.connect.deadline import Deadline
from duewheel.kafka.ledger import producer_internals as internals
from duewheel.kafka.ledger.transactional_producer import (
    TransactionalProducer,
    doubt_of,
    preparation_deadline,
)
from duewheel.kafka.limits import PublisherLimits
from duewheel.kafka.log.newest import newest_record
from duewheel.kafka.targets.catalog import TargetCatalog
from duewheel.schemas.wire.batch_header import HEADER_BYTES
from duewheel.schemas.wire.record_batch import Batch
from duewheel.schemas.wire.single_record import Header, encode, single
from duewheel.wheel.encoded import Part, Target
from duewheel.wheel.ledger import CommitOutcome, Ledger, PositionRecord

P = TypeVar("P", bound=PositionRecord)

log = structlog.get_logger(__name__)

_REFUSALS_MAX = 100  # per chunk; each one halves the batches or finds a bad record


@dataclass(frozen=True, slots=True)
class NewRecord:
    """A record to write; `name` is unique among the records of its source."""

    name: bytes
    topic: str
    partition: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[Header]

    def encode(self, place: int) -> bytes:
        """Encodes the record as the one at this place of a batch."""
        return encode(place, self.key, self.value, self.headers)


class CommandLedger(Generic[P]):
    """Writes the records of one command. Not thread-safe.

    Attributes:
        catalog: the topics that are written to; `refused` has the names of records that a broker
            has refused.

    Example:
        position = ledger.open(dry_run=False)
        position = ledger.write(records, after)  # `after`, or the former one: plan again
    """

    def __init__(
        self,
        command: str,
        client: ClientSettings,
        transactional_id: str,
        place: Place,
        key: bytes,
        decode: Callable[[bytes | None], P],
        limits: PublisherLimits,
        clock: Clock,
    ) -> None:
        """Opens an admin client, and no producer.

        Args:
            place, key: where the position's record is.
            decode: reads its value; gets None before the first.
        """
        self._command, self._client, self._limits, self._clock = command, client, limits, clock
        self._place, self._key, self._decode = place, key, decode
        self.catalog = TargetCatalog(client, limits)
        self._ledger = Ledger(self._start, self._publish)
        self._producer = TransactionalProducer(client, transactional_id, limits)
        self._admin = client.open(KafkaAdminClient, self._deadline())
        self._refusals = 0

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
        deadline = preparation_deadline(self._limits.start_deadline_s, len(names))
        return self.catalog.resolve(self._admin, names, deadline)

    def write(
        self,
        records: Sequence[NewRecord],
        position: P,
        before_commit: Callable[[KafkaProducer], object] = lambda _: None,
    ) -> P:
        """Commits the records, in order within each partition, with the position after them.

        Args:
            before_commit: is called once all brokers have taken the records; its errors leave the
                transaction open.

        Returns:
            The position that Kafka has now. If it is another one, the records are not committed: a
            broker has refused some, which the catalog has noted.

        Raises:
            KafkaUnavailable: no transaction survives the settings of a topic; nothing was begun.
            PublishDoubt: the records are not committed, another run has begun, or Kafka does not
                answer.
        """
        before = self._refusals
        result = self._ledger.commit((records, before_commit), position)
        if result.outcome is CommitOutcome.COMMITTED:
            self._refusals = 0
        elif result.doubt is not None and self._refusals in {before, _REFUSALS_MAX}:
            raise result.doubt
        if result.doubt is not None:
            log.warning(
                "transaction in doubt", outcome=result.outcome.name, reason=str(result.doubt)
            )
        assert result.position is not None, "`decode` gives the first one"
        return result.position

    def close(self) -> None:
        """Closes the clients; the next `open`, or a time-out, aborts an open transaction."""
        self._producer.stop()
        close(self._admin)

    def _deadline(self) -> Deadline:
        """The deadline of a start: it outlasts an earlier run's open transaction."""
        return Deadline(self._limits.start_deadline_s)

    def _read(self) -> P:
        record = newest_record(self._client, self._place, self._key, self._deadline())
        return self._decode(None if record is None else record.value)

    def _start(self, doubt: PublishDoubt | None) -> P:
        if isinstance(doubt, Displaced):
            raise doubt  # to take the id back would fence the other run
        try:
            self._producer.open([self._place.topic], self._deadline())
            return self._read()
        except KafkaUnavailable as error:
            raise doubt or error from None

    def _publish(
        self, chunk: tuple[Sequence[NewRecord], Callable[[KafkaProducer], object]], position: P
    ) -> int | None:
        records, before_commit = chunk
        targets = self.resolve({record.topic for record in records})
        for topic, target in sorted(targets.items()):
            if target.closed_by:
                # Kafka would block the transactional id, and with it the command for every topic.
                why = f"topic {topic!r} takes no writes: {target.closed_by}"
                raise KafkaUnavailable(f"{self._command}: {why}")
        parts = self._parts(records, targets)
        batches = [(Place(part.topic, part.partition), part.batch) for part in parts]
        # In the same transaction: a kill would skip records if it were written before them, and
        # repeat some if it were written after them.
        batches.append((self._place, single(self._key, position.encode())))
        deadline = preparation_deadline(self._limits.publish_deadline_s, len(targets))
        note = partial(self._note_refusals, parts)
        try:
            self._producer.warm_metadata(targets, deadline)
            now_ms = self._clock.now_ms()
            return self._producer.transact(
                self._command, batches, now_ms, note=note, before_commit=before_commit
            )
        except Exception as error:  # noqa: BLE001 - kafka-python raises any
            reason = f"{self._command}: {self._client.explain(error)}"
            raise doubt_of(error, f"{reason}: run it again, nothing is doubled") from None

    def _note_refusals(self, parts: Sequence[Part], outcomes: Sequence[internals.Outcome]) -> None:
        is_noted = [
            self.catalog.note_refusal(part, outcome.error)
            for part, outcome in zip(parts, outcomes, strict=False)  # the position is last
            if outcome.failed_itself and outcome.error is not None
        ]
        self._refusals += any(is_noted)

    def _parts(self, records: Sequence[NewRecord], targets: Mapping[str, Target]) -> list[Part]:
        groups: dict[Place, list[NewRecord]] = {}
        for record in records:
            groups.setdefault(Place(record.topic, record.partition), []).append(record)
        parts = []
        for (topic, number), group in groups.items():
            bytes_max = self.catalog.batch_bytes(topic, targets[topic])
            for some in _cut(group, bytes_max - HEADER_BYTES):
                body = b"".join(record.encode(n) for n, record in enumerate(some))
                alone = some[0].name if len(some) == 1 else None
                parts.append(Part(topic, number, Batch(memoryview(body), len(some)), alone))
        return parts


def _cut(records: Sequence[NewRecord], bytes_max: int) -> list[list[NewRecord]]:
    """Splits records into batches that fit; a record above the limit gets a batch of its own."""
    parts: list[list[NewRecord]] = []
    left = -1
    for record in records:
        size = len(record.encode(len(parts[-1]) if parts else 0))
        if size > left:
            parts.append([])
            left = bytes_max
        parts[-1].append(record)
        left -= size
    return parts
