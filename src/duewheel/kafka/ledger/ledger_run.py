"""One run of a command that writes a source's records: `dlq replay`, `import`, the relay.

Each part of the source is planned by the position that Kafka has, then written with the position
after it: so nothing is written twice, and nothing is left out. After a refusal of records the part
is planned again without them, by the position that Kafka has then. A part that took too long is
halved: it would fail for ever. Any other failure ends the run with its doubt.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Generic, TypeVar

from duewheel.errors import KafkaUnavailable, PublishDoubt, TransactionTooSlow
from duewheel.kafka.ledger.command_ledger import CommandLedger
from duewheel.kafka.ledger.new_records import NewRecord
from duewheel.wheel.doubt_resolution import CommitOutcome, PositionRecord

P = TypeVar("P", bound=PositionRecord)
Item = TypeVar("Item")  # of the source: a line, a row, a dead letter
Part = TypeVar("Part")  # a part of the source, as the command counts it

_GROWTH = 1.1  # of a transaction that was halved, by each commit


class LedgerRun(Generic[P]):
    """One run; a dry run plans everything and writes nothing. Not thread-safe."""

    def __init__(
        self,
        ledger: CommandLedger[P],
        *,
        dry_run: bool,
        alone: str = "",
        is_over: Callable[[], bool] = lambda: False,
    ) -> None:
        """Opens the ledger.

        Args:
            ledger: the command closes it.
            dry_run: whether it writes nothing.
            alone: the reason to end once another run has committed; by default this one continues
                beside it.
            is_over: whether the run ends instead of trying again in halves.
        """
        self._ledger, self._dry_run, self._alone = ledger, dry_run, alone
        self._is_over = is_over
        self.items_max = math.inf  # of one transaction
        self.position = ledger.open(dry_run=dry_run)

    def write(
        self,
        items: Sequence[Item],
        plan: Callable[[P, Sequence[Item]], tuple[Sequence[NewRecord] | None, P, Part]],
    ) -> tuple[Part, Sequence[Item]]:
        """Plans and writes one transaction until it is committed: of all items, or of the first.
        Returns their part of the source, and the other items.

        Args:
            plan: makes of a position and items the records, the position after them, and the part
                that they are of. None for the records: a later transaction commits this position,
                too.

        Raises:
            TransactionTooSlow: one record took too long; or some of them, and the run is over, or a
                partition takes no writes.
            PublishDoubt: another run has committed, and this one is to be `alone`.
        """
        before = self.position
        while True:
            if self._alone and self.position != before:
                raise PublishDoubt(self._alone)
            count = int(min(len(items), self.items_max))
            records, moved, part = plan(self.position, items[:count])
            if records is None or self._dry_run:
                self.position = moved
                return part, items[count:]
            result = self._ledger.write(records, moved)
            assert result.position is not None, "`decode` gives the first one"
            self.position = result.position
            if result.outcome is CommitOutcome.COMMITTED:
                self.items_max *= _GROWTH
                return part, items[count:]
            if isinstance(result.doubt, TransactionTooSlow):
                # A partition without a leader would let each half take as long.
                if len(records) < 2 or self._is_over() or not self._ledger.takes_writes(records):
                    raise result.doubt
                self.items_max = count / 2

    @contextmanager
    def after(self, written: Callable[[], str]) -> Iterator[None]:
        """Around the writes: an error that ends them begins with the number written before it."""
        try:
            yield
        except (PublishDoubt, KafkaUnavailable) as error:
            if not self._dry_run:
                error.reword(f"{written()}: {error}")
            raise
