"""Processor time of the kinds of input that cost ingest most, per MB of records: `python -P
tests/bench/worst_records.py` prints a table for docs/flow.md.

Each kind is one part of a fetch, filled by an attacker: read, parsed, and handed over.
"""

from __future__ import annotations

import itertools
import struct
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import zstandard

# The last place to look for modules: a folder called `wheel` is there.
sys.path.append(str(Path(__file__).resolve().parents[2]))

from tests.harness.timer_rows import suite_parameters

from duewheel.kafka.log.columns import committed_records
from duewheel.kafka.log.leader_requests import Fetched
from duewheel.schemas.batch_ipc import to_bytes
from duewheel.schemas.request.acceptance_rules import compile_suite, load_suite
from duewheel.schemas.request.parser import Contract, parse
from duewheel.schemas.wire.batch_header import HEADER, HEADER_BYTES
from duewheel.schemas.wire.crc32c import crc32c
from duewheel.schemas.wire.single_record import Header, encode, framed
from duewheel.schemas.wire.varint import varint

MB = 1 << 20
NOW_MS = 1_800_000_000_000
PLACE = ("timers", 0)
DUE: list[Header] = [("REAL_TOPIC", b"orders"), ("TIMER_DELAY_MS", b"5000")]


def sealed(body: bytes, base: int, count: int, codec: int = 0) -> bytes:
    octets = bytearray(HEADER_BYTES + len(body))
    HEADER.pack_into(
        octets,
        0,
        base,
        len(octets) - 12,
        0,
        2,
        0,
        codec,
        count - 1,
        NOW_MS,
        NOW_MS,
        -1,
        -1,
        -1,
        count,
    )
    octets[HEADER_BYTES:] = body
    struct.pack_into(">I", octets, 17, crc32c(memoryview(octets)[21:]))
    return bytes(octets)


def of_headers(*framed_headers: bytes, count: int = -1) -> bytes:
    """A record with these encoded headers."""
    joined = b"".join(framed_headers)
    count = len(framed_headers) if count < 0 else count
    tail = b"\0\0\0" + varint(-1) + varint(-1) + varint(count) + joined
    return varint(len(tail)) + tail


def one(body: bytes) -> list[bytes]:
    return [sealed(body, 0, 1)]


def records(*headers: Header, key: bytes | None = None, size: int = MB) -> list[bytes]:
    """One batch of as many small records as fit."""
    count = size // len(encode(1_000, key, None, headers))
    body = b"".join(encode(number, key, None, headers) for number in range(count))
    return [sealed(body, 0, count)]


def batches(body: bytes, count: int = 1, codec: int = 0, size: int = MB) -> list[bytes]:
    """As many batches of these bytes as fit."""
    size_of_one = HEADER_BYTES + len(body)
    return [sealed(body, number * count, count, codec) for number in range(size // size_of_one)]


def ladder() -> list[bytes]:
    """Records with 1, 2, 3, … headers."""
    body, count = bytearray(), 0
    while len(body) < MB:
        tail = varint(count) + b"\0\1" * count
        tail = b"\0\0" + varint(count) + varint(-1) * 2 + tail
        body += varint(len(tail)) + tail
        count += 1
    return [sealed(bytes(body), 0, count)]


def targets() -> list[bytes]:
    body, count = bytearray(), 0
    while len(body) < MB:
        body += encode(
            count, None, None, [("REAL_TOPIC", b"t%d" % count), ("TIMER_DELAY_MS", b"5")]
        )
        count += 1
    return [sealed(bytes(body), 0, count)]


def kinds() -> Iterator[tuple[str, list[bytes]]]:
    yield "ordinary timers of 100 bytes", records(*DUE, ("t", b"x" * 40), key=b"order")
    yield "one record, 524,000 headers", one(of_headers(b"\0\1" * 524_000, count=524_000))
    yield (
        "one record, 349,000 headers with names that are no UTF-8",
        one(of_headers(b"\2\xff\0" * 349_000, count=349_000)),
    )
    yield (
        "one record, 131,000 due times",
        one(of_headers(*[framed(b"DELAY") + framed(b"9")] * 131_000)),
    )
    yield "records with 0, 1, 2, … headers", ladder()
    yield (
        "48 records with 10,900 headers each",
        [sealed(b"".join(_place(number, 10_900) for number in range(48)), 0, 48)],
    )
    yield "empty records", records()
    yield (
        "empty records, zstd",
        [sealed(zstandard.compress(records()[0][HEADER_BYTES:]), 0, _count(records()[0]), 4)],
    )
    yield "small records, each with its own target", targets()
    yield "small records with a name that is no UTF-8", records(("\udcff", None))
    yield "cancels", records(("TIMER_DEL_UNIQKEY", b"a"))
    yield "a key of 1 MB", one(encode(0, bytes(MB), None, DUE))
    yield "a target of 1 MB", one(encode(0, None, None, [("REAL_TOPIC", b"a" * MB)]))
    yield "a due time of 1 MB of digits", one(encode(0, None, None, [("DELAY", b"9" * MB)]))
    yield (
        "an instant with 1 MB of fraction",
        one(
            encode(
                0, None, None, [("TIMER_DELIVER_MS", b"2027-01-01T00:00:00." + b"9" * MB + b"Z")]
            )
        ),
    )
    yield "a header name of 1 MB, no UTF-8", one(of_headers(framed(b"\xff" * MB) + b"\1"))
    yield "a header name of 1 MB, UTF-8", one(of_headers(framed("é".encode() * (MB // 2)) + b"\1"))
    yield "a MAC of 1 MB", one(encode(0, None, None, [*DUE, ("TIMER_COPY_MAC", b"x" * MB)]))
    yield "batches of one record", batches(encode(0, None, None))
    yield "batches of one record, zstd", batches(zstandard.compress(encode(0, None, None)), codec=4)
    yield "batches that cannot be read", batches(b"\xff" * 8)
    yield "batches that cannot be decompressed", batches(b"\xff" * 8, codec=1)
    yield "batches of the same offset twice", batches(encode(0, None, None) * 2, 2)
    longest = encode(0, None, None) * 2
    yield (
        "60 small batches and a long one",
        [
            *[sealed(longest[:7], number, 1) for number in range(60)],
            *_moved(records()[0], 60),
        ],
    )


def _count(batch: bytes) -> int:
    return int(HEADER.unpack_from(batch)[-1])


def _moved(batch: bytes, base: int) -> list[bytes]:
    return [struct.pack(">q", base) + batch[8:]]


def _place(delta: int, headers: int) -> bytes:
    tail = b"\0\0" + varint(delta) + varint(-1) * 2 + varint(headers) + b"\0\1" * headers
    return varint(len(tail)) + tail


def main() -> None:
    contract = Contract(
        (1_000,),
        {},
        "dead",
        compile_suite(load_suite(), suite_parameters()),
        copy_keys=(bytes(32),),
    )
    print("| input | records or batches | processor time, s per MB |\n| --- | --- | --- |")
    for name, fetched in itertools.chain(kinds(), ()):
        octets = memoryview(b"".join(fetched))
        rows, best = 0, float("inf")
        for _ in range(3):
            begun = time.process_time()
            part = [Fetched(PLACE, octets, [], 0, 1 << 40)]
            rows = 0
            for found in committed_records(part, {PLACE: (0, 1 << 40)}):
                rows += len(found)
                to_bytes(parse(found, contract))
            best = min(best, time.process_time() - begun)
        plain = max(len(octets), MB if "zstd" in name and len(fetched) == 1 else 0)
        print(f"| {name} | {rows:,} | {best / (plain / MB):.3f} |")


if __name__ == "__main__":
    main()
