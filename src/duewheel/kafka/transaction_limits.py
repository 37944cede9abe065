"""Time and size limits of transactions, for the publisher and for commands."""

from __future__ import annotations

import threading
from dataclasses import dataclass

from duewheel.deadline import Deadline
from duewheel.errors import ConfigError

_TOPIC_S = 0.05  # per topic: some hundred times the usual time for its metadata


@dataclass(frozen=True, slots=True)
class TransactionLimits:
    """Bounds of transactions and of the metadata that they need, each in the unit of its name.

    Attributes:
        start_deadline_s: for the whole of `start`; the headway of reading the progress renews it.
            More than the transaction timeout: a dead transaction of `reshard` holds the progress
            back for that long.
        publish_deadline_s: for one transaction. Less than the transaction timeout, or the broker
            gives up first.
        transaction_timeout_ms: after it the broker aborts an abandoned transaction. Until
            then read_committed consumers of the same partitions wait.
        batch_bytes: the intended size of a batch; one partition sends one batch at a time.
        batch_bytes_max: the largest batch, whatever a topic allows. Below the broker's
            socket.request.max.bytes (100 MB unless set).
        ending_s: how long Kafka may take to end the last transaction of an id until the shard goes
            on under another id. More than a broker's failure takes to be noticed, 9 s by default.
        stop_s: how long to wait for a dropped producer's thread.
        unavailable_target_age_s: how long the metadata of a topic is cached that has a partition
            which takes no writes.
        quiet_s: how long a partition may leave a batch unanswered while others are answered;
            noticed about a second later.
        backoff_s: how long a partition that failed is not tried, from the next commit on: after
            the first failure, and at most.
    """

    start_deadline_s: float = 30.0
    publish_deadline_s: float = 12.0
    transaction_timeout_ms: int = 15_000
    batch_bytes: int = 512 * 1024
    batch_bytes_max: int = 64 * 1024 * 1024
    ending_s: float = 15.0
    stop_s: float = 5.0
    unavailable_target_age_s: float = 3.0
    quiet_s: float = 1.5
    backoff_s: tuple[float, float] = (5.0, 60.0)

    def __post_init__(self) -> None:
        if not self.publish_deadline_s * 1000 < self.transaction_timeout_ms:
            raise ConfigError(
                f"publish_deadline_s = {self.publish_deadline_s:g} must be below "
                f"transaction_timeout_ms = {self.transaction_timeout_ms}"
            )

    def starting(self, stopping: threading.Event | None = None, topics: int = 0) -> Deadline:
        """The deadline of a start, which may look up so many topics."""
        return Deadline(self.start_deadline_s + _TOPIC_S * topics, stopping)

    def preparing(self, stopping: threading.Event | None = None, topics: int = 0) -> Deadline:
        """The deadline for the metadata of so many topics. It grows with them, or a chunk with very
        many would fail for ever.
        """
        return Deadline(self.publish_deadline_s + _TOPIC_S * topics, stopping)
