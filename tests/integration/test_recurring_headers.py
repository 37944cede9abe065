"""A recurring timer by headers alone, on real Kafka and Spark, with killed processes."""

from __future__ import annotations

import itertools
from collections import Counter
from contextlib import closing
from typing import Any

import pytest
from kafka import KafkaProducer
from tests.harness.launcher import objects
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


def patiently(shard: WholeShard, *words: str) -> Any:
    """Runs a command of schedules, again while the next copy of the named one is on its way: a busy
    host outlasts the command's own patience.
    """
    done = list[Any]()

    def is_there() -> bool:
        try:
            done.append(shard.command("schedule", *words))
        except AssertionError as error:
            if "has no schedule" not in str(error):
                raise
        return bool(done)

    shard.wait(is_there)
    return done[0]


def by_commands(shard: WholeShard) -> None:
    """The same timers, and others, by `duewheel schedule`."""

    def schedule(*words: str) -> Any:
        return patiently(shard, *words)

    def rows() -> list[dict[str, Any]]:
        return objects(shard.config, "schedule", "list")[1]

    def listed(name: str) -> dict[str, Any]:
        # Between a seed's slot and the ingest of its first copy it is pending nowhere; a copy that
        # was in flight when it was replaced is pending until its chase.
        found = list[dict[str, Any]]()

        def look() -> bool:
            found[:] = [row for row in rows() if row["name"] == name]
            return len(found) == 1

        shard.wait(look)
        return found[0]

    message = ("--target", shard.target, "--value", "v", "--key", "k")
    made = schedule("set", "often", "--every", "2s", *message, "--output", "json")
    assert (made["state"], made["applied"]) == ("active", True)
    await_more(shard, b"often")
    instants = due(firings(shard, b"often"))
    assert instants == list(range(instants[0], instants[-1] + 1, EVERY_MS))
    paused = schedule("pause", "often", "--note", "audit", "--output", "json")
    assert (paused["state"], paused["note"], paused["applied"]) == ("paused", "audit", True)
    triggered = schedule("trigger", "often", "--output", "json")
    # What was due before the pause may still be on its way: the trigger is not always the next one.
    shard.wait(
        lambda: (
            triggered["id"]
            in [dict(each.headers)["UNIQ_KEY"].decode() for each in firings(shard, b"often")]
        )
    )
    fired = len(firings(shard, b"often"))
    schedule("resume", "often")
    shard.wait(lambda: len(firings(shard, b"often")) > fired)
    assert (due(firings(shard, b"often"))[-1] - instants[0]) % EVERY_MS == 0, "its phase is kept"
    yearly = ("--cron", "0 8 1 1 *", "--zone", "Europe/Berlin")
    schedule("set", "often", *yearly, *message)
    shard.wait(lambda: listed("often")["every_ms"] is None)  # perhaps not taken yet
    changed = listed("often")
    assert (changed["cron"], changed["every_ms"]) == ("0 8 1 1 *", None)
    lines = schedule("next", "often").splitlines()
    assert len(lines) == 10 and all("01-01T08:00:00.000+01:00" in line for line in lines)
    schedule("stop", "cron")  # the one that another client has made
    file = shard.path / "schedules.toml"
    text = f'target = "{shard.target}"\nvalue = "v"\nkey = "k"\n'
    file.write_text(
        f'[often]\ncron = "0 8 1 1 *"\nzone = "Europe/Berlin"\n{text}[daily]\nevery = "1d"\n{text}'
    )
    apply = ("apply", "-f", str(file), "--prune")
    lines = schedule(*apply, "--dry-run").splitlines()
    assert [line.split() for line in lines] == [["added", "daily"], ["unchanged", "often"]]
    schedule(*apply)
    before = listed("daily")["next_due_ms"]
    file.write_text(f'[daily]\nevery = "24h"\n{text}')
    assert [line.split() for line in schedule(*apply).splitlines()] == [
        ["unchanged", "daily"],
        ["removed", "often"],
    ]
    assert listed("daily")["next_due_ms"] == before
    assert [row["name"] for row in rows()] == ["daily"]


def test_schedules_by_headers_and_by_commands(shard: WholeShard) -> None:
    shard.start()
    with closing(KafkaProducer(bootstrap_servers=shard.servers)) as producer:
        cron: Headers = [("UNIQ_KEY", b"cron"), ("TIMER_CRON", b"*/5 * * * * *")]
        producer.send(shard.timers, b"cron", KEY, headers=cron)
        nowhere: Headers = [("TIMER_CRON", b"0 8 * * *"), ("TIMER_ZONE", b"Atlantis/Capital")]
        producer.send(shard.timers, b"nowhere", KEY, headers=[("UNIQ_KEY", b"nowhere"), *nowhere])
    by_commands(shard)
    (letter,) = read_topic(shard.servers, shard.dead_letters)
    assert dict(letter.headers)["TIMER_ERROR_CODE"] == b"bad_recurrence"
    assert b"Atlantis/Capital" in dict(letter.headers)["TIMER_ERROR"]
    assert shard.stop() == 0
    shard.command("check")


@pytest.mark.crash_matrix
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
    assert shard.stop() == 0
    shard.command("check")
    producer.close()
