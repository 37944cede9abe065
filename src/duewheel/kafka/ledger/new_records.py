"""Records that a command writes, and their batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from duewheel.schemas.batches import TopicPartition
from duewheel.schemas.wire.batch_header import HEADER_BYTES
from duewheel.schemas.wire.single_record import Content, Header, batches, encode
from duewheel.wheel.encoded import Part


@dataclass(frozen=True, slots=True)
class NewRecord:
    """A record to write; `name` is unique among the records of its source."""

    name: bytes
    topic: str
    partition: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[Header]

    @property
    def content(self) -> Content:
        """The record without its place."""
        return self.key, self.value, self.headers

    @property
    def bytes_alone(self) -> int:
        """The size of a batch that has this record only."""
        return HEADER_BYTES + len(encode(0, *self.content))


def parts_of(records: Sequence[NewRecord], batch_bytes: Callable[[str], int]) -> list[Part]:
    """The records as batches, in order within each partition; `batch_bytes` says how large those of
    a topic become, if they have more than one record.
    """
    groups: dict[TopicPartition, list[NewRecord]] = {}
    for record in records:
        groups.setdefault((record.topic, record.partition), []).append(record)
    parts = []
    for place, group in groups.items():
        contents, at = (record.content for record in group), 0
        for batch in batches(contents, batch_bytes(place[0]) - HEADER_BYTES):
            parts.append(Part(*place, batch, group[at].name if batch.count == 1 else None))
            at += batch.count
    return parts
