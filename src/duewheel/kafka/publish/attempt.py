"""The content of one transaction: ready batches, copies that wait or are moved, the progress.

Nothing is written here, so an error only leads to a new start of the publisher.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
from kafka import KafkaAdminClient

from duewheel.checkpoints.progress import Progress
from duewheel.deadline import Deadline
from duewheel.kafka.log.compression import compressed
from duewheel.kafka.publish.fenced_session import FencedSession
from duewheel.kafka.publish.held_queue import (
    BATCHES_AT_ONCE,
    Bounds,
    Moved,
    closed_to_copies,
    fetch_moves,
    hold_closed,
    to_send,
)
from duewheel.kafka.targets.catalog import TargetCatalog
from duewheel.schemas.batches import Deliveries, TopicPartition
from duewheel.schemas.wire.record_batch import Batch
from duewheel.wheel.encoded import Aside, Part
from duewheel.wheel.publisher_protocol import Prepared, PublishAttempt


class AttemptMaker:
    """Makes the content of transactions, one after the other. Not thread-safe."""

    def __init__(self, session: FencedSession, catalog: TargetCatalog) -> None:
        self._session, self._catalog = session, catalog
        self._state_partition, self._reader = session.shard_progress.partition, session.reader
        self._moves_max = BATCHES_AT_ONCE

    def note_success(self) -> None:
        """The last attempt was committed."""
        self._moves_max = min(2 * self._moves_max, BATCHES_AT_ONCE)

    def note_timeout(self) -> None:
        """The last attempt was too large for its deadline."""
        self._moves_max = max(self._moves_max // 2, 1)

    def make(
        self, admin: KafkaAdminClient, prepared: Prepared | None, progress: Progress
    ) -> PublishAttempt:
        """The content of the next transaction. Without rows it is the progress alone, and no held
        copy moves.
        """
        held_before = progress.held.keys()
        if prepared is None:
            return PublishAttempt(progress, held_before=held_before)
        deliveries, encoded = prepared.deliveries, prepared.encoded
        parts, aside = (encoded.parts, encoded.aside) if encoded else ([], Aside())
        places = {(part.topic, part.partition) for part in parts}
        returning = places.intersection(deliveries.source_partitions)
        moves, closed = Moved(held=progress.held), set[TopicPartition]()
        topics = {part.topic for part in parts} | {topic for topic, _ in progress.held}
        deadline = self._session.preparing(len(topics))
        with self._reader.bounded_by(deadline):
            if progress.held or returning:
                moves, closed = self._fetch_moves(admin, parts, returning, progress, deadline)
            batches = hold_closed(parts, closed, moves.held, progress.topic_ids, self._state_end)
        parts = [*moves.parts, *batches.now]  # the older copies first: new ones may not overtake
        topics_sent = dict.fromkeys(part.topic for part in parts)
        self._session.producer.warm_metadata(topics_sent, deadline)
        is_unchanged = batches.held == progress.held
        return PublishAttempt(
            progress if is_unchanged else replace(progress, held=batches.held),
            prepared,
            parts,
            [*moves.deletions, *batches.records],
            aside,
            moved=moves.held != progress.held,
            held_before=held_before,
            due_ms=latest_due_ms(deliveries),
        )

    def _state_end(self) -> int:
        (end,) = self._reader.ends([self._state_partition], committed=False).values()
        return end

    def _fetch_moves(
        self,
        admin: KafkaAdminClient,
        parts: Sequence[Part],
        returning: set[TopicPartition],
        progress: Progress,
        deadline: Deadline,
    ) -> tuple[Moved, set[TopicPartition]]:
        """Reads the held copies that can be moved now; returns them, and the timer partitions that
        are closed to copies, of those that have held copies or get new ones.
        """
        partitions = returning.union(progress.held)
        targets = self._catalog.resolve(admin, {topic for topic, _ in partitions}, deadline)

        def ends(partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
            return self._reader.present_ends(partitions, committed=False)

        closed = closed_to_copies(partitions, targets, progress, ends)
        free = progress.held.keys() - closed
        bounds = Bounds.beside(parts, self._moves_max)
        moves = fetch_moves(self._reader, self._state_partition, progress, free, bounds)
        return replace(moves, parts=to_send(moves.parts, targets)), closed


def batches_of(
    attempt: PublishAttempt, session: FencedSession
) -> Iterator[tuple[TopicPartition, Batch]]:
    """The batches in order, each in the codec of its topic; the progress is last. None is
    compressed before: a record of the state topic holds a batch without its codec.
    """
    for part in attempt.parts:
        yield (part.topic, part.partition), compressed(part.batch, part.codec)
    for record in (*attempt.records, session.record_of(attempt.progress)):
        yield session.shard_progress.partition, record


def latest_due_ms(deliveries: Deliveries) -> int:
    """The latest due time of the rows that are timers and no copies; 0 without one."""
    others = deliveries.dead_letter | deliveries.is_copy | deliveries.answer
    return int(np.max(deliveries.due_ms, where=~others, initial=0))
