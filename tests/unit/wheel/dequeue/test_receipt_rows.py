"""Receipts: one for each delivery, whatever else leaves; and headers with the lateness."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from kafka.partitioner.default import murmur2
from kafka.record import MemoryRecords
from tests.harness.deliveries import rows

from duewheel.schemas.batches import Deliveries
from duewheel.schemas.columns import binary
from duewheel.schemas.receipts import Receipt
from duewheel.schemas.wire.codec_names import Codec
from duewheel.schemas.wire.record_batch import seal
from duewheel.wheel.dequeue.encoder import Encoder, encode
from duewheel.wheel.dequeue.receipt_rows import LATENESS_ERROR_MAX_MS, Receipts
from duewheel.wheel.dequeue.requeue import rolled_copies
from duewheel.wheel.encoded import Encoded
from duewheel.wheel.target_rules import Reason, Target

NOW_MS = 1_800_000_000_000
ROOM = Target(4, 100_000, batch_bytes=100_000)
DOWN = Target(4, 100_000, unavailable=frozenset([1, 2]), batch_bytes=100_000)
ALL_DOWN = replace(ROOM, unavailable=frozenset(range(4)))
NOWHERE = Target(0, 0, refusal=Reason.UNKNOWN_TARGET_TOPIC, batch_bytes=0)
TOPICS = {"a": ROOM, "b": DOWN, "gone": NOWHERE, "dead": ROOM, "timers": ROOM, "others": ROOM}
RECEIPTS = Receipts("receipts", without=frozenset(["others"]))


def encoded(
    deliveries: Deliveries,
    receipts: Receipts = RECEIPTS,
    target: Target = ROOM,
    now_ms: int = NOW_MS,
    known: Mapping[str, Target] = TOPICS,
) -> Encoded:
    every = {**known, "receipts": target}

    def lookup(topics: Sequence[str]) -> Mapping[str, Target]:
        return {topic: every[topic] for topic in topics}

    chance = random.Random(0)
    return encode(deliveries, lookup, frozenset(), "dead", chance, now_ms, receipts=receipts)


def records(found: Encoded, topic: str) -> list[tuple[int, Any]]:
    """Partition and record, as Kafka's client decodes it."""
    return [
        (part.partition, record)
        for part in found.parts
        if part.topic == topic
        for record in MemoryRecords(
            bytes(seal(part.batch.body, part.batch.count, timestamp_ms=9, codec=part.batch.codec))
        ).next_batch()
    ]


def receipts_of(found: Encoded) -> list[tuple[str, str, int, int]]:
    parsed = [
        Receipt.parse(record.key, record.value, record.timestamp)
        for _, record in records(found, "receipts")
    ]
    return sorted((r.source, r.target, r.target_partition, r.due_ms) for r in parsed if r)


def delivered(found: Encoded) -> list[tuple[str, str, int, int]]:
    """The messages with the headers that only deliveries have, but those from `others`."""
    return sorted(
        (headers["TIMER_SOURCE"].decode(), topic, partition, int(headers["TIMER_DUE_MS"]))
        for topic in ("a", "b")
        for partition, record in records(found, topic)
        if "TIMER_DUE_MS" in (headers := dict(record.headers))
        and not headers["TIMER_SOURCE"].startswith(b"others")
    )


def some(dice: random.Random, count: int) -> Deliveries:
    """Rows of all kinds: for open, closed and missing targets; copies, dead letters, replies."""
    sent = rows(
        dice.choices(["a", "b", "gone"], k=count), [dice.randrange(-1, 4) for _ in range(count)]
    )
    kind = np.array(dice.choices(["timer", "letter", "answer", "rolls"], [8, 1, 1, 1], k=count))
    topic = np.array([dice.randrange(2) for _ in range(count)], np.int32)
    source = [b"%s-0@%d" % ((b"timers", b"others")[t], n) for n, t in enumerate(topic.tolist())]
    ids = [own if dice.random() < 0.5 else dice.randbytes(dice.randrange(1, 40)) for own in source]
    sent = replace(
        sent,
        source_partitions=[("timers", 0), ("others", 0)],
        source_partition=topic,
        source=binary(source),
        timer_id=binary(ids),
        due_ms=np.array([NOW_MS - dice.randrange(10_000) for _ in range(count)], np.int64),
        dead_letter=kind == "letter",
        answer=kind == "answer",
    )
    return rolled_copies(sent, kind == "rolls")


@pytest.mark.parametrize("seed", range(30))
def test_each_delivery_has_one_receipt_and_nothing_else_has(seed: int) -> None:
    dice = random.Random(seed)
    found = encoded(some(dice, dice.choice([1, 3, 40, 300])))
    assert receipts_of(found) == delivered(found)


@pytest.mark.parametrize("seed", range(10))
def test_a_rows_writes_are_its_record_and_its_receipt(seed: int) -> None:
    """For cuts between rows: by these numbers any part has as many partitions as it writes to."""
    dice = random.Random(seed)
    sent = some(dice, 40)
    whole = encoded(sent).writes
    for first, end in ((0, 40), (0, 1), (7, 20), (33, 40)):
        found = encoded(sent.slice(first, end))
        within = (first <= whole.row) & (whole.row < end)
        assert found.partitions == len(np.unique(whole.partition[within]))
        assert len(found.writes.row) == end - first + len(receipts_of(found))


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_a_receipt_has_the_id_as_its_key_and_lies_where_clients_put_it(codec: Codec) -> None:
    ids = [b"order-42", b'"\\\n', b"\0\xff", b"x" * 255, *(b"%d" % n for n in range(200))]
    sent = replace(rows(["a"] * len(ids), [0] * len(ids)), timer_id=binary(ids))
    found = records(encoded(sent, target=replace(ROOM, codec=codec)), "receipts")
    assert sorted(record.key for _, record in found) == sorted(ids)
    for partition, record in found:
        assert partition == (murmur2(record.key) & 0x7FFFFFFF) % 4
        assert (record.headers, record.timestamp) == ([], 9)
    (one,) = [record.value for _, record in found if record.key == b"\0\xff"]
    expected = b'{"source":"timers-0@2","target":"a","target_partition":0,"due_ms":0}'
    assert one == expected


def test_receipts_of_an_id_are_in_the_order_of_their_timers() -> None:
    sent = replace(rows(["a"] * 60, [0] * 60), timer_id=binary([b"x", b"y", b"z"] * 20))
    for key in (b"x", b"y", b"z"):
        found = [r.value for _, r in records(encoded(sent), "receipts") if r.key == key]
        offsets = [int(value.split(b"@")[1].split(b'"')[0]) for value in found]
        assert offsets == sorted(offsets)
        assert len(offsets) == 20


def test_batches_of_receipts_are_no_larger_than_their_topic_takes() -> None:
    small = Target(2, 1_000, batch_bytes=1_000)
    found = encoded(rows(["a"] * 500, [0] * 500), target=small)
    sizes = [61 + len(part.batch.body) for part in found.parts if part.topic == "receipts"]
    assert max(sizes) <= 1_000
    assert len(sizes) > 50
    assert len(receipts_of(found)) == 500


@pytest.mark.parametrize("target", [NOWHERE, DOWN, ALL_DOWN])
@pytest.mark.parametrize("seed", range(10))
def test_rows_whose_receipt_has_no_place_are_parked_and_no_others(
    target: Target, seed: int
) -> None:
    dice = random.Random(seed)
    sent = some(dice, 200)
    usual, now = encoded(sent), encoded(sent, target=target)
    down = {0, 1, 2, 3} if target is not DOWN else {1, 2}
    hashes = [murmur2(key) & 0x7FFFFFFF for key in sent.timer_id.to_pylist()]
    lost = {n for n, h in enumerate(hashes) if h % 4 in down and sent.source_partition[n] == 0}
    lost &= set(delivered_rows(usual, sent))
    assert set(now.aside.parked) == set(usual.aside.parked) | lost
    assert now.aside.reasons == usual.aside.reasons
    assert receipts_of(now) == delivered(now)
    assert set(delivered_rows(now, sent)) == set(delivered_rows(usual, sent)) - lost


def delivered_rows(found: Encoded, sent: Deliveries) -> list[int]:
    """The numbers of the rows that went to their target."""
    sources = sent.source.to_pylist()
    return [
        sources.index(dict(record.headers)["TIMER_SOURCE"])
        for topic in ("a", "b")
        for _, record in records(found, topic)
        if "TIMER_DUE_MS" in dict(record.headers)
    ]


def test_without_a_receipts_topic_nothing_is_asked_or_added() -> None:
    sent = rows(["a"], [0])
    found = encoded(sent, Receipts())
    assert ([part.topic for part in found.parts], [*found.used_targets]) == (["a"], ["a"])
    assert Receipts().with_lateness(sent, NOW_MS) is sent


def test_lateness_is_a_header_of_deliveries_from_its_topics() -> None:
    late = replace(rows(["a", "a"], [0, 1]), due_ms=np.array([NOW_MS - 70, NOW_MS + 5]))
    chosen = Receipts(lateness_headers=frozenset(["timers"]))
    headers = [
        dict(r.headers).get("TIMER_LATENESS_MS") for _, r in records(encoded(late, chosen), "a")
    ]
    assert headers == [b"70", b"0"]
    other = Receipts(lateness_headers=frozenset(["others"]))
    assert "TIMER_LATENESS_MS" not in dict(records(encoded(late, other), "a")[0][1].headers)


def test_a_record_that_the_header_makes_too_large_is_a_dead_letter() -> None:
    """Otherwise the broker would refuse its batch again and again."""
    sent, chosen = rows(["a"], [0]), Receipts(lateness_headers=frozenset(["timers"]))
    plain = 61 + len(encoded(sent, Receipts()).parts[0].batch.body)
    full = {**TOPICS, "a": Target(4, plain, batch_bytes=plain)}
    assert encoded(sent, Receipts(), known=full).aside.reasons == {}
    assert encoded(sent, chosen, known=full).aside.reasons == {"record_too_large": 1}


def all_there(topics: Sequence[str]) -> Mapping[str, Target]:
    return {topic: TOPICS[topic] for topic in topics}


def test_lateness_of_rows_that_have_waited_for_kafka_is_encoded_again() -> None:
    chosen = Receipts(lateness_headers=frozenset(["timers"]))
    for receipts, is_old in ((chosen, True), (Receipts(), False)):
        encoder = Encoder(all_there, frozenset, "dead", random.Random(0), receipts)

        ahead = encoder.prepare(replace(rows(["a"], [0]), due_ms=np.array([NOW_MS])), NOW_MS)
        just = NOW_MS + LATENESS_ERROR_MAX_MS
        assert encoder.renew(ahead, all_there, just).encoded is ahead.encoded
        again = encoder.renew(ahead, all_there, just + 1).encoded
        assert again
        assert (again is not ahead.encoded) == is_old
        late_ms = dict(records(again, "a")[0][1].headers).get("TIMER_LATENESS_MS")
        assert late_ms == (b"1001" if is_old else None)
