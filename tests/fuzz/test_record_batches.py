"""Record batches of any bytes: each is read, or one row that names it; the same in all ranges."""

from __future__ import annotations

import struct
from collections.abc import Callable
from contextlib import suppress

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from tests.harness.record_batches import RECORDS, batch, plain
from tests.harness.timer_rows import suite_parameters

from duewheel.kafka.log.columns import CutBatches, committed_records
from duewheel.kafka.log.compression import decompressed
from duewheel.kafka.log.leader_requests import Fetched
from duewheel.schemas.batches import TimerBatch
from duewheel.schemas.request.acceptance_rules import compile_suite, load_suite
from duewheel.schemas.request.parser import Contract, parse
from duewheel.schemas.wire.batch_header import HEADER_BYTES
from duewheel.schemas.wire.batch_reader import (
    CorruptBatch,
    Undecodable,
    committed_batches,
    end_offset,
)
from duewheel.schemas.wire.codec_names import CODECS
from duewheel.schemas.wire.crc32c import crc32c

Change = Callable[[st.DataObject, bytes], bytes]
PLACE = ("timers", 0)
CONTRACT = Contract((1_000,), {}, "dead", compile_suite(load_suite(), suite_parameters()))
_HEADER_VALUES = st.sampled_from([0, 1, -1, 2, 7, 300, 2_000_001, 2**31 - 1, -(2**31)])


def sealed(body: bytes, base: int, count: int, codec: int) -> bytes:
    """A batch as a broker takes it: its length, count and checksum fit."""
    octets = bytearray(batch([plain(0)], base)[:HEADER_BYTES]) + body
    struct.pack_into(">i", octets, 8, len(octets) - 12)
    struct.pack_into(">h", octets, 21, codec)
    struct.pack_into(">i", octets, 23, count - 1)
    struct.pack_into(">i", octets, HEADER_BYTES - 4, count)
    struct.pack_into(">I", octets, 17, crc32c(memoryview(octets)[21:]))
    return bytes(octets)


def timers(octets: bytes, begin: int, until: int, cut: CutBatches | None = None) -> TimerBatch:
    part = [Fetched(PLACE, memoryview(octets), [], begin, until)]
    found = committed_records(part, {PLACE: (begin, until)}, cut=cut)
    return TimerBatch.none().extended_by(*(parse(records, CONTRACT) for records in found))


def rows(found: TimerBatch) -> list[tuple[object, ...]]:
    columns = (found.key_value, found.headers)
    texts = (column.to_pylist() for column in columns)
    return list(zip(found.offset.tolist(), found.rejected.tolist(), *texts, strict=True))


@given(
    data=st.data(),
    records=RECORDS,
    codec=st.sampled_from(range(8)),
    beside=st.sampled_from([1, 60]),
)
def test_any_records(
    damage: Change, data: st.DataObject, records: object, codec: int, beside: int
) -> None:
    whole = bytes(batch(records, codec=codec if codec < len(CODECS) else 0))  # type: ignore[arg-type]
    (count,) = struct.unpack_from(">i", whole, HEADER_BYTES - 4)
    used = struct.unpack_from(">h", whole, 21)[0] & 7 if codec < len(CODECS) else codec
    body = damage(data, whole[HEADER_BYTES:])
    end = beside + count
    octets = b"".join(bytes(batch([plain(n)], n)) for n in range(beside))
    octets += sealed(body, beside, count, used) + bytes(batch([plain(end)], end))
    assert end_offset(memoryview(octets)) == end + 1
    found = timers(octets, 0, end + 1)
    offsets = found.offset
    assert (np.diff(offsets) > 0).all(), "what the engine requires"
    assert offsets[:beside].tolist() == list(range(beside)) and offsets[-1] == end
    assert found.key_value[0].as_py() == b"\1\x020", "its neighbours have what they had"
    middle = data.draw(st.integers(0, end + 1))
    cut = CutBatches()
    parts = [timers(octets, 0, middle, cut), timers(octets, middle, end + 1, cut)]
    assert [row for part in parts for row in rows(part)] == rows(found)


@given(data=st.data(), records=RECORDS)
def test_any_batch_headers(damage: Change, data: st.DataObject, records: object) -> None:
    """Damage of a broker or on the way may end the reading with a reason, and nothing else."""
    octets = bytearray(damage(data, bytes(batch(records) + batch([plain(1)], 100))))  # type: ignore[arg-type]
    if data.draw(st.booleans()) and len(octets) > HEADER_BYTES:
        struct.pack_into(
            ">i", octets, data.draw(st.sampled_from([8, 23, 57])), data.draw(_HEADER_VALUES)
        )
        struct.pack_into(">I", octets, 17, crc32c(memoryview(octets)[21:]))
    with suppress(CorruptBatch):
        end_offset(memoryview(octets))
    skipped = data.draw(st.sampled_from([(), (0,), (0, 100)]))
    with suppress(CorruptBatch):
        list(committed_batches(memoryview(octets), [(0, 0)], decompressed, skipped=skipped))


@given(data=st.data(), plain_bytes=st.binary(max_size=3_000), codec=st.sampled_from(range(1, 5)))
def test_any_compressed_bytes(
    damage: Change, data: st.DataObject, plain_bytes: bytes, codec: int
) -> None:
    whole = bytes(batch([(0, None, plain_bytes * 3, [])], codec=codec))
    body = damage(data, whole[HEADER_BYTES:])
    with suppress(Undecodable):
        assert len(decompressed(CODECS[codec], memoryview(body), 10_000)) <= 10_000
