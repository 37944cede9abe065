"""Writes records and a position in one Kafka transaction: for `dlq replay` and `import`.

The position says how far a source was read; it is a record in the state topic. As both are
committed together, a source's record is written once, whatever is killed and however often a
command runs.

Two runs with the same transactional id: the one that opens its producer last fences the other. So a
run reads the position after every open, and it is valid only as long as that producer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from duewheel.clock import Clock
from duewheel.errors import KafkaUnavailable, PublishDoubt
from duewheel.kafka.clients import ClientSettings, close, open_admin
from duewheel.kafka.deadline import Deadline
from duewheel.kafka.publisher_limits import PublisherLimits
from duewheel.kafka.state_topic import place_of
from duewheel.kafka.target_metadata import SentBatch, TargetCatalog
from duewheel.kafka.transactional_producer import TransactionalProducer, preparation_deadline
from duewheel.schemas.batches import TopicPartition
from duewheel.schemas.wire.batch_header import HEADER_BYTES
from duewheel.schemas.wire.record_batch import Batch
from duewheel.schemas.wire.single_record import single
from duewheel.wheel.encoded import Target

REFUSALS_MAX = 100  # per chunk; each one halves the batches or finds a bad record


class NewRecord(Protocol):
    """A record to write; `name` is unique among the records of its source."""

    @property
    def name(self) -> bytes: ...
    @property
    def topic(self) -> str: ...
    @property
    def partition(self) -> int: ...

    def encode(self, place: int) -> bytes:
        """Encodes the record as the one at this place of a batch."""
        ...


class PositionedWriter:
    """A producer for the transactions of one command. Not thread-safe.

    Attributes:
        catalog: of the topics that are written to; `refused` has the names of records that a
            broker has refused.

    Example:
        writer.open(deadline)
        position = …                            # read it now
        targets = writer.resolve(["orders"])
        is_committed = writer.write("replay", records, targets, KEY, position.encode())
    """

    def __init__(
        self,
        client: ClientSettings,
        transactional_id: str,
        state_topic: str,
        limits: PublisherLimits,
        clock: Clock,
    ) -> None:
        """Opens an admin client, and no producer.

        Raises:
            KafkaUnavailable: no answer in time.
        """
        self._client, self._limits, self._clock = client, limits, clock
        self._state_topic = state_topic
        self.catalog = TargetCatalog(client, limits)
        self._producer = TransactionalProducer(client, transactional_id, limits)
        self._admin = open_admin(client, self.deadline())

    @property
    def is_open(self) -> bool:
        """Whether the producer is open, so that a position read since then is valid."""
        return self._producer.is_open

    def deadline(self) -> Deadline:
        """Returns the deadline of a start: it outlasts an earlier run's open transaction."""
        return Deadline(self._limits.start_deadline_s)

    def open(self) -> None:
        """Fences every other run. An open transaction of it, which may hide the position, ends.

        Raises:
            KafkaUnavailable, ConfigError: as `TransactionalProducer.open`.
        """
        self._producer.open([self._state_topic], self.deadline())

    def stop(self) -> None:
        """Drops the producer; the next `open`, or its time-out, aborts an open transaction."""
        self._producer.stop()

    def close(self) -> None:
        """Closes the clients."""
        self._producer.stop()
        close(self._admin)

    def resolve(self, topics: Iterable[str]) -> dict[str, Target]:
        """Returns what is known of each topic.

        Raises:
            KafkaUnavailable: no answer in time.
        """
        names = list(topics)
        deadline = preparation_deadline(self._limits.start_deadline_s, len(names))
        return self.catalog.resolve(self._admin, names, deadline)

    def write(
        self,
        what: str,
        records: Sequence[NewRecord],
        targets: Mapping[str, Target],
        key: bytes,
        position: bytes,
    ) -> bool:
        """Commits the records with the position.

        Args:
            what: the command, for an error's text.
            records: in order within each partition.
            targets: of their topics, by `resolve`.
            key, position: the record in the state topic.

        Returns:
            Whether the transaction is committed. If not, a broker has refused records, which the
            catalog has noted: `stop`, open again, and write the others.

        Raises:
            KafkaUnavailable: no transaction survives the settings of a topic; nothing was begun.
            PublishDoubt: the transaction may or may not be committed.
        """
        topics = {record.topic for record in records}
        for topic in sorted(topics):
            if closed_by := targets[topic].closed_by:
                # Kafka would block the transactional id, and with it the command for every topic.
                raise KafkaUnavailable(f"{what}: topic {topic!r} takes no writes: {closed_by}")
        batches, sent = self._batches(records, targets)
        batches.append((place_of(self._state_topic, 0), single(key, position)))
        deadline = preparation_deadline(self._limits.publish_deadline_s, len(topics))
        try:
            self._producer.warm_metadata(topics, deadline)
            outcomes = self._producer.transact(what, batches, self._clock.now_ms())
        except Exception as error:  # noqa: BLE001 - kafka-python raises what it likes
            raise PublishDoubt(
                f"{what}: {self._client.explain(error)}: run it again, nothing is doubled"
            ) from None
        errors = [outcome.error for outcome in outcomes if outcome.error is not None]
        is_noted = [
            self.catalog.note_refusal(batch, outcome.error)
            for batch, outcome in zip(sent, outcomes, strict=False)  # the position is last
            if outcome.failed_itself and outcome.error is not None
        ]
        if errors and not any(is_noted):
            raise PublishDoubt(f"Kafka refuses: {self._client.explain(errors[0])}")
        return not errors

    def _batches(
        self, records: Sequence[NewRecord], targets: Mapping[str, Target]
    ) -> tuple[list[tuple[TopicPartition, Batch]], list[SentBatch]]:
        groups: dict[TopicPartition, list[NewRecord]] = {}
        for record in records:
            groups.setdefault((record.topic, record.partition), []).append(record)
        batches, sent = [], []
        for place, group in groups.items():
            topic, number = place
            bytes_max = self.catalog.batch_bytes(topic, targets[topic])
            for part in _cut(group, bytes_max - HEADER_BYTES):
                body = b"".join(record.encode(n) for n, record in enumerate(part))
                batches.append((place, Batch(memoryview(body), len(part))))
                alone = part[0].name if len(part) == 1 else None
                size = HEADER_BYTES + len(body)
                sent.append(SentBatch(topic, number, size, alone))
        return batches, sent


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
