"""The list of dead letters, and the reader of their topic that it shares with the replay."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import numpy as np
import structlog

from duewheel import factory
from duewheel.api.dead_letters import (
    DeadLetterFilter,
    DeadLetterList,
    DeadLetterQuery,
    DeadLetterSummary,
    DeadLetterWithMessage,
)
from duewheel.api.messages import KEY_SHOWN_BYTES, LONG_KEY_BYTES, octets_shown, start_of
from duewheel.checkpoints.dlq_replay_position import KEY, ReplayPosition
from duewheel.client.request_headers import rejection_in
from duewheel.config.range_ends import BEGINNING, Bound
from duewheel.config.settings import Settings
from duewheel.deadline import Deadline
from duewheel.kafka.log.columns import committed_records, records_one_by_one
from duewheel.kafka.log.reader import HEADER_BYTES, PART_BYTES, RECORD_BYTES, LogReader
from duewheel.kafka.log.records import Record, printable_name
from duewheel.kafka.progress.newest import newest_record
from duewheel.kafka.progress.state_topic import state_partition
from duewheel.ops.connection import ANSWER_S
from duewheel.ops.dead_letters.wanted_letters import WantedLetters
from duewheel.ops.log_reader import by_number, log_reader
from duewheel.ops.named_timer_topic import narrowed
from duewheel.ops.pages import (
    Parts,
    page_of_parts,
    position_in,
    position_text,
    ranges_after,
    rows_of_parts,
)
from duewheel.osutil.logs import shortened
from duewheel.registry.values import decoded_fields
from duewheel.schemas.arrays import Int64
from duewheel.schemas.dead_letters import DeadLetter
from duewheel.schemas.topic_scope import ALL_TOPICS, TopicScope
from duewheel.schemas.wire.kafka_records import KafkaRecords

CHUNK_RECORDS = 1_000  # read at a time; a replay writes them in one transaction
_GROUP_BYTES = 256 << 10  # in columns: headers of two bytes take 75 times as many

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class DeadLetterReader:
    """Reads the dead-letter topic up to its present end. Not thread-safe.

    Example:
        with dead_letter_reader(settings) as reader:
            for partition, (start, end) in reader.bounds().items():
                for letters, reached in reader.read(partition, start, end, wanted): ...
    """

    topic_id: str  # Kafka's
    _settings: Settings
    _records: LogReader
    _chunk_records: int

    def position(self) -> ReplayPosition:
        """The committed position of the replays."""
        partition = state_partition(self._settings.state_topic, 0)
        client = factory.kafka_clients(self._settings, "consumer")
        record = newest_record(client, partition, KEY, Deadline(ANSWER_S))
        return ReplayPosition.decode(record.value if record else None, self.topic_id)

    def bounds(self, since: Bound = BEGINNING) -> dict[int, tuple[int, int]]:
        """The first offset to read and the end offset, by partition."""
        return by_number(self._records.bounds(since, committed=True))

    def read(
        self, partition: int, start: int, end: int, wanted: WantedLetters
    ) -> Iterator[tuple[list[DeadLetter], int]]:
        """Reads the wanted dead letters of a partition from `start` up to `end`, in chunks.

        Yields:
            A possibly empty list of letters, and the offset below which no other remains.

        Raises:
            KafkaUnavailable: the position does not move.
        """
        place = (self._settings.dead_letter_topic, partition)
        ranges = {place: (start, end)}
        for part in self._records.read(ranges):
            letters, reached = list[DeadLetter](), start
            for records in committed_records(part, ranges, _GROUP_BYTES):
                if records.unread is not None:
                    count = len(records.unread.row)
                    log.warning("record batches left out", topic=place[0], batches=count)
                for rows, after in self._chunks(records, wanted.rows(records)):
                    if reached > start:  # the last chunk of a part reaches the part's end
                        yield letters, reached
                    letters, reached = _letters(records.take(rows), partition), after
            yield letters, min(part[0].end, end)

    def _chunks(self, records: KafkaRecords, rows: Int64) -> Iterator[tuple[Int64, int]]:
        """Yields a chunk's rows and the offset after it, at least once. As in `LogReader.records`
        chunks are bounded in memory, before there are objects: a letter may have a million headers.
        """
        octets = records.sizes + RECORD_BYTES + HEADER_BYTES * np.diff(records.headers.firsts)
        by_bytes = (np.cumsum(octets[rows]) - octets[rows]) // PART_BYTES
        by_count = np.arange(len(rows)) // self._chunk_records
        *chunks, last = np.split(rows, np.flatnonzero(np.diff(by_bytes) + np.diff(by_count)) + 1)
        for chunk in chunks:
            yield chunk, int(records.offset[chunk[-1]]) + 1
        yield last, int(records.offset[-1]) + 1


def _letters(records: KafkaRecords, partition: int) -> list[DeadLetter]:
    return [DeadLetter(partition, *row) for row in records_one_by_one(records)]


def letter_of(record: Record) -> DeadLetter:
    """Makes a dead letter of a record of their topic."""
    numbers = record.partition, record.offset, record.timestamp_ms
    return DeadLetter(*numbers, record.key, record.value, tuple(record.headers))


@contextmanager
def dead_letter_reader(
    settings: Settings, chunk_records: int = CHUNK_RECORDS
) -> Iterator[DeadLetterReader]:
    """Opens a reader and its clients; closes them at the end of the with block.

    Raises:
        ConfigError: the dead-letter topic does not exist.
        KafkaUnavailable: no answer in time.
    """
    with log_reader(settings, settings.dead_letter_topic) as records:
        yield DeadLetterReader(records.topic_id(), settings, records, chunk_records)


def list_letters(
    settings: Settings, wanted: DeadLetterFilter, page: str | None = None
) -> Iterator[DeadLetterSummary]:
    """Yields dead letters, oldest first within each partition; `page` is the position of the last
    one that the caller has.

    Raises:
        ConfigError: `page` does not parse, there is no such topic or timer topic, or `from` is an
            offset above all its ends.
        KafkaUnavailable: no answer in time.
    """
    return rows_of_parts(_parts(settings, wanted, page))


def _parts(
    settings: Settings, wanted: DeadLetterFilter, page: str | None, scope: TopicScope = ALL_TOPICS
) -> Parts[DeadLetterSummary]:
    """Yields the rows of a part of the topic, and the position of the last letter in that part."""
    after = position_in(page)
    selected = WantedLetters(wanted.code, narrowed(settings, scope, wanted.timer_topic))
    with dead_letter_reader(settings) as reader:
        position = reader.position()
        bounds = reader.bounds(Bound.parse("from", wanted.since))
        for partition, start, end in ranges_after(after, bounds):
            for letters, reached in reader.read(partition, start, end, selected):
                rows = [summary_of(each, position) for each in letters]
                yield rows, position_text(partition, reached - 1)


def summary_of(
    letter: DeadLetter, position: ReplayPosition, key_max: int = KEY_SHOWN_BYTES
) -> DeadLetterSummary:
    """A dead letter without its message, with `key_max` bytes of its key at most."""
    key, key_bytes = start_of(letter.key, key_max)
    timer_id, _ = start_of(letter.timer_id)  # longer only if it was refused for that
    return DeadLetterSummary(
        partition=letter.partition,
        offset=letter.offset,
        written_ms=letter.timestamp_ms,
        code=letter.code,
        error=_error(letter),
        source=letter.source,
        id=None if timer_id is None else timer_id.decode(errors="backslashreplace"),
        **octets_shown("key", key),
        key_bytes=key_bytes,
        value_bytes=None if letter.value is None else len(letter.value),
        replayed=position.has(letter),
    )


def _error(letter: DeadLetter) -> str:
    """Why it was rejected; with the reason of a producer that could make no timer of the message,
    which ingest does not know.
    """
    reason = rejection_in(letter.message_headers)
    return letter.error if reason is None else f"{letter.error}: {shortened(reason)!r}"


def page_of_letters(
    settings: Settings, wanted: DeadLetterQuery, within_s: float, scope: TopicScope = ALL_TOPICS
) -> DeadLetterList:
    """A page of the dead letters that `list_letters` yields, of the timer topics in `scope`; after
    `within_s` it ends, with those so far. Raises as `list_letters`.
    """
    parts = _parts(settings, wanted, wanted.page, scope)
    letters, following = page_of_parts(parts, wanted.limit, within_s, page_after)
    return DeadLetterList(letters=letters, next=following)


def page_after(row: DeadLetterSummary) -> str:
    """The `page` after a row."""
    return position_text(row.partition, row.offset)


def one_letter(
    settings: Settings,
    partition: int,
    offset: int,
    *,
    body: bool,
    scope: TopicScope = ALL_TOPICS,
) -> DeadLetterWithMessage | None:
    """One dead letter, if its timer topic is in `scope`; with its value and headers if `body` is
    set. Raises as `list_letters`.
    """
    with dead_letter_reader(settings) as reader:
        start, end = reader.bounds().get(partition, (0, 0))
        if not start <= offset < end:
            return None
        position = reader.position()
        for letters, _ in reader.read(partition, offset, offset + 1, WantedLetters(scope=scope)):
            for letter in letters:
                return _with_message(settings, letter, position, body=body)
    return None


def _with_message(
    settings: Settings, letter: DeadLetter, position: ReplayPosition, *, body: bool
) -> DeadLetterWithMessage:
    topic = letter.timer_topic or ""
    decode = partial(decoded_fields, settings, topic, letter.headers, letter.value)
    names = ((printable_name(name), value) for name, value in letter.headers)
    message = names, len(letter.headers), letter.value
    summary = summary_of(letter, position, LONG_KEY_BYTES)
    return DeadLetterWithMessage.of(summary, *message, body=body, decode=decode)
