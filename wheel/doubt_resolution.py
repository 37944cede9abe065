"""The exactly-once writer with a position: it resolves the doubts of its transactions.

A position is a record that each transaction writes beside its batches: the progress of a shard, or
how far a file was sent. Dequeue, `reconfigure`, the progress of `reshard`, and the commands that
write records (kafka/ledger/command_ledger.py) write by it. Without it, as a second attempt repeats
the first one or continues it:

    the first progress of a shard   a doubt ends the start; the next one reads it
    the notices of `reshard`        a doubt ends the command; its next run writes them again

`open` takes the transactional id, which fences every other writer and ends its open transaction,
and reads the position. A transaction that fails (time-out, lost broker, taken id, refused batch)
may be committed nevertheless. So the ledger opens again, and the position that Kafka then has
decides:

    the attempted one           COMMITTED
    the one before it           ABORTED
    another one, or none        ANOTHERS: another writer has committed since

Batches must leave with a position that differs from the one before it, or an abort would look like
a commit: the caller sees to that. If opening again fails, the doubt stays; the next run reads the
position first, and writes nothing twice.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Generic, Protocol, TypeVar

from duewheel.errors import PublishDoubt


class PositionRecord(Protocol):
    """A position; two are the same if their bytes are."""

    def encode(self) -> bytes: ...


B = TypeVar("B")
P = TypeVar("P", bound=PositionRecord)


class CommitOutcome(Enum):
    """The outcome of a transaction, as Kafka has it."""

    COMMITTED = auto()
    ABORTED = auto()
    ANOTHERS = auto()


@dataclass(frozen=True, slots=True)
class CommitResult(Generic[P]):
    """The outcome of a commit, which is certain.

    Attributes:
        position: the one that Kafka has.
        stamp_ms: the brokers' time of the position record; None if unknown, or after a doubt.
        doubt: that was resolved; None if there was none, as only after a commit.
    """

    outcome: CommitOutcome
    position: P | None
    stamp_ms: int | None = None
    doubt: PublishDoubt | None = None


class Ledger(Generic[B, P]):
    """Commits batches with positions. Not thread-safe.

    Attributes:
        position: the newest one that is certainly in Kafka.
    """

    def __init__(
        self,
        start: Callable[[PublishDoubt | None], P | None],
        publish: Callable[[B, P], int | None],
        position: P | None = None,
        written: Callable[[P], P] = lambda position: position,
    ) -> None:
        """
        Args:
            start: takes the transactional id, and reads the position; None before the first. It
                gets the doubt that it resolves, and its errors are raised.
            publish: writes one transaction, or raises PublishDoubt; returns a `stamp_ms`.
            position: as read, if the transactional id is taken.
            written: the position as `publish` has written it, which may add to it.
        """
        self.position = position
        self._start, self._publish, self._written = start, publish, written

    def open(self) -> P | None:
        """Fences every other writer; returns the position."""
        self.position = self._start(None)
        return self.position

    def commit(self, batches: B, position: P) -> CommitResult[P]:
        """Writes one transaction; after a doubt, the outcome is read from Kafka."""
        try:
            stamp_ms = self._publish(batches, position)
        except PublishDoubt as doubt:
            attempted, before = self._written(position), self.position
            found = self.position = self._start(doubt)
            outcome = CommitOutcome.ANOTHERS
            if _value(found) == attempted.encode():
                outcome = CommitOutcome.COMMITTED
            elif _value(found) == _value(before):
                outcome = CommitOutcome.ABORTED
            return CommitResult(outcome, found, doubt=doubt)
        self.position = self._written(position)
        return CommitResult(CommitOutcome.COMMITTED, self.position, stamp_ms)


def _value(position: PositionRecord | None) -> bytes | None:
    return None if position is None else position.encode()
