"""What anybody writes to a timer topic costs in proportion to its bytes, and not much more than
ordinary timers of the same bytes: kinds of input that were found, and shapes that are drawn.

Processor time of the same process is compared, no seconds: sixteen times the bytes cost up to
sixteen times as much, where the square would be 256 times.
"""

from __future__ import annotations

import functools
import gc
import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.harness.costly_inputs import InputKind, batched, kinds, of_one_hash
from tests.harness.costs import TOPICS, CostedShard, Costs

from duewheel.schemas.header_names import DROP_IN, EXPIRES_MS, REQUEST, TAG
from duewheel.schemas.wire.single_record import Header, encode

TIMES = 16
SMALL = 12_000
GROWTH_MAX = 1.5 * TIMES
RATIO_MAX = 40  # of the cost of ordinary timers; small records have up to ten times as many rows
TRIES = 4
OTHERS_MAX = 3

FIRSTS = itertools.count(1, 100_000)
AT_DELIVERY = (EXPIRES_MS, TAG, "traceparent", "tracestate")
NAMES = sorted({*REQUEST, *AT_DELIVERY, *(name for mode in DROP_IN.values() for name in mode)})
VALUES: dict[str, Callable[[int], bytes | None]] = {
    "null": lambda _: None,
    "empty": lambda _: b"",
    "true": lambda _: b"true",
    "number": lambda n: b"%d" % n,
    "of two": lambda n: b"%d" % (n // 2),
    "few": lambda n: b"%d" % (n % 7),
    "zeros": lambda n: b"0" * 40 + b"%d" % n,
    "instant": lambda n: b"2027-01-15T08:%02d:%02d.%dZ" % (n // 60 % 60, n % 60, n),
    "seconds": lambda n: b"%ds" % (n + 1),
    "cron": lambda n: b"%d %d */8,2-28 * MON#5" % (n % 60, n // 60 % 24),
    "zone": lambda n: b"Europe/Berlin" if n % 2 else b"Asia/Tokyo",
    "no UTF-8": lambda n: b"\xff%d" % n,
    "name": lambda n: b"gone%d" % n if n % 3 else b"full%d" % n,
    "one hash": of_one_hash,
    "long": lambda _: b"x" * 300,
    "context": lambda n: b"00-%032x-%016x-01" % (n + 1, n + 1),
    "MAC": lambda _: b"x" * 16,
}
SENT = [("REAL_TOPIC", "few"), ("DELAY", "few")]


class Record(NamedTuple):
    """What a record has: names of VALUES."""

    key: str
    value: str
    headers: Sequence[tuple[str, str]]
    times: int  # each of them

    def encoded(self, n: int, delta: int) -> bytes:
        headers: list[Header] = [(name, VALUES[value](n)) for name, value in self.headers]
        return encode(delta, VALUES[self.key](n), VALUES[self.value](n), headers * self.times)


values = st.sampled_from(sorted(VALUES))
more = st.lists(st.tuples(st.sampled_from([*NAMES, "own", "\udcff"]), values), max_size=5)
sent = st.sampled_from([[], SENT])
headers = st.tuples(sent, more).map(lambda both: [*both[0], *both[1]])
records = st.builds(Record, values, values, headers, st.sampled_from([1, 1, 1, 50]))


@pytest.fixture(scope="module")
def shard(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CostedShard]:
    # So small that what each transaction costs shows.
    shard = CostedShard(tmp_path_factory.mktemp("costs"), chunk_recurring=200)
    gc.freeze()  # else a collection that falls into a measurement would visit all that was imported
    shard.take(next(kinds()).build(TIMES * SMALL))
    yield shard
    gc.unfreeze()
    shard.kill()


def ordinary(shard: CostedShard) -> Costs:
    """The least costs of ordinary timers."""
    plain = next(kinds()).build(TIMES * SMALL)
    return functools.reduce(Costs.best, [shard.take(plain) for _ in range(TRIES)])


def check(shard: CostedShard, build: Callable[[int], bytes], topic: str, wait_s: int) -> None:
    """Tries again what is too slow: another process may have the caches."""
    plain = next(kinds()).build(TIMES * SMALL)
    small, large, _ = inputs = build(SMALL), build(TIMES * SMALL), plain
    best = dict.fromkeys(inputs, 60.0)
    for _ in range(TRIES):
        for octets in inputs:
            is_plain = octets is plain
            took = shard.take(octets, *(() if is_plain else (topic, wait_s))).all_s
            best[octets] = min(best[octets], took)
        growth, ratio = best[large] / best[small], best[large] / best[plain]
        if growth < GROWTH_MAX and ratio < RATIO_MAX:
            return
    pytest.fail(f"{growth:.0f} times for {TIMES} times; {ratio:.0f} times ordinary timers")


@pytest.mark.parametrize("kind", [pytest.param(each, id=each.name) for each in kinds()])
def test_a_known_kind(shard: CostedShard, kind: InputKind) -> None:
    check(shard, kind.build, kind.topic, kind.wait_s)


def test_nobody_pays_for_what_others_have_written(shard: CostedShard, tmp_path: Path) -> None:
    """After all of the above ordinary timers cost what they cost an empty shard."""
    fresh = CostedShard(tmp_path / "fresh")
    before, after = ordinary(fresh), ordinary(shard)
    fresh.kill()
    assert after.all_s < OTHERS_MAX * before.all_s
    assert after.locked_s < OTHERS_MAX * before.locked_s


@settings(max_examples=settings().max_examples // 4)
@given(
    templates=st.lists(records, min_size=1, max_size=3),
    codec=st.sampled_from([0, 0, 0, 1, 2, 3, 4]),
    in_batch=st.sampled_from([1, 7, 1 << 20]),
    topic=st.sampled_from(TOPICS),
)
def test_any_shape(
    shard: CostedShard, templates: list[Record], codec: int, in_batch: int, topic: str
) -> None:
    def build(size: int) -> bytes:
        numbers = itertools.count(next(FIRSTS))  # of another example's ids there are timers
        each = (partial(templates[n % len(templates)].encoded, n) for n in numbers)
        return batched(each, size, codec, in_batch)

    check(shard, build, topic, wait_s=60)
