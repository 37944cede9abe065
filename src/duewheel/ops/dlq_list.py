"""Reading the dead-letter topic, and `duewheel dlq list`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Self, TypeVar

from kafka import KafkaAdminClient
from kafka.structs import TopicPartition

from duewheel.checkpoints.replay_position import KEY, ReplayPosition
from duewheel.config.settings import Settings
from duewheel.errors import ConfigError
from duewheel.kafka.admin import KafkaAdmin
from duewheel.kafka.clients import ClientSettings, close, open_reader
from duewheel.kafka.deadline import Deadline
from duewheel.kafka.state_topic import newest_record, place_of
from duewheel.schemas.dead_letters import DeadLetter

T = TypeVar("T")

_DEADLINE_S = 30.0
_CHUNK_RECORDS = 1_000
_POLL_MS = 200
_MS = 1_000


@dataclass(frozen=True, slots=True)
class Since:
    """Where a listing begins: an offset of every partition, or a time in epoch ms."""

    offset: int = 0
    time_ms: int | None = None

    @classmethod
    def parse(cls, text: str) -> Since:
        """An offset, or ISO-8601 with a zone.

        Raises:
            ConfigError: it is neither.
        """
        if text.isdecimal():
            return cls(int(text))
        try:
            time = datetime.fromisoformat(text)
        except ValueError:
            time = None
        if time is None or time.tzinfo is None:
            raise ConfigError(f"--from {text}: give an offset, or ISO-8601 with a zone")
        return cls(time_ms=int(time.timestamp() * _MS))


class DeadLetterReader:
    """The dead-letter topic, to be read up to where it ends now. Not thread-safe.

    Example:
        with DeadLetterReader(settings) as reader:
            for partition, (start, end) in reader.bounds().items():
                for letters, reached in reader.read(partition, start, end): ...
    """

    def __init__(self, settings: Settings) -> None:
        self.topic = settings.dead_letter_topic
        self.client = ClientSettings(settings.kafka.client_options("consumer"))
        self._settings = settings

    def __enter__(self) -> Self:
        self.topic_id = self._topic_id()
        self._consumer = open_reader(
            self.client, Deadline(_DEADLINE_S), max_poll_records=_CHUNK_RECORDS
        )
        return self

    def __exit__(self, *_: object) -> None:
        close(self._consumer)

    def _topic_id(self) -> str:
        with KafkaAdmin(self._settings.kafka.client_options("admin")) as admin:
            found = admin.topic_ids([self.topic])
        if self.topic not in found:
            raise ConfigError(
                f"Kafka at {self._settings.kafka.servers} has no topic {self.topic!r}: "
                "`duewheel init` creates it"
            )
        return str(found[self.topic])

    def position(self, admin: KafkaAdminClient) -> ReplayPosition:
        """How far the dead letters have been replayed."""
        place = place_of(self._settings.state_topic, 0)
        found = newest_record(self.client, admin, place, KEY, Deadline(_DEADLINE_S))
        return ReplayPosition.decode(found.value if found else None, self.topic_id)

    def bounds(self, since: Since | None = None) -> dict[int, tuple[int, int]]:
        """First offset to read and the end, by partition."""
        since = since or Since()

        def ask() -> dict[int, tuple[int, int]]:
            numbers = sorted(self._consumer.partitions_for_topic(self.topic) or ())
            partitions = [TopicPartition(self.topic, number) for number in numbers]
            starts = self._consumer.beginning_offsets(partitions)
            ends = self._consumer.end_offsets(partitions)
            asked = dict.fromkeys(partitions, since.offset)
            if since.time_ms is not None:
                found = self._consumer.offsets_for_times(dict.fromkeys(partitions, since.time_ms))
                asked = {p: found[p].offset if found.get(p) else ends[p] for p in partitions}
            return {p.partition: (max(starts[p], asked[p]), ends[p]) for p in partitions}

        return self._call("ask where the dead letters end", ask)

    def read(self, partition: int, start: int, end: int) -> Iterator[tuple[list[DeadLetter], int]]:
        """The dead letters of a partition from `start` up to `end`, in chunks.

        Yields:
            Neighbouring letters, maybe none, and the offset up to which that is all of them.

        Raises:
            KafkaUnavailable: the position has not moved for long.
        """
        if start >= end:
            return
        source = TopicPartition(self.topic, partition)
        self._consumer.assign([source])
        self._consumer.seek(source, start)
        reached = start
        while reached < end:
            letters, reached = self._call(
                f"read {self.topic}-{partition} from {reached}",
                functools.partial(self._next, source, reached),
            )
            yield [letter for letter in letters if letter.offset < end], min(reached, end)

    def _next(self, source: TopicPartition, reached: int) -> tuple[list[DeadLetter], int]:
        """Poll until the position moves: a transaction's marker moves it without a record."""
        deadline = Deadline(_DEADLINE_S)
        while True:
            records = self._consumer.poll(timeout_ms=_POLL_MS).get(source, [])
            position = int(self._consumer.position(source) or 0)
            if position > reached:
                return [_letter(record) for record in records], position
            deadline.check("no more records come")

    def _call(self, what: str, call: Callable[[], T]) -> T:
        return self.client.call(Deadline(2 * _DEADLINE_S), what, call)


def _letter(record: Any) -> DeadLetter:
    return DeadLetter(
        record.partition,
        record.offset,
        record.timestamp,
        record.key,
        record.value,
        tuple(record.headers),
    )


def list_letters(
    settings: Settings, *, since: Since, code: str | None, limit: int
) -> Iterator[dict[str, Any]]:
    """Dead letters, oldest first within each partition, as objects ready for JSON.

    Yields:
        partition, offset, time, code, error, source, key, value_bytes (None: a null value),
        replayed.
    """
    with DeadLetterReader(settings) as reader:
        admin = reader.client.open(KafkaAdminClient, Deadline(_DEADLINE_S))
        try:
            position = reader.position(admin)
        finally:
            close(admin)
        for partition, (start, end) in reader.bounds(since).items():
            for letters, _ in reader.read(partition, start, end):
                for letter in letters:
                    if code in (None, letter.code):
                        yield _row(letter, position)
                        limit -= 1
                    if limit == 0:
                        return


def _row(letter: DeadLetter, position: ReplayPosition) -> dict[str, Any]:
    time = datetime.fromtimestamp(letter.timestamp_ms / _MS, UTC)
    return {
        "partition": letter.partition,
        "offset": letter.offset,
        "time": time.isoformat(timespec="milliseconds"),
        "code": letter.code,
        "error": letter.error,
        "source": letter.source,
        "key": None if letter.key is None else letter.key.decode(errors="backslashreplace"),
        "value_bytes": None if letter.value is None else len(letter.value),
        "replayed": position.is_behind(letter.partition, letter.offset, letter.code),
    }
