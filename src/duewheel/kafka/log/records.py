"""Reads the records of fetched batches one by one, in plain Python: the client has no other way.

No bytes of a producer stop a reader: batches that cannot be read are left out, with a line in the
log for those of an answer, and a header's name that is no UTF-8 has surrogates for its bytes.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import NamedTuple

from duewheel.kafka.log.compression import decompressed
from duewheel.kafka.log.leader_requests import NO_END, Fetched, unreadable
from duewheel.schemas.partition_names import partition_name
from duewheel.schemas.wire.batch_reader import BatchBody, CorruptBatch, committed_batches
from duewheel.schemas.wire.record_rows import Header, rows_of

log = logging.getLogger(__name__)


class Record(NamedTuple):
    """A record, as Kafka has it; a header's name that is no UTF-8 has surrogates for its bytes."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int  # by its producer's clock or by the broker's
    key: bytes | None
    value: bytes | None
    headers: list[Header]


def is_no_utf8(name: str) -> bool:
    """Whether a header's name has surrogates for its bytes: most clients cannot write it again."""
    return any("\udc80" <= letter <= "\udcff" for letter in name)


def printable_name(name: str) -> str:
    r"""A header's name as text that any output takes.

    >>> printable_name("trace"), printable_name(b"\xff".decode(errors="surrogateescape"))
    ('trace', '\\xff')
    """
    return name.encode(errors="surrogateescape").decode(errors="backslashreplace")


def records_of(fetched: Fetched, until: int = NO_END) -> Iterator[Record]:
    """The records of a broker's answer, without control records and those of aborted transactions.

    Args:
        fetched: `begin` is the first offset that is wanted.
        until: the offset at which the range ends.

    Raises:
        DuewheelError: a batch is not as its producer wrote it; names the partition.
        ConfigError: the library for a batch's compression is not installed.
    """
    partition, left_out = fetched.partition, _LeftOut()
    batches = committed_batches(fetched.octets, fetched.aborted, decompressed, until=until)
    try:
        for batch in batches:
            if batch.defect:
                left_out.add(batch, batch.defect.name.lower())
                continue
            try:
                records = batch.octets[batch.first : batch.end]
                for offset, written_ms, *rest in rows_of(
                    records, batch.count, batch.base_offset, batch.base_ms
                ):
                    stamp_ms = batch.append_ms if batch.append_ms >= 0 else written_ms
                    if fetched.begin <= offset < until:
                        yield Record._make((*partition, offset, stamp_ms, *rest))
            except CorruptBatch as error:
                left_out.add(batch, error)
    except CorruptBatch as error:
        raise unreadable(partition, error) from error
    finally:
        left_out.log(partition_name(partition))


class _LeftOut:
    """The batches of an answer that could not be read: 15,000 fit into 1 MB of any producer's."""

    def __init__(self) -> None:
        self._count, self._first, self._last, self._why = 0, 0, 0, ""

    def add(self, batch: BatchBody, why: object) -> None:
        if not self._count:
            self._first, self._why = batch.base_offset, str(why)
        self._count, self._last = self._count + 1, batch.last_offset

    def log(self, name: str) -> None:
        if self._count == 1:
            log.warning("%s@%d-%d left out: %s", name, self._first, self._last, self._why)
        elif self._count:
            log.warning(
                *("%s@%d-%d: %d record batches left out, the first: %s", name, self._first),
                *(self._last, self._count, self._why),
            )
