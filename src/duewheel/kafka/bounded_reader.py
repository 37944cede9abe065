"""Reads committed records between given offsets, in chunks; and parses such bounds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Self

from kafka.structs import TopicPartition

from duewheel.checkpoints.commit_and_close_pages import Marks
from duewheel.errors import ConfigError
from duewheel.kafka.clients import ClientSettings, close, open_reader
from duewheel.kafka.deadline import Deadline
from duewheel.kafka.polling import next_records
from duewheel.schemas.batches import OffsetRanges
from duewheel.schemas.batches import TopicPartition as Place

_DEADLINE_S = 30.0  # without headway


@dataclass(frozen=True, slots=True)
class Bound:
    """One end of a range: an offset of every partition, or a time in epoch ms."""

    offset: int | None = None
    time_ms: int | None = None

    @classmethod
    def parse(cls, flag: str, text: str) -> Bound:
        """An offset, or ISO-8601 with a zone.

        >>> Bound.parse("--from", "17"), Bound.parse("--to", "2027-01-15T08:00:00Z")
        (Bound(offset=17, time_ms=None), Bound(offset=None, time_ms=1800000000000))

        Raises:
            ConfigError: it is neither.
        """
        if text.isdecimal():
            return cls(offset=int(text))
        try:
            time = datetime.fromisoformat(text)
        except ValueError:
            time = None
        if time is None or time.tzinfo is None:
            raise ConfigError(f"{flag} {text}: give an offset, or ISO-8601 with a zone")
        return cls(time_ms=int(time.timestamp() * 1000))

    def offsets(self, ends: Marks, at_time: Callable[[int], Marks]) -> Marks:
        """The offset of the bound in each partition, at most the partition's end.

        Args:
            ends: where the partitions end.
            at_time: the first offset at or after a time, without partitions that have none.
        """
        if self.time_ms is not None:
            found = at_time(self.time_ms)
        else:
            found = dict.fromkeys(ends, self.offset or 0)
        return {partition: min(found.get(partition, end), end) for partition, end in ends.items()}


BEGINNING = Bound(offset=0)


@dataclass(frozen=True, slots=True)
class Chunk:
    """Some of the records within bounds.

    Attributes:
        records: in offset order within each partition.
        reached: the offset below which each partition is read; partitions still being read only.
        offsets: how many offsets this chunk has covered, gaps included.
    """

    records: list[Any]
    reached: Mapping[Place, int]
    offsets: int


class BoundedReader:
    """Reads committed records in chunks. Not thread-safe; one `read` at a time."""

    def __init__(self, settings: ClientSettings, records_max: int) -> None:
        """Connect.

        Args:
            settings: of the cluster.
            records_max: of a chunk, which bounds the memory.

        Raises:
            KafkaUnavailable, ConfigError: as `ClientSettings.call`.
        """
        self._settings = settings
        self._consumer = open_reader(settings, Deadline(_DEADLINE_S), max_poll_records=records_max)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        close(self._consumer)

    def read(self, bounds: OffsetRanges) -> Iterator[Chunk]:
        """The records within the bounds. The caller's work on a chunk is outside the deadline.

        Raises:
            KafkaUnavailable: no headway within `_DEADLINE_S`.
        """
        left = {TopicPartition(*p): bound for p, bound in bounds.items() if bound[0] < bound[1]}
        self._consumer.assign(list(left))
        for partition, (start, _) in left.items():
            self._consumer.seek(partition, start)
        self._consumer.resume(*left)
        while left:
            deadline, going = Deadline(_DEADLINE_S), left
            records, reached = self._settings.call(
                deadline,
                f"read {', '.join(sorted({partition.topic for partition in left}))}",
                lambda: next_records(self._consumer, going, deadline),  # noqa: B023 - called now
            )
            wanted = [record for record in records if record.offset < left[_source(record)][1]]
            passed = {p: min(reached[p], end) for p, (_, end) in left.items()}
            offsets = sum(passed[p] - at for p, (at, _) in left.items())
            left = {p: (reached[p], end) for p, (_, end) in left.items() if reached[p] < end}
            self._consumer.pause(*(reached.keys() - left.keys()))
            yield Chunk(wanted, {(p.topic, p.partition): at for p, at in passed.items()}, offsets)


def _source(record: Any) -> TopicPartition:
    return TopicPartition(record.topic, record.partition)
