"""Sends a file of timers exactly once: `duewheel send --file … --name …`.

For each chunk of lines:

1. Ingest's own rules are applied to the lines. One that ingest would reject ends the import before
   it, or is left out if the user says so. A dead letter is never made.
2. One Kafka transaction writes the records and the position after them (kafka/ledger/).

So a line is written once, whatever is killed and however often the command runs: a killed
transaction has neither records nor position, and the next run reads its lines again. A position
belongs to the import's name, and has a digest of the lines before it: another file is refused.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from itertools import islice
from typing import BinaryIO

from duewheel import factory
from duewheel.api.file_import import FileImported, RefusedLine
from duewheel.api.requests import TimerFields
from duewheel.checkpoints.import_position import ImportPosition, key_of
from duewheel.clock import SystemClock
from duewheel.config.settings import Settings
from duewheel.errors import ConfigError, KafkaUnavailable, PublishDoubt
from duewheel.kafka import shard_settings
from duewheel.kafka.connect.clients import ClientSettings
from duewheel.kafka.ledger.record_ledger import NewRecord, RecordLedger
from duewheel.kafka.progress.state_topic import place_of
from duewheel.ops.file_import.lines import FileLine, lines_of, next_chunk
from duewheel.ops.file_import.records import TimerRecord, fields_of, record_of
from duewheel.osutil.terminal import progress_bar
from duewheel.schemas.columns import binary
from duewheel.schemas.hashing import key_hashes
from duewheel.schemas.request.preview import Preview, Rejection, previews_of
from duewheel.schemas.wire.batch_header import HEADER_BYTES
from duewheel.schemas.wire.single_record import encode
from duewheel.wheel.encoded import Reason, Target

_CHUNK_LINES = 1_000
_CHUNK_BYTES = 8 << 20  # of memory, and of a transaction, which must end in time
_NAME = re.compile(r"[A-Za-z0-9._-]{1,200}")
_SHOWN_MAX = 10  # refused lines in the verdict, with their reasons


@dataclass(frozen=True, slots=True)
class Choice:
    """How to send a file."""

    name: str  # of the import: the name of its position
    dry_run: bool = False
    skip_refused: bool = False  # leave out lines that ingest would reject, and continue

    def __post_init__(self) -> None:
        """
        Raises:
            ConfigError: the name is none; it is a part of a key and of a transactional id.
        """
        if not _NAME.fullmatch(self.name):
            raise ConfigError(f"--name {self.name!r}: 1 to 200 of a-z A-Z 0-9 . _ -")


def import_lines(
    settings: Settings,
    file: BinaryIO,
    defaults: TimerFields,
    choice: Choice,
    chunk_lines: int = _CHUNK_LINES,
) -> FileImported:
    """Sends the lines that are not sent yet, each a JSON object (records.py) or empty; `defaults`
    are the fields of lines that do not have them.

    Raises:
        ConfigError: the file does not begin with the lines that this import has sent, or a topic is
            missing.
        KafkaUnavailable: no answer in time.
        PublishDoubt: a transaction's outcome is unknown. A new run reads it, and sends nothing
            twice.
    """
    run = _Import(settings, file, defaults, choice, chunk_lines)
    try:
        return run.run()
    finally:
        run.close()


@dataclass(frozen=True, slots=True)
class _Line:
    """A line and its record, or why ingest would reject it; an empty line has neither."""

    number: int
    read: FileLine
    record: TimerRecord | None = None
    preview: Preview | None = None
    rejection: Rejection | None = None


@dataclass
class _Tally:
    """The counts of one run, with the names of FileImported."""

    read: int = 0
    written: int = 0
    cancelled: int = 0
    past_due: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    refused_first: list[RefusedLine] = field(default_factory=list)
    targets: Counter[str] = field(default_factory=Counter)
    earliest_due_ms: int | None = None
    latest_due_ms: int | None = None

    def add(self, lines: Sequence[_Line], now_ms: int) -> None:
        """Counts lines that are written, or left out."""
        self.read += len(lines)
        for line in lines:
            if line.rejection is not None:
                self.refuse(line, line.rejection)
            elif line.preview is not None:
                self._add(line.preview, now_ms)

    def _add(self, preview: Preview, now_ms: int) -> None:
        due_ms, target = preview.due_ms, preview.target
        if due_ms is None or target is None:
            self.cancelled += 1
            return
        self.written += 1
        self.past_due += due_ms <= now_ms
        self.targets[target] += 1
        earliest, latest = self.earliest_due_ms, self.latest_due_ms
        self.earliest_due_ms = due_ms if earliest is None else min(earliest, due_ms)
        self.latest_due_ms = due_ms if latest is None else max(latest, due_ms)

    def refuse(self, line: _Line, rejection: Rejection) -> None:
        """Counts a line that ingest would reject."""
        self.refused[rejection.code] += 1
        if len(self.refused_first) < _SHOWN_MAX:
            refused = RefusedLine(line=line.number, code=rejection.code, reason=rejection.reason)
            self.refused_first.append(refused)


class _Import:
    """One run. Not thread-safe."""

    def __init__(
        self,
        settings: Settings,
        file: BinaryIO,
        defaults: TimerFields,
        choice: Choice,
        chunk_lines: int,
    ) -> None:
        self._settings, self._defaults = settings, defaults
        self._choice, self._chunk_lines = choice, chunk_lines
        self._lines = lines_of(file)
        self._contract = factory.contract(settings)
        self._clock = SystemClock()
        self._ledger = RecordLedger(
            "send",
            ClientSettings(settings.kafka.client_options("consumer")),
            f"{settings.app.id}.import.{choice.name}",
            place_of(settings.state_topic, 0),
            key_of(choice.name),
            lambda value: ImportPosition.decode(value, choice.name),
            shard_settings.publisher_limits(settings),
            self._clock,
        )
        self._position = ImportPosition()
        self._digest = sha256()
        self._tally = _Tally()

    def close(self) -> None:
        """Closes the clients."""
        self._ledger.close()

    def run(self) -> FileImported:
        """Sends up to the end of the file, or to the first line that is refused."""
        self._targets([self._settings.state_topic])
        self._position = self._ledger.open(dry_run=self._choice.dry_run)
        already_done = self._position.lines
        self._skip_sent(already_done)
        try:
            complete = self._send()
        except (PublishDoubt, KafkaUnavailable) as error:
            if self._choice.dry_run:
                raise
            before = f"{self._tally.written} timers were written before"
            raise type(error)(f"{before}: {error}") from error
        counts = self._tally.targets
        targets = self._ledger.resolve(counts)
        missing = (t for t, target in targets.items() if target.refusal is not Reason.NONE)
        return FileImported(
            name=self._choice.name,
            dry_run=self._choice.dry_run,
            complete=complete,
            already_done=already_done,
            missing_targets=sorted(missing),
            **vars(self._tally) | {"targets": dict(counts.most_common())},
        )

    def _skip_sent(self, lines: int) -> None:
        """Reads the lines that are sent.

        Raises:
            ConfigError: they differ from those that were sent.
        """
        skipped = 0
        for line in islice(self._lines, lines):
            self._digest.update(line.digested)
            skipped += 1
        if skipped < lines or self._digest.hexdigest() != self._position.sha256:
            raise ConfigError(
                f"the import {self._choice.name!r} has sent {lines} lines of a file that begins "
                "otherwise: give that file; under another --name all lines of this one are sent"
            )

    def _send(self) -> bool:
        """Returns whether the end of the file was reached."""
        with progress_bar() as bar:
            task = bar.add_task("lines", total=None)
            while chunk := next_chunk(self._lines, self._chunk_lines, _CHUNK_BYTES):
                first = self._position.lines + 1
                if not self._send_chunk([_Line(n, c) for n, c in enumerate(chunk, first)]):
                    return False
                bar.update(task, advance=len(chunk))
        return True

    # ---- one chunk -------------------------------------------------------------------------

    def _send_chunk(self, chunk: Sequence[_Line]) -> bool:
        """Writes a chunk up to the first line that ends the import; returns whether to continue."""
        while True:
            now_ms = self._clock.now_ms()
            lines, ending = self._previewed(chunk, now_ms), None
            if not self._choice.skip_refused:
                ending = next((line for line in lines if line.rejection is not None), None)
                # Lines after it wait for the next run: a position has no gaps.
                lines = [line for line in lines if ending is None or line.number < ending.number]
            if self._commit(lines):
                self._tally.add(lines, now_ms)
                if ending is not None and ending.rejection is not None:
                    self._tally.refuse(ending, ending.rejection)
                return ending is None

    def _commit(self, lines: Sequence[_Line]) -> bool:
        """Returns whether the lines and the position after them are committed; if not, the catalog
        has noted which records Kafka refuses.

        Raises:
            PublishDoubt: another run has written meanwhile.
        """
        digest = self._digest.copy()
        for line in lines:
            digest.update(line.read.digested)
        sent = [line for line in lines if line.record is not None and line.rejection is None]
        before = self._position
        moved = ImportPosition(
            before.lines + len(lines), digest.hexdigest(), before.written + len(sent)
        )
        if lines and not self._choice.dry_run:
            targets = self._targets({line.record.timer_topic for line in sent if line.record})
            found = self._ledger.write(_partitioned(sent, targets), moved)
            if found not in (before, moved):
                raise PublishDoubt("another run of this import is at work: run it again")
            if found == before:  # aborted: the next preview leaves out the records noted above
                return False
        self._position, self._digest = moved, digest
        return True

    def _targets(self, topics: Collection[str]) -> dict[str, Target]:
        targets = self._ledger.resolve(topics)
        for topic, target in targets.items():
            if target.refusal is not Reason.NONE:
                raise ConfigError(
                    f"there is no topic {topic!r}, or no right to write to it: `duewheel init` "
                    "creates it"
                )
        return targets

    # ---- the preview of ingest's decisions ---------------------------------------------------

    def _previewed(self, chunk: Sequence[_Line], now_ms: int) -> list[_Line]:
        """Adds record and preview, or rejection, to each line."""
        lines = [self._parsed(line) for line in chunk]
        by_topic: dict[str, list[tuple[int, TimerRecord]]] = {}
        for at, line in enumerate(lines):
            if line.record is not None:
                by_topic.setdefault(line.record.timer_topic, []).append((at, line.record))
        targets = self._targets(by_topic.keys())
        for topic, rows in by_topic.items():
            requests = [(record.key, record.value, record.headers) for _, record in rows]
            previews = previews_of(self._contract, topic, requests, now_ms)
            for (at, record), preview in zip(rows, previews, strict=True):
                line = lines[at]
                rejection = preview.rejection or self._too_large(line, record, targets[topic])
                lines[at] = replace(line, preview=preview, rejection=rejection)
        return lines

    def _parsed(self, line: _Line) -> _Line:
        content, name = line.read.content, f"{self._choice.name}@{line.number}"
        if line.read.is_rest:
            return replace(line, rejection=Rejection("unusable", "the rest of a line too long"))
        if not content.strip():
            return line
        try:
            fields = fields_of(content, self._defaults)
            record = record_of(self._settings, fields, name)
        except ConfigError as error:
            rejection = Rejection("unusable", str(error))
            return replace(line, rejection=rejection)
        return replace(line, record=record)

    def _too_large(self, line: _Line, record: TimerRecord, target: Target) -> Rejection | None:
        size = HEADER_BYTES + len(encode(0, record.key, record.value, record.headers))
        if size > target.batch_bytes_max:
            text = f"{size} bytes, the timer topic takes {target.batch_bytes_max}"
            return Rejection("record_too_large", text)
        if _name(line) in self._ledger.catalog.refused:
            return Rejection("record_refused", "Kafka has refused the record")
        return None


def _name(line: _Line) -> bytes:
    return b"%d" % line.number


def _partitioned(lines: Sequence[_Line], targets: Mapping[str, Target]) -> list[NewRecord]:
    """Chooses the partition of each line's record."""
    records = [line.record for line in lines if line.record is not None]
    hashes = key_hashes(binary(record.route for record in records)).tolist()
    sent = []
    for line, record, route_hash in zip(lines, records, hashes, strict=True):
        topic = record.timer_topic
        partition = record.partition_of(targets[topic].partitions, route_hash)
        content = record.key, record.value, record.headers
        sent.append(NewRecord(_name(line), topic, partition, *content))
    return sent
