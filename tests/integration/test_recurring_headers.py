"""A recurring timer by headers alone, on real Kafka and Spark, with killed processes."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

import pytest
from kafka import KafkaProducer
from tests.harness.random_timers import Headers
from tests.harness.reader import read_topic
from tests.harness.whole_shard import WholeShard

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.usefixtures("java"),
]

EVERY_MS = 2_000
KEY = b"key"


def firings(shard: WholeShard, name: bytes) -> list[Any]:
    """The messages of a recurring timer, in the order in which they left."""
    records = read_topic(shard.servers, shard.target)
    return [r for r in records if dict(r.headers)["UNIQ_KEY"].startswith(name + b"@")]


def await_more(shard: WholeShard, name: bytes) -> None:
    wanted = len(firings(shard, name)) + 3
    shard.wait(lambda: len(firings(shard, name)) >= wanted)


def due(records: list[Any]) -> list[int]:
    return [int(dict(record.headers)["TIMER_DUE_MS"]) for record in records]


@pytest.mark.timeout(600)
def test_each_instant_once_over_kills_until_it_is_stopped(shard: WholeShard) -> None:
    shard.start()
    producer = KafkaProducer(bootstrap_servers=shard.servers)

    def send(value: bytes | None, headers: Headers) -> Any:
        return producer.send(shard.timers, value, KEY, headers=headers).get(timeout=30)

    every: Headers = [("UNIQ_KEY", b"tick"), ("TIMER_EVERY", b"2s"), ("own", b"1")]
    seed = send(b"tick", [*every, ("TIMER_MISSED", b"all")])
    cron: Headers = [("TIMER_CRON", b"*/5 * * * * *"), ("TIMER_ZONE", b"Asia/Kolkata")]
    # Without the policy a start that takes a minute, on a busy host, would miss some.
    send(b"cron", [("UNIQ_KEY", b"cron"), ("TIMER_MISSED", b"all"), *cron])
    nowhere: Headers = [("TIMER_CRON", b"0 8 * * *"), ("TIMER_ZONE", b"Atlantis/Capital")]
    send(b"nowhere", [("UNIQ_KEY", b"nowhere"), *nowhere])
    await_more(shard, b"tick")
    for process in ("dequeue", "ingest", "dequeue"):
        shard.kill(process)
        await_more(shard, b"tick")
    stop = send(None, [("TIMER_DEL_UNIQKEY", b"tick")])
    place = f"{stop.topic}-{stop.partition}@{stop.offset}".encode()
    replies = f"{shard.timers.removesuffix('.timers')}.replies"

    def answer() -> bytes | None:
        found = [dict(record.headers) for record in read_topic(shard.servers, replies)]
        return next((h["TIMER_ANSWER"] for h in found if h["TIMER_SOURCE"] == place), None)

    shard.wait(lambda: answer() is not None)
    fired = firings(shard, b"tick")
    assert answer() == b"cancelled"
    instants = due(fired)
    first = seed.timestamp + EVERY_MS
    assert instants == list(range(first, first + len(instants) * EVERY_MS, EVERY_MS))
    for record, due_ms in zip(fired, instants, strict=True):
        assert (record.key, record.value) == (KEY, b"tick")
        assert record.headers == [
            ("own", b"1"),
            ("TIMER_SOURCE", f"{seed.topic}-{seed.partition}@{seed.offset}".encode()),
            ("TIMER_DUE_MS", b"%d" % due_ms),
            ("UNIQ_KEY", b"tick@%d" % due_ms),
        ]
    await_more(shard, b"cron")
    assert len(firings(shard, b"tick")) == len(fired), "it is stopped"
    of_cron = due(firings(shard, b"cron"))
    assert {b - a for a, b in itertools.pairwise(of_cron)} == {5_000}
    assert set(Counter(of_cron).values()) == {1}
    (letter,) = read_topic(shard.servers, shard.dead_letters)
    assert dict(letter.headers)["TIMER_ERROR_CODE"] == b"bad_recurrence"
    assert b"Atlantis/Capital" in dict(letter.headers)["TIMER_ERROR"]
    assert shard.stop() == 0
    shard.command("check")
    producer.close()
