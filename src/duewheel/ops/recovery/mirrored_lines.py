"""The mirrored records that are still to be delivered, as lines for the machinery of `import`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from duewheel.kafka.log.columns import records_one_by_one
from duewheel.kafka.log.reader import LogReader
from duewheel.ops.file_import.line_records import CopiedLine, CopiedRecord
from duewheel.ops.recovery.evidence import records_in
from duewheel.schemas.arrays import Int64, index_among
from duewheel.schemas.batches import TopicPartition
from duewheel.schemas.header_names import COPY_ONLY, NAME_OF, REQUEST, Request
from duewheel.schemas.wire.single_record import Header

# A due time that counts from the record's timestamp, a spread by its offset, decided requests.
_REPLACED = COPY_ONLY | {
    *(Request.LEVEL, Request.DELAY_SEC, Request.DELAY_MS, Request.DELIVER_AT),
    *(Request.DELIVER_AFTER, Request.WINDOW_MS),
    *(Request.RESCHEDULE, Request.CANCEL_OFFSET, Request.IF_PENDING),
}
_REPLACED_NAMES = frozenset(name for name, request in REQUEST.items() if request in _REPLACED)
_DUE = NAME_OF[Request.DELIVER_AT]

# The largest message, 64 MiB, in base64, and 1,000,000 headers as JSON: a shard has taken it.
LINE_BYTES_MAX = 128 << 20


@dataclass(frozen=True, slots=True)
class Waiting:
    """The timers of one partition that are still to be delivered."""

    mirror: TopicPartition
    timer_topic: str
    partitions: int  # of the topic
    range: tuple[int, int]
    offset: Int64  # rising
    due_ms: Int64


class Lines:
    """The lines, read as from a file; the same ones whenever the mirror is the same."""

    def __init__(self, reader: LogReader, waiting: Sequence[Waiting]) -> None:
        self._lines = chain.from_iterable(_lines(reader, each) for each in waiting)
        self._rest = b""

    def readline(self, size: int, /) -> bytes:
        """The next line, or so much of it; nothing at the end."""
        line = self._rest or next(self._lines, b"")
        self._rest = line[size:]
        return line[:size]


def _lines(reader: LogReader, waiting: Waiting) -> Iterator[bytes]:
    if not len(waiting.offset):
        return
    for records in records_in(reader, {waiting.mirror: waiting.range}):
        index, is_waiting = index_among(records.offset, waiting.offset)
        rows = records.take(np.flatnonzero(is_waiting))
        due = waiting.due_ms[index[is_waiting]].tolist()
        for (_, _, key, value, headers), due_ms in zip(records_one_by_one(rows), due, strict=True):
            content = key, value, _headers(headers, due_ms)
            record = CopiedRecord.copied(*content, waiting.mirror[1], waiting.partitions)
            line = CopiedLine(record=record, timer_topic=waiting.timer_topic)
            yield json.dumps(line.model_dump(exclude_unset=True)).encode() + b"\n"


def _headers(headers: Sequence[Header], due_ms: int) -> list[Header]:
    kept = [header for header in headers if header[0] not in _REPLACED_NAMES]
    return [*kept, (_DUE, b"%d" % due_ms)]
