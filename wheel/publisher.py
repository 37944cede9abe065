"""What the dequeue loop asks of a publisher; Kafka's is in kafka_publisher.py."""

from __future__ import annotations

from typing import Protocol

from duewheel.checkpoints.progress import Progress
from duewheel.schemas.timers import Deliveries


class Publisher(Protocol):
    """Publishes deliveries and progress atomically, for one shard.

    Not thread-safe: one loop owns it. Every call has a deadline of the publisher's own.
    """

    def start(self) -> Progress | None:
        """Take the shard's transactional id (which ends any open transaction of a predecessor) and
        read the newest committed progress; None if there is none.

        May be called again after PublishDoubt: the old producer is dropped, a new one built.

        Raises:
            KafkaUnavailable: no answer in time.
            RecoveryRefused: the record there cannot be read.
        """
        ...

    def publish(self, deliveries: Deliveries | None, progress: Progress) -> None:
        """One transaction: all deliveries in their order, and the progress record.

        Rows that can never be published (no such topic or partition, too large) leave as dead
        letters in the same transaction.

        Raises:
            PublishDoubt: the outcome is unknown or the transaction failed: call `start`.
            Fenced: another instance has taken the shard over.
        """
        ...

    def close(self) -> None:
        """Drop the producer; an open transaction is left to the next `start` or its time-out."""
        ...
