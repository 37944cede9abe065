"""What an import needs of a source: its entries in an order that stays the same.

An entry becomes one record of the timer topic. A source that cannot make a record of an entry gives
it a `refusal` instead; ingest's own rules are applied later, to all entries alike (importer.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from duewheel.checkpoints.import_position import Place
from duewheel.client.due_time import DueTime
from duewheel.client.request_headers import timer_headers
from duewheel.errors import InvalidTimer
from duewheel.schemas.request.preview import Rejection
from duewheel.schemas.wire.single_record import Header


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of a source, as a record of the timer topic.

    Attributes:
        name: its place in the source, for people; unique in the source.
        key, value, headers: the record; of no meaning beside a refusal.
        partition: of the timer topic; None: that of `route`.
        route: the bytes whose hash chooses the partition, where `partition` does not.
        refusal: why there is no record.
    """

    name: str
    key: bytes | None = None
    value: bytes | None = None
    headers: Sequence[Header] = ()
    partition: int | None = None
    route: bytes | None = None
    refusal: Rejection | None = None


@dataclass(frozen=True, slots=True)
class SourceChunk:
    """Consecutive entries of a source.

    Attributes:
        entries: those that wait. Others were superseded, cancelled or delivered at the source.
        place: behind the chunk.
        read: how many entries of the source the chunk has covered.
    """

    entries: list[Entry]
    place: Place
    read: int


class ImportSource(Protocol):
    """A source. Not thread-safe.

    Attributes:
        name: of the import, if the user gives none.
        identity: what tells this source from another one, whatever address it was reached at.
    """

    name: str
    identity: Mapping[str, str]

    def size(self, place: Place) -> int:
        """About how many entries lie behind a place."""
        ...

    def chunks(self, place: Place) -> Iterator[SourceChunk]:
        """The entries behind a place; empty: all of them."""
        ...

    def missed(self, place: Place, read: int) -> int:
        """How many entries were added before a place after it had been passed, at least.

        Args:
            place: behind which nothing else is to be read.
            read: how many entries were read before it.
        """
        ...


@dataclass(frozen=True, slots=True)
class DueMessage:
    """A message with its due time, from a source that has no headers of its own.

    Attributes:
        name: as in `Entry`.
        due_ms: epoch ms.
        topic: the target.
        key, value: of the message.
        timer_id: of the timer.
    """

    name: str
    due_ms: int
    topic: str
    key: bytes | None
    value: bytes | None
    timer_id: str

    def entry(self, timer_topic: str) -> Entry:
        """The record, with native headers."""
        try:
            due = DueTime.of(self.due_ms)
            headers = timer_headers(self.topic, due, timer_topic, id=self.timer_id)
        except InvalidTimer as error:
            return refused(self.name, str(error))
        route = self.timer_id.encode() if self.key is None else self.key
        return Entry(self.name, self.key, self.value, headers, route=route)


def refused(name: str, reason: str) -> Entry:
    """An entry of which no record can be made."""
    return Entry(name, refusal=Rejection("unusable", reason))
