"""One run of a command that writes a source's records: `dlq replay`, `import`, the relay.

Each part of the source is planned by the position that Kafka has, then written with the position
after it: so nothing is written twice, and nothing is left out. After a refusal of records the part
is planned again, without them, by the position found; any other failure is the run's doubt.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Generic, TypeVar

from duewheel.errors import KafkaUnavailable, PublishDoubt
from duewheel.kafka.ledger.command_ledger import CommandLedger
from duewheel.kafka.ledger.new_records import NewRecord
from duewheel.wheel.doubt_resolution import PositionRecord

P = TypeVar("P", bound=PositionRecord)
Part = TypeVar("Part")  # a part of the source, as the command counts it


class LedgerRun(Generic[P]):
    """One run; a dry run plans everything and writes nothing. Not thread-safe."""

    def __init__(self, ledger: CommandLedger[P], *, dry_run: bool, alone: str = "") -> None:
        """Opens the ledger. `alone`: the reason to end once another run has committed; by default
        this one continues beside it.
        """
        self._ledger, self._dry_run, self._alone = ledger, dry_run, alone
        self.position = ledger.open(dry_run=dry_run)

    def write(self, plan: Callable[[P], tuple[Sequence[NewRecord] | None, P, Part]]) -> Part:
        """Plans and writes one transaction until it is committed; returns the part of the source.

        Args:
            plan: makes of a position the records, the position after them, and the part that they
                are of. None for the records: a later transaction commits this position, too.

        Raises:
            PublishDoubt: another run has committed, and this one is to be `alone`.
        """
        before = self.position
        while True:
            if self._alone and self.position != before:
                raise PublishDoubt(self._alone)
            records, moved, part = plan(self.position)
            is_written = records is not None and not self._dry_run
            self.position = self._ledger.write(records or (), moved) if is_written else moved
            # As read, equal positions may differ in spelling.
            if self.position.encode() == moved.encode():
                return part

    @contextmanager
    def after(self, written: Callable[[], str]) -> Iterator[None]:
        """Around the writes: an error that ends them begins with the number written before it."""
        try:
            yield
        except (PublishDoubt, KafkaUnavailable) as error:
            if not self._dry_run:
                error.reword(f"{written()}: {error}")
            raise
