"""Imports a source from the import's position to its end: writes what waits as timers.

For each chunk of the source:

1. Ingest's own rules are applied to its entries. One that ingest would reject stops the import
   before the chunk, or is skipped if the user says so. A dead letter is never made.
2. One Kafka transaction writes the records and the position behind them (positioned_writes.py).

So an entry is written once, whatever is killed and however often the command runs: a killed
transaction has neither records nor position, and the next run reads its entries again. A position
belongs to the import's name, and has the identity of its source.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from duewheel import factory
from duewheel.checkpoints.import_position import ImportPosition, key_of
from duewheel.clock import SystemClock
from duewheel.config.settings import Settings
from duewheel.errors import ConfigError, KafkaUnavailable, PublishDoubt
from duewheel.kafka import shard_settings
from duewheel.kafka.clients import ClientSettings
from duewheel.kafka.state_topic import newest_of, place_of
from duewheel.ops.imports.source import Entry, ImportSource, SourceChunk
from duewheel.ops.positioned_writes import REFUSALS_MAX, PositionedWriter
from duewheel.osutil.terminal import progress_bar
from duewheel.schemas.columns import binary
from duewheel.schemas.hashing import key_hashes
from duewheel.schemas.request.preview import Preview, Rejection, previews_of
from duewheel.schemas.wire.record_batch import HEADER_BYTES
from duewheel.schemas.wire.single_record import encode
from duewheel.wheel.encoded import Reason, Target

_SHOWN_MAX = 10  # refused entries in the verdict, with their reasons


@dataclass(frozen=True, slots=True)
class Choice:
    """What to import and how.

    Attributes:
        timer_topic: to which the timers are written.
        name: of the import; None: the source's.
        dry_run: write nothing.
        skip_refused: leave out what ingest would reject, and go on.
    """

    timer_topic: str
    name: str | None = None
    dry_run: bool = False
    skip_refused: bool = False


def import_timers(settings: Settings, source: ImportSource, choice: Choice) -> dict[str, Any]:
    """Imports what is not imported yet.

    Returns:
        The verdict, ready for JSON: name, dry_run, complete, already_done, read, written (timers),
        cancelled (cancels), not_waiting (superseded, cancelled or delivered at the source),
        past_due (of those written), refused (by code), refused_first, missed, earliest_due_ms,
        latest_due_ms, targets (timers by topic), missing_targets. Of a dry run: what a run would
        write.

    Raises:
        ConfigError: the name belongs to another source, or the source cannot be imported.
        KafkaUnavailable: no answer in time.
        PublishDoubt: a transaction's outcome is unknown. A new run reads it, and imports nothing
            twice.
    """
    run = _Import(settings, source, choice)
    try:
        return run.run()
    finally:
        run.close()


@dataclass(frozen=True, slots=True)
class _TimerRecord:
    """A record for the timer topic, and what ingest will make of it."""

    entry: Entry
    topic: str
    partition: int
    preview: Preview

    @property
    def name(self) -> bytes:
        return self.entry.name.encode(errors="surrogateescape")

    def encode(self, place: int) -> bytes:
        return _encoded(self.entry, place)


@dataclass
class _Tally:
    """The counts of one run."""

    read: int = 0
    written: int = 0
    cancelled: int = 0
    not_waiting: int = 0
    past_due: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    refused_first: list[dict[str, str]] = field(default_factory=list)
    targets: Counter[str] = field(default_factory=Counter)
    due_ms: tuple[int, int] | None = None  # the earliest, the latest

    def add(self, chunk: SourceChunk, records: Sequence[_TimerRecord], now_ms: int) -> None:
        """Counts a chunk that is written."""
        self.read += chunk.read
        self.not_waiting += chunk.read - len(chunk.entries)
        for record in records:
            due_ms, target = record.preview.due_ms, record.preview.target
            if due_ms is None or target is None:
                self.cancelled += 1
                continue
            self.written += 1
            self.past_due += due_ms <= now_ms
            self.targets[target] += 1
            first, last = self.due_ms or (due_ms, due_ms)
            self.due_ms = min(first, due_ms), max(last, due_ms)

    def refuse(self, refused: Sequence[tuple[Entry, Rejection]]) -> None:
        """Counts entries that ingest would reject."""
        for entry, rejection in refused:
            self.refused[rejection.code] += 1
            if len(self.refused_first) < _SHOWN_MAX:
                place = {"place": entry.name, "code": rejection.code}
                self.refused_first.append({**place, "reason": rejection.reason})


class _Import:
    """One run. Not thread-safe."""

    def __init__(self, settings: Settings, source: ImportSource, choice: Choice) -> None:
        self._settings, self._source, self._choice = settings, source, choice
        self._name = choice.name or source.name
        self._client = ClientSettings(settings.kafka.client_options("consumer"))
        self._contract = factory.contract(settings)
        self._clock = SystemClock()
        self._writer = PositionedWriter(
            self._client,
            f"{settings.app.id}.import.{self._name}",
            settings.state_topic,
            shard_settings.publisher_limits(settings),
            self._clock,
        )
        self._position = ImportPosition(source.identity)
        self._tally = _Tally()
        self._is_ahead = False  # a position behind chunks without anything to write

    def close(self) -> None:
        """Closes the clients."""
        self._writer.close()

    def run(self) -> dict[str, Any]:
        """Imports to the end of the source, or to the first entry that is refused."""
        self._timer_topic()  # the state topic is made with it
        self._position = self._take_over()
        already_done = self._position.read
        try:
            complete = self._read()
        except (PublishDoubt, KafkaUnavailable) as error:
            if self._choice.dry_run:
                raise
            before = f"{self._tally.written} timers were written before"
            raise type(error)(f"{before}: {error}") from error
        tally = self._tally
        first, last = tally.due_ms or (None, None)
        targets = self._writer.resolve(tally.targets)
        missing = (t for t, target in targets.items() if target.refusal is not Reason.NONE)
        return {
            "name": self._name,
            "dry_run": self._choice.dry_run,
            "complete": complete,
            "already_done": already_done,
            "read": tally.read,
            "written": tally.written,
            "cancelled": tally.cancelled,
            "not_waiting": tally.not_waiting,
            "past_due": tally.past_due,
            "refused": dict(tally.refused),
            "refused_first": tally.refused_first,
            "missed": self._source.missed(self._position.place, self._position.read),
            "earliest_due_ms": first,
            "latest_due_ms": last,
            "targets": dict(tally.targets.most_common()),
            "missing_targets": sorted(missing),
        }

    def _take_over(self) -> ImportPosition:
        """Fences every other run of this import, then returns the position."""
        if not self._choice.dry_run:
            self._writer.open()
        place = place_of(self._settings.state_topic, 0)
        # A killed run's open transaction may hide the position from a dry run until its time-out.
        record = newest_of(self._client, place, key_of(self._name), self._writer.deadline())
        value = None if record is None else record.value
        return ImportPosition.decode(value, self._name, self._source.identity)

    def _read(self) -> bool:
        with progress_bar() as bar:
            place = self._position.place
            task = bar.add_task("entries", total=self._source.size(place))
            for chunk in self._source.chunks(place):
                if not self._import(chunk):
                    return False
                bar.update(task, advance=chunk.read)
        if self._is_ahead and not self._choice.dry_run:
            self._commit([], self._timer_topic(), self._position)
        return True

    # ---- one chunk -------------------------------------------------------------------------

    def _import(self, chunk: SourceChunk) -> bool:
        """Writes one chunk; returns whether to continue."""
        for _ in range(REFUSALS_MAX):
            now_ms = self._clock.now_ms()
            target = self._timer_topic()
            records, refused = self._divide(chunk.entries, target, now_ms)
            if refused and not self._choice.skip_refused:
                self._tally.refuse(refused)
                return False
            moved = self._position.moved(chunk.place, chunk.read, len(records))
            if not self._commit(records, target, moved):
                self._reopen()
                continue
            self._position = moved
            self._tally.refuse(refused)
            self._tally.add(chunk, records, now_ms)
            return True
        raise PublishDoubt(f"Kafka keeps refusing records after {REFUSALS_MAX} attempts")

    def _timer_topic(self) -> Target:
        topic = self._choice.timer_topic
        target = self._writer.resolve([topic])[topic]
        if target.refusal is not Reason.NONE:
            raise ConfigError(
                f"there is no timer topic {topic!r}, or no right to write to it: `duewheel init` "
                "creates it"
            )
        return target

    def _commit(
        self, records: Sequence[_TimerRecord], target: Target, moved: ImportPosition
    ) -> bool:
        """Returns whether the transaction is committed; without records it is put off."""
        if self._choice.dry_run:
            return True
        if not records and moved is not self._position:
            self._is_ahead = True
            return True
        targets, key = {self._choice.timer_topic: target}, key_of(self._name)
        is_committed = self._writer.write("import", records, targets, key, moved.encode())
        self._is_ahead &= not is_committed
        return is_committed

    def _reopen(self) -> None:
        """Opens another producer after a refusal.

        Raises:
            PublishDoubt: another run has written meanwhile.
        """
        self._writer.stop()
        found = self._take_over()
        if found.read > self._position.read:
            raise PublishDoubt("another run of this import is at work: run it again")

    def _divide(
        self, entries: Sequence[Entry], target: Target, now_ms: int
    ) -> tuple[list[_TimerRecord], list[tuple[Entry, Rejection]]]:
        """Divides entries into records to write, and those that ingest or Kafka would reject."""
        refused = [(entry, entry.refusal) for entry in entries if entry.refusal is not None]
        usable = [entry for entry in entries if entry.refusal is None]
        if not usable:
            return [], refused
        topic = self._choice.timer_topic
        previews = previews_of(
            self._contract, topic, [(e.key, e.value, e.headers) for e in usable], now_ms
        )
        hashes = key_hashes(binary(entry.route or b"" for entry in usable)).tolist()
        records = []
        for entry, preview, key_hash in zip(usable, previews, hashes, strict=True):
            partition = key_hash if entry.partition is None else entry.partition
            record = _TimerRecord(entry, topic, partition % target.partitions, preview)
            rejection = preview.rejection or self._too_large(record, target)
            if rejection is None:
                records.append(record)
            else:
                refused.append((entry, rejection))
        return records, refused

    def _too_large(self, record: _TimerRecord, target: Target) -> Rejection | None:
        size = HEADER_BYTES + len(record.encode(0))
        if size > target.batch_bytes_max:
            text = f"{size} bytes, the timer topic takes {target.batch_bytes_max}"
            return Rejection("record_too_large", text)
        if record.name in self._writer.catalog.refused:
            return Rejection("record_refused", "Kafka has refused the record")
        return None


def _encoded(entry: Entry, place: int) -> bytes:
    return encode(place, entry.key, entry.value, entry.headers)
