"""`duewheel import`: sends a file of timers exactly once.

For each chunk of lines:

1. Ingest's own rules are applied to the lines. One that ingest would reject ends the import before
   it, or is left out if the user says so. A dead letter is never made.
2. One Kafka transaction writes the records and the position after them (kafka/ledger/).

So a line is written once, whatever is killed and however often the command runs: a killed
transaction has neither records nor position, and the next run reads its lines again. A position
belongs to the import's name, and has a digest of the lines before it: another file is refused.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import partial
from hashlib import sha256
from itertools import islice
from typing import Any

from duewheel import factory
from duewheel.api.file_import import FileImported, RefusedLine
from duewheel.api.requests import TimerFields
from duewheel.checkpoints.import_position import ImportPosition, key_of
from duewheel.clock import Clock
from duewheel.config.settings import Settings
from duewheel.errors import ConfigError, PublishDoubt
from duewheel.kafka.ledger.command_ledger import CommandLedger, LedgerSpec
from duewheel.kafka.ledger.ledger_run import LedgerRun
from duewheel.kafka.ledger.new_records import NewRecord
from duewheel.ops.changes.acceptance import require_in_force
from duewheel.ops.file_import.line_reader import FileLine, Readable, fields_in, lines_of, next_chunk
from duewheel.ops.file_import.line_records import LINE_BYTES_MAX, record_of
from duewheel.ops.shard.present_files import newest_progress
from duewheel.ops.source_records import TimerRecord, new_records, require_source_name
from duewheel.osutil.logs import shortened
from duewheel.osutil.terminal import Advanced, unseen
from duewheel.schemas.batches import TopicPartition
from duewheel.schemas.request.preview import Preview, Rejection, previews_of
from duewheel.wheel.target_rules import Reason

_CHUNK_LINES = 1_000
_CHUNK_BYTES = 8 << 20  # of memory, and of a transaction, which must end in time
_SHOWN_MAX = 10  # refused lines in the verdict, with their reasons
_OTHER_FILE = (
    "the import {name!r} has read {lines} lines of a file that begins otherwise, and sent "
    "{written} of them: give that file; under another name all lines of this one are sent"
)
_ALONE = "another run of this import is at work: run it again"


@dataclass(frozen=True, slots=True)
class Choice:
    """How to send a file.

    Attributes:
        otherwise: the error if it begins with other lines than those that were sent.
        ends: of a mirror's topics, as the first call read them: kept in the position, so that a
            repeated call sends the same lines.
        advanced: gets the number of lines that are read, after each chunk.
    """

    name: str  # of the import: the name of its position
    _: KW_ONLY
    dry_run: bool = False
    skip_refused: bool = False  # leave out lines that ingest would reject, and continue
    chunk_lines: int = _CHUNK_LINES
    line_bytes_max: int = LINE_BYTES_MAX
    otherwise: str = _OTHER_FILE
    ends: Mapping[TopicPartition, int] = field(default_factory=dict)
    advanced: Advanced = unseen

    def __post_init__(self) -> None:
        require_source_name(self.name)


def import_lines(
    settings: Settings, clock: Clock, file: Readable, defaults: TimerFields, choice: Choice
) -> FileImported:
    """Sends the lines that are not sent yet, each empty or JSON (line_records.py); `defaults` are
    the fields of lines that do not have them.

    Raises:
        ConfigError: the file does not begin with the lines that this import has sent, or a topic is
            missing, or as `require_in_force`.
        KafkaUnavailable: no answer in time.
        PublishDoubt: a transaction's outcome is unknown. A new run reads it, and sends nothing
            twice.
    """
    require_in_force(settings, newest_progress(settings))
    with closing(_Import(settings, clock, file, defaults, choice)) as job:
        return job.run()


def sent_position(settings: Settings, clock: Clock, name: str, *, dry_run: bool) -> ImportPosition:
    """The position of an import, whose other runs end unless it is a dry run; KafkaUnavailable
    without an answer in time.
    """
    with closing(CommandLedger(settings, _spec(name), clock)) as ledger:
        ledger.existing([settings.state_topic])
        return ledger.open(dry_run=dry_run)


def _spec(name: str) -> LedgerSpec[ImportPosition]:
    decode = partial(ImportPosition.decode, import_name=name)
    return LedgerSpec("import", f"import.{name}", key_of(name), decode)


@dataclass(frozen=True, slots=True)
class _Line:
    """A line and its record, or why ingest would reject it; an empty line has neither. All but
    `read` is set by the preview.
    """

    read: FileLine
    record: NewRecord | None = None
    preview: Preview | None = None
    rejection: Rejection | None = None


@dataclass(frozen=True, slots=True)
class _ImportPart:
    """The lines of one transaction; `digest` is that of the file up to their end."""

    lines: Sequence[_Line]
    ending: _Line | None  # the line after them, if it ends the import
    digest: Any  # of hashlib, which names no type
    now_ms: int


@dataclass
class _Tally:
    """The counts of one run."""

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
            number, reason = line.read.number, shortened(rejection.reason)
            refused = RefusedLine(line=number, code=rejection.code, reason=reason)
            self.refused_first.append(refused)


class _Import:
    """One run. Not thread-safe."""

    def __init__(
        self,
        settings: Settings,
        clock: Clock,
        file: Readable,
        defaults: TimerFields,
        choice: Choice,
    ) -> None:
        self._settings, self._clock = settings, clock
        self._defaults, self._choice = defaults, choice
        self._lines = lines_of(file, choice.line_bytes_max)
        self._contract = factory.contract(settings)
        self._ledger = CommandLedger(settings, _spec(choice.name), self._clock)
        self._digest = sha256()
        self._tally = _Tally()

    def close(self) -> None:
        """Closes the clients."""
        self._ledger.close()

    def run(self) -> FileImported:
        """Sends up to the end of the file, or to the first line that is refused."""
        self._ledger.existing([self._settings.state_topic])
        ledger_run = LedgerRun(self._ledger, dry_run=self._choice.dry_run, alone=_ALONE)
        already_done = ledger_run.position.lines
        if already_done and ledger_run.position.ends != self._choice.ends:
            raise PublishDoubt(_ALONE)  # it has begun since this one has read the position
        self._skip_sent(ledger_run.position)
        with ledger_run.after(lambda: f"{self._tally.written} timers were written before"):
            complete = self._send(ledger_run)
        tally = self._tally
        targets = self._ledger.resolve(tally.targets)
        missing = (t for t, target in targets.items() if target.refusal is not Reason.NONE)
        return FileImported(
            name=self._choice.name,
            dry_run=self._choice.dry_run,
            complete=complete,
            already_done=already_done,
            read=tally.read,
            written=tally.written,
            cancelled=tally.cancelled,
            past_due=tally.past_due,
            refused=tally.refused,
            refused_first=tally.refused_first,
            earliest_due_ms=tally.earliest_due_ms,
            latest_due_ms=tally.latest_due_ms,
            targets=dict(tally.targets.most_common()),
            missing_targets=sorted(missing),
        )

    def _skip_sent(self, position: ImportPosition) -> None:
        """Reads the lines that are sent.

        Raises:
            ConfigError: they differ from those that were sent.
        """
        lines, skipped = position.lines, 0
        for line in islice(self._lines, lines):
            self._digest.update(line.digested)
            skipped += 1
        if skipped < lines or self._digest.hexdigest() != position.sha256:
            counts = {"lines": lines, "written": position.written}
            raise ConfigError(self._choice.otherwise.format(name=self._choice.name, **counts))

    def _send(self, run: LedgerRun[ImportPosition]) -> bool:
        """Sends the lines; returns whether the end of the file was reached."""
        while chunk := next_chunk(self._lines, self._choice.chunk_lines, _CHUNK_BYTES):
            lines: Sequence[_Line] = [_Line(each) for each in chunk]
            while lines:
                part, lines = run.write(lines, self._planned)
                self._digest = part.digest
                self._tally.add(part.lines, part.now_ms)
                if part.ending is not None and part.ending.rejection is not None:
                    self._tally.refuse(part.ending, part.ending.rejection)
                    return False
                self._choice.advanced(self._tally.read, None)
        return True

    # ---- one chunk -------------------------------------------------------------------------

    def _planned(
        self, position: ImportPosition, chunk: Sequence[_Line]
    ) -> tuple[list[NewRecord] | None, ImportPosition, _ImportPart]:
        """Plans a chunk up to the first line that ends the import."""
        # Again after an aborted transaction: by then the ledger has noted which of the records
        # Kafka refuses.
        part = self._part(chunk)
        records = [line.record for line in part.lines if line.record and line.rejection is None]
        lines, written = position.lines + len(part.lines), position.written + len(records)
        digest = part.digest.hexdigest()
        moved = ImportPosition(lines, digest, written, self._choice.ends)
        return records if part.lines else None, moved, part

    def _part(self, chunk: Sequence[_Line]) -> _ImportPart:
        """Judges the lines of a chunk, up to the first one that ends the import."""
        now_ms = self._clock.now_ms()
        lines, ending = self._previewed(chunk, now_ms), None
        if not self._choice.skip_refused:
            ending = next((line for line in lines if line.rejection is not None), None)
            # Lines after it wait for the next run: a position has no gaps.
            lines = lines if ending is None else lines[: lines.index(ending)]
        digest = self._digest.copy()
        for line in lines:
            digest.update(line.read.digested)
        return _ImportPart(lines, ending, digest, now_ms)

    # ---- the preview of ingest's decisions ---------------------------------------------------

    def _previewed(self, chunk: Sequence[_Line], now_ms: int) -> list[_Line]:
        """Adds record and preview, or rejection, to each line."""
        lines, by_topic = list(chunk), dict[str, list[tuple[int, TimerRecord]]]()
        for at, line in enumerate(chunk):
            try:
                record = self._record_of(line.read, now_ms)
            except ConfigError as error:
                lines[at] = replace(line, rejection=Rejection("unusable", str(error)))
                continue
            if record is not None:
                by_topic.setdefault(record.timer_topic, []).append((at, record))
        targets = self._ledger.existing(by_topic.keys())
        for topic, rows in by_topic.items():
            requests = [(record.key, record.value, record.headers) for _, record in rows]
            previews = previews_of(self._contract, topic, requests, now_ms)
            named = [(b"%d" % chunk[at].read.number, record) for at, record in rows]
            records = new_records(named, targets)
            refusals = self._ledger.refusals(records, targets)
            for (at, _), new, preview, refusal in zip(
                rows, records, previews, refusals, strict=True
            ):
                lines[at] = _Line(chunk[at].read, new, preview, preview.rejection or refusal)
        return lines

    def _record_of(self, line: FileLine, now_ms: int) -> TimerRecord | None:
        fields = fields_in(line, self._defaults)
        name = f"{self._choice.name}@{line.number}"
        return None if fields is None else record_of(self._settings, fields, name, now_ms)
