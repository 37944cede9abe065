"""Sends the rows of an outbox exactly once: `duewheel relay postgres`.

For each part of the table:

1. Rows are read that no earlier part has sent; those of the part before are deleted
   (outbox_table.py).
2. Rows without a possible record, or with one that its topic does not take, are marked as refused;
   and those that are too large to be read, or that PostgreSQL cannot read.
3. One Kafka transaction writes the records and the position, which has the ids of the rows
   (kafka/ledger/).

Killed before the commit of 3, the next run reads the same rows again. Killed after it, the next run
deletes them first. A record that ingest would reject is written, and becomes a dead letter there.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial

import structlog

from duewheel import factory
from duewheel.backoff import Backoff
from duewheel.checkpoints.relay_position import RelayPosition, key_of
from duewheel.config.settings import Settings
from duewheel.errors import ConfigError, Displaced, DuewheelError, Fenced
from duewheel.kafka.ledger.command_ledger import CommandLedger, LedgerSpec
from duewheel.kafka.ledger.ledger_run import LedgerRun
from duewheel.kafka.ledger.new_records import NewRecord
from duewheel.ops.connection import require_kafka
from duewheel.ops.relay.outbox_rows import OutboxRow, RefusedRow, record_of_row
from duewheel.ops.relay.outbox_table import OutboxTable
from duewheel.ops.relay.relay_metrics import RelayMetrics
from duewheel.ops.source_records import TimerRecord, new_records, require_source_name
from duewheel.osutil.metrics_server import served

_PART_ROWS = 1_000
_POLL_S = 0.2

log = structlog.get_logger(__name__)


def run_relay(settings: Settings, name: str, stopping: threading.Event) -> None:
    """Sends rows until it is stopped. Once it has begun, it waits for Kafka and PostgreSQL.

    Raises:
        ConfigError: no such name or topic, or the database has no outbox.
        DuewheelError: no answer at the start; or later one that waiting does not change.
        Fenced: another relay runs under this name.
    """
    require_source_name(name)
    with require_kafka(settings):  # at the start alone: later the clients' warnings are its log
        pass
    clock = factory.StoppableClock(stopping)
    metrics, served_on = RelayMetrics(clock), settings.metrics
    with served(metrics, served_on.host, served_on.relay_port, "metrics.relay_port"):
        _relay_until_stopped(settings, name, clock, metrics)


def _relay_until_stopped(
    settings: Settings, name: str, clock: factory.StoppableClock, metrics: RelayMetrics
) -> None:
    backoff, has_connected = Backoff(clock, random.Random(), first_ms=200), False
    while not clock.stopping.is_set():
        try:
            with _connected(settings, name, clock) as relay:
                has_connected = True
                relay.send_all(backoff, metrics)
        except Displaced as error:
            raise Fenced(f"another relay runs under the name {name!r}: {error}") from error
        except DuewheelError as error:
            if not (has_connected and error.retriable):
                raise
            wait_ms = backoff.next_ms()
            log.warning("the relay begins again", reason=str(error), wait_ms=wait_ms)
            backoff.wait(wait_ms)


@contextmanager
def _connected(settings: Settings, name: str, clock: factory.StoppableClock) -> Iterator[_Relay]:
    """Connects, and fences every other relay of the name."""
    database = settings.relay.database.get_secret_value()
    decode = partial(RelayPosition.decode, relay=name)
    spec = LedgerSpec("relay", f"relay.{name}", key_of(name), decode)
    with (
        closing(OutboxTable(database, name, settings.timer.topics)) as table,
        closing(CommandLedger(settings, spec, clock)) as ledger,
    ):
        ledger.existing([settings.state_topic, *settings.timer.topics])
        alone, is_over = "another relay of this name is at work", clock.stopping.is_set
        run = LedgerRun(ledger, dry_run=False, alone=alone, is_over=is_over)
        yield _Relay(settings, name, clock, table, ledger, run)


@dataclass(frozen=True, slots=True)
class _Relay:
    """One connection to each of both. Not thread-safe. After an error it is of no more use."""

    _settings: Settings
    _name: str
    _clock: factory.StoppableClock
    _table: OutboxTable
    _ledger: CommandLedger[RelayPosition]
    _run: LedgerRun[RelayPosition]

    def send_all(self, backoff: Backoff, metrics: RelayMetrics) -> None:
        """Sends rows until the clock stops; each success resets `backoff`."""
        self._table.require_own(self._run.position)
        log.info("the relay is ready", relay=self._name, part=self._run.position.part)
        while not self._clock.stopping.is_set():
            if not self._send_part(metrics):
                self._clock.sleep(_POLL_S)
            backoff.succeeded()

    def _send_part(self, metrics: RelayMetrics) -> bool:
        """Sends the next rows; returns whether there were any."""
        # The table divides a part of a bounded number of rows equally among the timer topics.
        rows_max = int(min(_PART_ROWS, self._run.items_max))
        rows, unread = self._table.next_rows(self._run.position, rows_max)

        def plan(
            position: RelayPosition, rows: Sequence[OutboxRow]
        ) -> tuple[list[NewRecord] | None, RelayPosition, list[RefusedRow]]:
            # Called again after an aborted transaction: by then the ledger has noted which of the
            # records Kafka refuses.
            sent, refused = self._records_of(rows)
            if not sent:
                return None, position, refused
            records = [record for _, record in sent]
            return records, position.after([(row.seq, row.id) for row, _ in sent]), refused

        refused_now, left = self._run.write(rows, plan)
        refused = [*unread, *refused_now]
        if refused:
            reason = self._table.refuse(refused)
            first_seq = refused[0].seq
            log.warning("rows are refused", rows=len(refused), first_seq=first_seq, reason=reason)
        # The others come again: the table deletes the rows of one part before it gives the next.
        sent = len(rows) - len(left) - len(refused_now)
        has_more = self._table.has_more or bool(left)
        metrics.note(sent=sent, refused=len(refused), has_more=has_more)
        return bool(rows or unread)

    def _records_of(
        self, rows: Sequence[OutboxRow]
    ) -> tuple[list[tuple[OutboxRow, NewRecord]], list[RefusedRow]]:
        """The records of rows, and the rows that have none."""
        made, refused = list[tuple[OutboxRow, TimerRecord]](), list[RefusedRow]()
        now_ms = self._clock.now_ms()
        for row in rows:
            try:
                made.append((row, record_of_row(self._settings, row, now_ms)))
            except ConfigError as error:
                refused.append(row.refused(str(error)))
        targets = self._ledger.resolve({record.timer_topic for _, record in made})
        records = new_records([(row.name, record) for row, record in made], targets)
        sent = []
        refusals = self._ledger.refusals(records, targets)
        for (row, _), record, refusal in zip(made, records, refusals, strict=True):
            if refusal is None:
                sent.append((row, record))
            else:
                refused.append(row.refused(refusal.reason))
        return sent, refused
