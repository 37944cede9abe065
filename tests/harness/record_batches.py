"""Record batches built by kafka-python, logs of them, and what is read from them."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st
from kafka.record.default_records import DefaultRecordBatchBuilder

from duewheel.kafka.log.leader_requests import Fetched
from duewheel.schemas.batches import TopicPartition
from duewheel.schemas.wire.crc32c import crc32c
from duewheel.schemas.wire.kafka_records import KafkaRecords
from duewheel.schemas.wire.spans import RawHeaders

NOW_MS = 1_800_000_000_000
COMMIT, ABORT = b"\0\0\0\1", b"\0\0\0\0"

# Timestamp, key, value, headers.
Record = tuple[int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]
Rows = list[tuple[TopicPartition, int, Record]]

OCTETS = st.none() | st.binary(max_size=300)
RECORDS = st.lists(
    st.tuples(
        st.integers(NOW_MS - 10**9, NOW_MS + 10**9),
        OCTETS,
        OCTETS,
        st.lists(st.tuples(st.text(max_size=70), OCTETS), max_size=5),
    ),
    min_size=1,
    max_size=30,
)


def batch(
    records: Sequence[Record],
    base: int = 0,
    *,
    codec: int = 0,
    producer: int = -1,
    transactional: bool = False,
) -> bytearray:
    """A batch as kafka-python builds it, with an offset as a broker gives it."""
    built = DefaultRecordBatchBuilder(2, codec, transactional, producer, 0, 0, 1 << 30)
    for delta, (timestamp_ms, key, value, headers) in enumerate(records):
        built.append(delta, timestamp_ms, key, value, headers)
    octets = bytearray(built.build())
    struct.pack_into(">q", octets, 0, base)
    return octets


def marker(base: int, producer: int, key: bytes) -> bytearray:
    """A control batch."""
    octets = batch([(NOW_MS, key, b"\0\0\0\0\0\0", [])], base, producer=producer)
    struct.pack_into(">h", octets, 21, 1 << 4 | 1 << 5)
    return sealed(octets)


def sealed(octets: bytearray) -> bytearray:
    """With the checksum of what it holds now."""
    struct.pack_into(">I", octets, 17, crc32c(memoryview(octets)[21:]))
    return octets


def plain(number: int) -> Record:
    return (NOW_MS, None, b"%d" % number, [])


def rows_of(records: KafkaRecords) -> Rows:
    """Partition, offset and content of each record."""
    columns = (
        [records.partitions[index] for index in records.partition.tolist()],
        records.offset.tolist(),
        records.timestamp_ms.tolist(),
        records.key.column().to_pylist(),
        records.value.column().to_pylist(),
        _headers_of(records.headers),
    )
    return [(row[0], row[1], row[2:]) for row in zip(*columns, strict=True)]


def _headers_of(raw: RawHeaders) -> list[list[tuple[str, bytes | None]]]:
    """The headers of each record."""
    name = [text.decode() for text in raw.names.column().to_pylist() if text is not None]
    pairs = list(zip(name, raw.values.column().to_pylist(), strict=True))
    return [pairs[first:end] for first, end in itertools.pairwise(raw.firsts.tolist())]


@dataclass
class Log:
    """A partition's log, as it is written.

    Attributes:
        batches: offset behind each, and its bytes.
        committed: offsets and records that a reader gets.
        aborted: producer, first offset and marker of each transaction.
    """

    batches: list[tuple[int, bytes]] = field(default_factory=list)
    committed: dict[int, Record] = field(default_factory=dict)
    aborted: list[tuple[int, int, int]] = field(default_factory=list)
    open: dict[int, dict[int, Record]] = field(default_factory=dict)

    @property
    def end(self) -> int:
        return self.batches[-1][0] if self.batches else 0

    def write(self, records: Sequence[Record], codec: int = 0, producer: int = -1) -> None:
        at = dict(enumerate(records, self.end))
        is_open = producer >= 0
        (self.open.setdefault(producer, {}) if is_open else self.committed).update(at)
        octets = batch(records, self.end, codec=codec, producer=producer, transactional=is_open)
        self.batches.append((self.end + len(records), bytes(octets)))

    def finish(self, producer: int, *, commit: bool) -> None:
        records = self.open.pop(producer, {})
        if commit:
            self.committed.update(records)
        elif records:
            self.aborted.append((producer, min(records), self.end))
        octets = marker(self.end, producer, COMMIT if commit else ABORT)
        self.batches.append((self.end + 1, bytes(octets)))

    def fetch(self, at: int, batches: int, *, cut: bool, name: TopicPartition) -> Fetched:
        """What a broker answers."""
        left = [each for each in self.batches if each[0] > at]
        end, octets = left[:batches][-1][0], b"".join(octets for _, octets in left[:batches])
        if left[batches:] and cut:
            octets += left[batches][1][:-1]
        aborted = [(p, first) for p, first, last in self.aborted if last >= at and first < end]
        return Fetched(name, memoryview(octets), aborted, at, end)


@st.composite
def logs(draw: Any) -> Log:
    """Producers write beside each other, in transactions and without."""
    log = Log()
    for _ in range(draw(st.integers(1, 12))):
        producer = draw(st.sampled_from([-1, 7, 8, 9]))
        if producer >= 0 and draw(st.integers(0, 3)) == 0:
            log.finish(producer, commit=draw(st.booleans()))
        else:
            log.write(draw(RECORDS)[:3], draw(st.integers(0, 4)), producer)
    for producer in list(log.open):
        log.finish(producer, commit=draw(st.booleans()))
    return log
