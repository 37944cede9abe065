"""Records that a command writes, and their batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from duewheel.schemas.batches import TopicPartition
from duewheel.schemas.wire.batch_header import HEADER_BYTES
from duewheel.schemas.wire.record_batch import Batch
from duewheel.schemas.wire.single_record import Header, encode
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

    def encode(self, place: int) -> bytes:
        """Encodes the record as the one at this place of a batch."""
        return encode(place, self.key, self.value, self.headers)

    @property
    def bytes_alone(self) -> int:
        """The size of a batch that has this record only."""
        return HEADER_BYTES + len(self.encode(0))


def parts_of(records: Sequence[NewRecord], batch_bytes: Callable[[str], int]) -> list[Part]:
    """The records as batches, in order within each partition; `batch_bytes` says how large those of
    a topic become, if they have more than one record.
    """
    groups: dict[TopicPartition, list[NewRecord]] = {}
    for record in records:
        groups.setdefault((record.topic, record.partition), []).append(record)
    parts = []
    for place, group in groups.items():
        for some in _cut(group, batch_bytes(place[0]) - HEADER_BYTES):
            body = b"".join(record.encode(n) for n, record in enumerate(some))
            alone = some[0].name if len(some) == 1 else None
            parts.append(Part(*place, Batch(memoryview(body), len(some)), alone))
    return parts


def _cut(records: Sequence[NewRecord], bytes_max: int) -> list[list[NewRecord]]:
    """Splits records into batches that fit; a record above the limit gets a batch of its own."""
    parts: list[list[NewRecord]] = []
    left = -1
    for record in records:
        size = len(record.encode(len(parts[-1]) if parts else 0))
        if size > left:
            parts.append([])
            left = bytes_max
        parts[-1].append(record)
        left -= size
    return parts
