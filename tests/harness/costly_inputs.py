"""Kinds of input that a writer of a timer topic can choose, each the costliest that is known of its
kind: many that differ, all alike, a huge one, as many as fit into the bytes.
"""

from __future__ import annotations

import itertools
import zoneinfo
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial

from kafka.codec import gzip_encode, lz4_encode, snappy_encode, zstd_encode
from tests.harness.costs import moved, sealed

from duewheel.schemas.header_names import EXPIRES_MS
from duewheel.schemas.wire.batch_header import HEADER_BYTES
from duewheel.schemas.wire.single_record import Header, encode, framed
from duewheel.schemas.wire.varint import varint

ORDINARY, EMPTY, BATCHES, UNREAD, HEADERS, NAMES, HUGE = (
    *("ordinary timers of 100 bytes", "empty records", "batches of one record"),
    *("batches that cannot be read", "many headers", "header names", "one huge field"),
)
SMALL, TARGETS, TIMES, EXPIRIES, FORGED, CANCELS, RESCHEDULES, RECURRING, EXPRESSIONS = (
    *("small timers", "many targets", "due times", "expiries behind many headers"),
    *("forged copies", "cancels, by id or handle"),
    *("reschedules, keys as ids", "recurring timers", "their expressions"),
)
BATCH_BYTES = 1 << 20
SOON: tuple[Header, ...] = (("REAL_TOPIC", b"t"), ("DELAY", b"1"))
CODECS = ("gzip", "snappy", "lz4", "zstd")
_CODECS = {1: gzip_encode, 2: snappy_encode, 3: lz4_encode, 4: zstd_encode}
_NAMED = ("UNIQ_KEY", b"a")


@dataclass(frozen=True, slots=True)
class InputKind:
    """A kind of input.

    Attributes:
        group: of like ones, of which docs/bounds.md has the costliest.
        build: record batches of about so many bytes; decompressed, if they are compressed.
        topic: the timer topic whose settings it needs.
        wait_s: after which it is due.
    """

    group: str
    name: str
    build: Callable[[int], bytes]
    topic: str = "timers"
    wait_s: int = 10


def batched(
    records: Iterable[Callable[[int], bytes]],
    size: int,
    codec: int = 0,
    in_batch: int = BATCH_BYTES,
) -> bytes:
    """Batches of up to 1 MiB with these records, each made for its offset delta."""
    batches, base = list[bytes](), 0
    body, count, total = bytearray(), 0, 0
    for record in records:
        octets = record(count)
        body += octets
        count, total = count + 1, total + len(octets)
        if len(body) >= BATCH_BYTES or count == in_batch or total >= size:
            packed = bytes(_CODECS[codec](bytes(body))) if codec else bytes(body)
            batches.append(sealed(packed, base, count, codec))
            body, base, count = bytearray(), base + count, 0
        if total >= size:
            break
    return b"".join(batches)


def records(
    headers: Callable[[int], Iterable[Header]],
    key: Callable[[int], bytes | None] = lambda _: None,
    value: Callable[[int], bytes | None] = lambda _: None,
    codec: int = 0,
) -> Callable[[int], bytes]:
    """Small records; `headers`, `key` and `value` get the record's number."""

    def build(size: int) -> bytes:
        def numbered(n: int) -> Callable[[int], bytes]:
            return lambda delta: encode(delta, key(n), value(n), headers(n))

        return batched(map(numbered, itertools.count()), size, codec)

    return build


def alike(*headers: Header, key: bytes | None = None, codec: int = 0) -> Callable[[int], bytes]:
    """The same small record again and again."""
    return records(lambda _: headers, lambda _: key, codec=codec)


def one(record: Callable[[int], bytes]) -> Callable[[int], bytes]:
    """A single record that has all the bytes."""
    return lambda size: sealed(record(size), 0, 1)


def of_headers(encoded: bytes, count: int, delta: int = 0) -> bytes:
    """A record with these encoded headers."""
    tail = b"\0\0" + varint(delta) + varint(-1) * 2 + varint(count) + encoded
    return varint(len(tail)) + tail


def repeated(header: bytes, count: int = 0) -> Callable[[int], bytes]:
    """Records that have a header again and again: so many times, or as often as fits into one."""

    def build(size: int) -> bytes:
        times = count or size // len(header)
        return batched(
            itertools.repeat(lambda delta: of_headers(header * times, times, delta)), size
        )

    return build


def ladder(size: int) -> bytes:
    """Records with 0, 1, 2, 3, … headers."""

    def numbered(n: int) -> Callable[[int], bytes]:
        return lambda delta: of_headers(b"\0\1" * n, n, delta)

    return batched(map(numbered, itertools.count()), size)


def batches(body: bytes, count: int = 1, codec: int = 0) -> Callable[[int], bytes]:
    """As many batches of these bytes as fit."""

    def build(size: int) -> bytes:
        times = max(size // (HEADER_BYTES + len(body)), 1)
        return b"".join(sealed(body, n * count, count, codec) for n in range(times))

    return build


def huge(
    name: str, octet: bytes, before: bytes = b"", after: bytes = b""
) -> Callable[[int], bytes]:
    """A record with one huge header value."""
    return one(lambda size: encode(0, None, None, [*SOON, (name, before + octet * size + after)]))


def of_one_hash(half: int) -> bytes:
    """Values of 16 bytes for which Arrow's hash is the same: the sum without carry of a product of
    each half, its bytes reversed.
    """
    first, second, mask = 14029467366897019727, 11400714785074694791, (1 << 64) - 1

    def turned(number: int) -> int:
        return int.from_bytes(number.to_bytes(8), "little")

    other = pow(first, -1, 1 << 64) * turned(turned(second * half & mask) ^ 77) & mask
    return other.to_bytes(8, "little") + half.to_bytes(8, "little")


def _zones() -> list[bytes]:
    return [name.encode() for name in sorted(zoneinfo.available_timezones())]


def _seed(*headers: Header) -> tuple[Header, ...]:
    return (("REAL_TOPIC", b"t"), _NAMED, *headers)


def kinds() -> Iterator[InputKind]:
    """All of them; the first is ordinary."""
    plain = [*SOON, ("t", b"x" * 40)]
    yield InputKind(ORDINARY, "ordinary timers of 100 bytes", alike(*plain, key=b"order"))
    yield from _batches()
    yield from _headers()
    yield from _requests()
    yield from _due_times()
    yield from _expiries()
    yield from _cancels()
    yield from _recurring()
    yield from _modes()


def _batches() -> Iterator[InputKind]:
    empty = encode(0, None, None)
    yield InputKind(EMPTY, "empty records", alike())
    for codec, name in enumerate(CODECS, 1):
        yield InputKind(EMPTY, f"empty records, {name}", alike(codec=codec))
    for codec, name in enumerate(CODECS, 1):
        packed = bytes(_CODECS[codec](empty))
        yield InputKind(BATCHES, f"batches of one record, {name}", batches(packed, codec=codec))
    yield InputKind(BATCHES, "batches of one record", batches(empty))
    yield InputKind(UNREAD, "batches that cannot be read", batches(b"\xff" * 8))
    yield InputKind(UNREAD, "batches that cannot be decompressed", batches(b"\xff" * 8, codec=1))
    yield InputKind(UNREAD, "batches of the same offset twice", batches(empty * 2, 2))
    long = encode(0, None, None) * 2
    yield InputKind(
        EMPTY,
        "60 small batches and a long one",
        lambda size: (
            b"".join(sealed(long[:7], n, 1) for n in range(60)) + moved(alike()(size), 60)[0]
        ),
    )


def _headers() -> Iterator[InputKind]:
    yield InputKind(HEADERS, "one record, headers of 2 bytes", repeated(b"\0\1"))
    yield InputKind(
        NAMES, "one record, headers with names that are no UTF-8", repeated(b"\2\xff\0")
    )
    yield InputKind(HEADERS, "one record, due times", repeated(framed(b"DELAY") + framed(b"9")))
    yield InputKind(HEADERS, "one record, targets", repeated(framed(b"REAL_TOPIC") + framed(b"t")))
    yield InputKind(
        HEADERS, "one record, MACs", repeated(framed(b"TIMER_COPY_MAC") + framed(b"x" * 16))
    )
    yield InputKind(HEADERS, "records of 10,900 headers", repeated(b"\0\1", 10_900))
    yield InputKind(HEADERS, "records of 2 headers", repeated(b"\0\1", 2))
    yield InputKind(HEADERS, "records with 0, 1, 2, … headers", ladder)
    yield InputKind(NAMES, "records with a name that is no UTF-8", alike(("\udcff", None)))
    yield InputKind(
        NAMES, "records with names that differ", records(lambda n: [*SOON, (f"n{n}", None)])
    )
    yield InputKind(
        NAMES, "a header name, no UTF-8", one(lambda n: of_headers(framed(b"\xff" * n) + b"\1", 1))
    )
    yield InputKind(NAMES, "a header name", one(lambda n: of_headers(framed(b"a" * n) + b"\1", 1)))


def _requests() -> Iterator[InputKind]:
    yield InputKind(HUGE, "a key", one(lambda size: encode(0, bytes(size), None, SOON)))
    yield InputKind(HUGE, "a value", one(lambda size: encode(0, None, bytes(size), SOON)))
    yield InputKind(HUGE, "a target", huge("REAL_TOPIC", b"a"))
    yield InputKind(HUGE, "a target that is no ASCII", huge("REAL_TOPIC", b"\xff"))
    yield InputKind(HUGE, "a header name that is no UTF-8", _huge_name)
    yield InputKind(HUGE, "an id", huge("UNIQ_KEY", b"a"))
    yield InputKind(HUGE, "a due time of digits", huge("DELAY", b"9"))
    yield InputKind(HUGE, "a due time of zeros", huge("DELAY", b"0", after=b"1"))
    yield InputKind(
        HUGE, "an instant's fraction", huge("TIMER_DELIVER_MS", b"9", b"2027-01-01T00:00:00.", b"Z")
    )
    yield InputKind(HUGE, "a MAC", huge("TIMER_COPY_MAC", b"x"))
    yield InputKind(SMALL, "timers", alike(*SOON))
    yield InputKind(SMALL, "timers, keys that differ", records(lambda _: SOON, lambda n: b"%d" % n))
    yield InputKind(
        SMALL, "timers, ids that differ", records(lambda n: [*SOON, ("UNIQ_KEY", b"%d" % n)])
    )
    yield InputKind(SMALL, "timers, one id", alike(*SOON, _NAMED))
    yield InputKind(
        TARGETS,
        "timers, targets that differ",
        records(lambda n: [("REAL_TOPIC", b"t%d" % n), ("DELAY", b"1")]),
    )
    yield InputKind(
        TARGETS,
        "timers, targets that do not exist",
        records(lambda n: [("REAL_TOPIC", b"gone%d" % n), ("DELAY", b"1")]),
    )
    yield InputKind(
        TARGETS,
        "timers, targets that take no writes",
        records(lambda n: [("REAL_TOPIC", b"full%d" % n), ("DELAY", b"1")]),
    )
    yield InputKind(
        TARGETS, "timers, a target that takes no writes", alike(("REAL_TOPIC", b"full"), SOON[1])
    )
    yield InputKind(
        TARGETS,
        "timers, targets of one hash",
        records(lambda n: [("REAL_TOPIC", of_one_hash(n)), ("DELAY", b"1")]),
    )
    yield InputKind(
        SMALL,
        "timers, keys and ids of one hash",
        records(lambda n: [*SOON, ("UNIQ_KEY", of_one_hash(n + 1))], lambda n: of_one_hash(n + 1)),
    )
    yield InputKind(
        SMALL, "timers, partitions that differ", records(lambda n: [*SOON, ("REAL_QID", b"%d" % n)])
    )
    yield InputKind(
        TARGETS,
        "timers, partitions of one target",
        records(lambda n: [("REAL_TOPIC", b"wide"), SOON[1], ("REAL_QID", b"%d" % (n % 10_000))]),
    )


def _due_times() -> Iterator[InputKind]:
    yield InputKind(
        TIMES,
        "timers, a slot each",
        records(lambda n: [SOON[0], ("TIMER_DELAY_MS", b"%d" % (n * 50 % 500_000))]),
        wait_s=500,
    )
    yield InputKind(
        TIMES,
        "timers, instants in ISO-8601",
        records(
            lambda n: [
                SOON[0],
                ("TIMER_DELIVER_MS", b"2027-01-15T08:%02d:%02d.%dZ" % (n // 60 % 9, n % 60, n)),
            ]
        ),
        wait_s=600,
    )
    yield InputKind(
        TIMES, "timers, windows", alike(SOON[0], ("DELAY", b"1"), ("TIMER_WINDOW_MS", b"900"))
    )
    yield InputKind(
        TIMES, "timers that roll", alike(SOON[0], ("TIMER_DELAY_SEC", b"99999")), wait_s=600
    )
    yield InputKind(TIMES, "timers that are due too late", alike(SOON[0], ("DELAY", b"9999999")))
    yield InputKind(
        FORGED, "forged copies", alike(*SOON, ("TIMER_ORIGIN", b"1"), ("TIMER_COPY_MAC", b"x" * 16))
    )
    yield InputKind(
        TARGETS,
        "targets of which none is open",
        records(lambda n: [("REAL_TOPIC", b"team-%d" % n), ("DELAY", b"1")]),
        "listed",
    )


def _expiries() -> Iterator[InputKind]:
    """Read at delivery; with more than 1,000 headers a timer counts as expired."""
    fraction = b"2096-10-02T08:00:00." + b"0" * 14_200 + b"Z"
    for instant, value in (("number", b"4000000000000"), ("fraction", fraction)):
        for count in (5, 100, 990):
            others = [("", None)] * (count - 3)
            yield InputKind(
                EXPIRIES,
                f"an expiry, a {instant}, behind {count - 1} headers",
                alike(*SOON, *others, (EXPIRES_MS, value)),
            )


def _cancels() -> Iterator[InputKind]:
    cancel, replace = "TIMER_DEL_UNIQKEY", ("TIMER_RESCHEDULE", b"true")
    yield InputKind(CANCELS, "cancels of one id", alike((cancel, b"a")))
    yield InputKind(CANCELS, "cancels of ids that differ", records(lambda n: [(cancel, b"%d" % n)]))
    yield InputKind(
        CANCELS, "cancels of ids of one hash", records(lambda n: [(cancel, of_one_hash(n + 1))])
    )
    yield InputKind(
        CANCELS,
        "cancels of a timer each",
        records(
            lambda n: (
                [(cancel, b"%d" % (n // 2))] if n % 2 else [*SOON, ("UNIQ_KEY", b"%d" % (n // 2))]
            )
        ),
    )
    yield InputKind(
        CANCELS,
        "cancels and timers of one id",
        records(lambda n: [(cancel, b"a")] if n % 2 else [*SOON, _NAMED]),
    )
    yield InputKind(
        CANCELS,
        "cancels by handle of one timer",
        records(
            lambda n: [(cancel, b"a"), ("TIMER_CANCEL_OFFSET", b"0")] if n else [*SOON, _NAMED]
        ),
    )
    yield InputKind(
        CANCELS,
        "cancels by handles that differ",
        records(lambda n: [(cancel, b"a"), ("TIMER_CANCEL_OFFSET", b"%d" % n)]),
    )
    yield InputKind(RESCHEDULES, "reschedules of one id", alike(*SOON, _NAMED, replace))
    yield InputKind(
        RESCHEDULES,
        "reschedules of ids that differ",
        records(lambda n: [*SOON, ("UNIQ_KEY", b"%d" % n), replace]),
    )
    yield InputKind(HUGE, "a cancel, headers of 2 bytes", _cancel_of_headers)
    yield InputKind(
        HUGE, "a cancel's key", one(lambda size: encode(0, bytes(size), None, [(cancel, b"a")]))
    )


def _huge_name(size: int) -> bytes:
    return sealed(of_headers(framed(b"\xff" * size) + framed(b""), 1), 0, 1)


def _cancel_of_headers(size: int) -> bytes:
    request = framed(b"TIMER_DEL_UNIQKEY") + framed(b"a")
    return sealed(of_headers(b"\0\1" * (size // 2) + request, size // 2 + 1), 0, 1)


def _minute(n: int) -> tuple[int, int, int]:
    """Minute, hour and day, and all of them in turn."""
    return n % 60, n // 60 % 24, n // 1440 % 28 + 1


def _minutes(n: int) -> tuple[int, int, int]:
    """Two minutes and an hour, likewise."""
    return n % 60, n // 60 % 60, n // 3600 % 24


def _recurring() -> Iterator[InputKind]:
    cron, every, zones = "TIMER_CRON", ("TIMER_EVERY", b"1h"), _zones()
    yield InputKind(RECURRING, "recurring", alike(*_seed(every)))
    yield InputKind(
        RECURRING,
        "recurring, intervals that differ",
        records(lambda n: _seed(("TIMER_EVERY", b"%d" % (n + 10**6)))),
    )
    yield InputKind(
        RECURRING,
        "recurring, starts and ends that differ",
        records(
            lambda n: _seed(
                every,
                ("TIMER_STARTS_MS", b"2027-01-15T08:%02d:%02d.%dZ" % (n // 60 % 60, n % 60, n)),
                ("TIMER_ENDS_MS", b"%d" % (1_900_000_000_000 + n)),
            )
        ),
    )
    yield InputKind(
        RECURRING,
        "recurring, jitters that differ",
        records(lambda n: _seed(every, ("TIMER_JITTER_MS", b"%d" % (n + 1)))),
    )
    yield InputKind(
        EXPRESSIONS,
        "recurring, expressions that differ",
        records(lambda n: _seed((cron, b"%d %d %d * *" % _minute(n)))),
    )
    yield InputKind(
        EXPRESSIONS,
        "recurring, long expressions that differ",
        records(lambda n: _seed((cron, b",".join([b"*/1"] * 20) + b",%d %d %d * *" % _minute(n)))),
    )
    yield InputKind(
        EXPRESSIONS,
        "recurring, expressions without an instant",
        records(lambda n: _seed((cron, b"%d,%d %d */8,2-28 * MON#5" % _minutes(n)))),
    )
    yield InputKind(
        EXPRESSIONS,
        "recurring, expressions in zones",
        records(
            lambda n: _seed(
                (cron, b"*/%d * 29 2 *" % (n % 59 + 1)), ("TIMER_ZONE", zones[n % len(zones)])
            )
        ),
    )
    yield InputKind(
        EXPRESSIONS,
        "recurring, expressions that match in a gap alone",
        records(
            lambda n: _seed(
                (cron, b"%d,%d,%d * 2 * 3 7L" % (n % 60, n // 60 % 60, n // 3600)),
                ("TIMER_ZONE", b"Europe/Berlin"),
            )
        ),
    )
    yield InputKind(
        EXPRESSIONS,
        "recurring, zones that do not exist",
        records(lambda n: _seed((cron, b"0 8 * * *"), ("TIMER_ZONE", b"A/" * 20 + b"%d" % n))),
    )
    yield InputKind(RECURRING, "recurring, 90 headers", alike(*_seed(every), *[("", None)] * 90))
    yield InputKind(HUGE, "recurring, a jitter of zeros", huge("TIMER_JITTER_MS", b"0", after=b"1"))


def _modes() -> Iterator[InputKind]:
    yield InputKind(
        RESCHEDULES,
        "keys as ids",
        records(lambda _: SOON, lambda n: b"%d" % n, lambda _: b""),
        "by-key",
    )
    yield InputKind(
        CANCELS, "null values that cancel", records(lambda _: (), lambda n: b"%d" % n), "by-key"
    )
    for mode, epoch, target, key in (
        ("etf1", "scheduler-epoch", "scheduler-target-topic", "scheduler-target-key"),
        ("karafka", "schedule_target_epoch", "schedule_target_topic", "schedule_target_key"),
        ("eifinger", "kafka-scheduler-when", "kafka-scheduler-topic", "kafka-scheduler-key"),
    ):
        when = b"2027-01-15T08:00:05Z" if mode == "eifinger" else b"1800000005"
        yield InputKind(
            RESCHEDULES,
            f"messages of {mode}",
            records(
                partial(_sent_to, (epoch, when), (target, b"t"), key),
                lambda n: b"%d" % n,
                lambda _: b"v",
            ),
            mode,
        )


def _sent_to(when: Header, target: Header, key: str, n: int) -> list[Header]:
    return [when, target, (key, b"%d" % n)]
