"""`duewheel serve` beside a shard on a real broker: a timer's life by HTTP, and its process."""

from __future__ import annotations

import itertools
import json
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from tests.harness.config_file import write_config
from tests.harness.launcher import events, launch, objects, tail, wait_until
from tests.harness.reader import read_topic
from tests.harness.served import TOKEN, bearer
from tests.harness.shared_broker import SharedBroker
from tests.harness.sparkless_shard import Pumped, SparklessShard, timer

from duewheel.clock import SystemClock
from duewheel.config.settings import load

pytestmark = pytest.mark.kafka

HOUR_MS = 3_600_000


@pytest.fixture
def shard(config: Path) -> Iterator[SparklessShard]:
    shard = SparklessShard(load(config), 1)
    yield shard
    shard.close()


@contextmanager
def api(config: Path, *pairs: str) -> Iterator[httpx.Client]:
    """A client of a process that serves, with the token of changes."""
    token = config.with_name("token")
    token.write_text(TOKEN)
    given = [f"serve.token_file={token}", "serve.port=0", "log.format=json", *pairs]
    flags = [word for pair in given for word in ("--set", pair)]
    log = config.with_name("serve.log")
    log.unlink(missing_ok=True)
    process = launch(config, "serve", *flags)
    try:
        wait_until(lambda: events(log, "serving"), lambda: tail(log), seconds=60)
        (started,) = events(log, "serving")
        with httpx.Client(base_url=started["url"], headers=bearer(TOKEN), timeout=60) as client:
            yield client
    finally:
        assert process.end(signal.SIGTERM, 30), tail(log)
    assert process.exit_code == 0, tail(log)
    assert TOKEN not in log.read_text()


def in_an_hour(shard: SparklessShard, later_ms: int = 0) -> dict[str, Any]:
    at_ms = SystemClock().now_ms() + HOUR_MS // 2 + later_ms
    return {"topic": shard.target, "deliver_at": at_ms}


def test_a_timers_life(config: Path, shard: SparklessShard) -> None:
    with api(config, "serve.show_bodies=true") as client:
        for number, name in enumerate(("a", "b", "c", "d")):
            # A list has an order by slot: those of one slot may lie in several partitions.
            new = {
                **in_an_hour(shard, 1_000 * number),
                "value": name,
                "key": name,
                "id": f"id {name}",
            }
            assert client.post("/v1/timers", json=new).status_code == 201
        shard.pump()
        listed = client.get("/v1/timers").json()["timers"]
        handles = {each["key"]: each["handle"] for each in listed}
        assert [*handles] == ["a", "b", "c", "d"]
        assert client.get("/v1/timers", params={"key": "b"}).json()["timers"][0]["id"] == "id b"
        assert client.get(f"/v1/timers/{handles['c']}").json()["value"] == "c"
        assert client.get("/v1/histogram").json()["pending"] == 4

        # Without a reply topic nothing is answered.
        assert client.delete(f"/v1/timers/{handles['a']}").status_code == 202
        assert client.post(f"/v1/timers/{handles['b']}/fire").status_code == 202
        later = {"delay": "45m"}
        moved = client.post(f"/v1/timers/{handles['c']}/reschedule", json=later)
        assert moved.status_code == 202
        time.sleep(0.01)
        shard.pump()
        shard.pump()
        (delivered,) = read_topic(shard.servers, shard.target)
        assert (delivered.key, delivered.value) == (b"b", b"b")
        left = client.get("/v1/timers").json()["timers"]
        assert {(each["key"], each["cancelled"]) for each in left} == {
            *(("a", True), ("b", True), ("c", True), ("c", False), ("d", False))
        }

        body = {"filter": {"topic": shard.target}, "dry_run": False}
        assert client.post("/v1/cancel", json=body).json()["written"] == 2
        shard.pump()
        assert all(each["cancelled"] for each in client.get("/v1/timers").json()["timers"])

    exit_code, rows = objects(config, "show", "--id", "id d", "--body")
    assert (exit_code, [row["value"] for row in rows]) == (0, ["d"])


def test_dead_letters_are_paged_and_replayed(config: Path, shard: SparklessShard) -> None:
    shard.send(shard.timers, 0, *(timer(shard, b"%d" % n) for n in range(5)))
    shard.pump()
    with api(config) as client:
        begin_s = time.monotonic()
        page = client.get("/v1/dead-letters", params={"limit": 3}).json()
        assert time.monotonic() - begin_s < 10
        assert [each["code"] for each in page["letters"]] == ["no_due_time"] * 3
        assert page["next"] == "0@2"  # as `duewheel dlq list --page` takes it
        rest = client.get("/v1/dead-letters", params={"page": page["next"]}).json()
        assert ([each["offset"] for each in rest["letters"]], rest["next"]) == ([3, 4], None)
        one = client.get("/v1/dead-letters/0/3").json()
        assert one["offset"] == 3
        assert one["value"] is None
        assert "REAL_TOPIC" in one["header_names"]
        assert client.get("/v1/dead-letters/0/5").status_code == 404
        for dry_run, replayed in ((True, 5), (False, 5), (False, 0)):
            result = client.post("/v1/dead-letters/replay", json={"dry_run": dry_run}).json()
            assert result["replayed"] == replayed
        assert client.get("/v1/dead-letters").json()["letters"][0]["replayed"]


def test_a_missing_topic_is_no_fault_of_the_caller(
    config: Path, unique_name: Callable[[str], str]
) -> None:
    absent = unique_name("absent")
    with api(
        config, f"timer.dead_letter_topic={absent}", f"timer.state_topic={absent}.s"
    ) as client:
        for answer in (client.get("/v1/dead-letters"), client.post("/v1/pause/tag/x", json={})):
            assert (answer.status_code, answer.json()["code"]) == (503, "misconfigured")
    lines = events(config.with_name("serve.log"), "a request has failed")
    assert [absent in line["reason"] for line in lines] == [True, True]


def test_many_messages_are_sent_from_a_file(config: Path, shard: SparklessShard) -> None:
    lines = [
        {"value": "a", "key": "k"},
        {"value_base64": "/w==", "delay": "20m", "headers": [{"name": "h", "value": "1"}]},
        {"value": "c", "dely": "1m"},
        {"value": "d", "topic": "orders.denied"},
    ]
    file = config.with_name("timers.jsonl")
    file.write_text("\n".join(["", *map(json.dumps, lines), "no json"]))
    options = [str(file), "--target", shard.target, "--delay", "10m"]
    exit_code, rows = objects(config, "send-lines", *options)
    assert exit_code == 1
    assert [(row["line"], "error" in row) for row in rows] == [
        *((2, False), (3, False), (4, True), (5, True), (6, True))
    ]
    shard.pump()
    exit_code, (first, second) = objects(config, "list", "--target", shard.target)
    assert (exit_code, first["key"], second["value_bytes"]) == (0, "k", 1)
    assert second["due_ms"] - first["due_ms"] > 500_000
    exit_code, (result,) = objects(config, "cancel-matching", "--key", "k", "--dry-run")
    assert (exit_code, result["matched"], result["written"]) == (0, 1, 1)


@contextmanager
def open_transaction(shard: SparklessShard, partition: int) -> Iterator[None]:
    """Of another producer in a timer partition: its records, and later ones, cannot be read yet."""
    held = KafkaProducer(
        bootstrap_servers=shard.servers,
        transactional_id=f"{shard.timers}.held",
        transaction_timeout_ms=600_000,
    )
    held.init_transactions()
    held.begin_transaction()
    held.send(shard.timers, b"not committed", partition=partition).get(timeout=30)
    yield
    held.abort_transaction()
    held.close()


def test_changes_behind_an_open_transaction_hold_no_other(
    broker: SharedBroker, tmp_path: Path, unique_name: Callable[[str], str]
) -> None:
    """Each of thirteen waits up to 30 s for its reply; there are eight threads. Schedules behind it
    are refused: a change in the transaction would be undone.
    """
    name = unique_name("app")[-40:].lstrip("-")
    timers = {"topic": {f"{name}.timers": {"recurring": True}}, "reply_topic": f"{name}.replies"}
    config = write_config(tmp_path, broker.bootstrap_servers, name, timer=timers)
    with (
        closing(Pumped(SparklessShard(load(config), 1))) as pumped,
        api(config) as client,
        closing(KafkaConsumer(bootstrap_servers=broker.bootstrap_servers)) as consumer,
        ThreadPoolExecutor(16) as pool,
    ):
        shard = pumped.shard
        place = TopicPartition(shard.timers, 0)
        keys, handles = timers_by_partition(client, shard, 13)

        def end() -> int:
            (offset,) = consumer.end_offsets([place]).values()
            return int(offset)

        def change(number: int) -> httpx.Response:
            wait = {"wait": 30}
            one = f"/v1/timers/{handles[0][number]}"
            if number >= 10:
                later = {"delay": "45m"}
                return client.post(f"{one}/reschedule", params=wait, json=later)
            return client.delete(one, params=wait)

        with open_transaction(shard, 0):
            begin = end()
            held = [pool.submit(change, number) for number in range(13)]
            new = {"every": "1h", "target": shard.target, "value": "v"}
            refused = [pool.submit(client.put, f"/v1/schedules/{n}", json=new) for n in range(3)]
            wait_until(lambda: end() >= begin + 8, "no change is written")
            for handle in handles[1][:8]:
                answered = client.delete(f"/v1/timers/{handle}", params={"wait": 30})
                assert (answered.status_code, answered.json()["answer"]) == (200, "cancelled")
                timer = {**in_an_hour(shard), "key": keys[1]}
                assert client.post("/v1/timers", json=timer).status_code == 201
            wait_until(lambda: end() >= begin + 13, "not all changes are written")
            found = [each.result().json() for each in refused]
            assert {each["code"] for each in found} == {"ingest_behind"}
            assert f"of {shard.timers}-0 yet" in found[0]["detail"]
            assert not any(each.done() for each in held)
        results = [each.result() for each in held]
        assert [each.status_code for each in results] == [200] * 13
        assert {each.json()["answer"] for each in results} == {"cancelled"}
        assert client.put("/v1/schedules/0", params={"wait": 30}, json=new).json()["applied"]


def timers_by_partition(
    client: httpx.Client, shard: SparklessShard, each: int
) -> tuple[list[str], list[list[str]]]:
    """A key, and the handles of so many pending timers or more, by partition."""
    keys, handles = ["", ""], [list[str](), list[str]()]
    for count in itertools.count(1):
        written = client.post("/v1/timers", json={**in_an_hour(shard), "key": str(count)}).json()
        keys[written["partition"]] = str(count)
        handles[written["partition"]].append(written["handle"])
        if min(map(len, handles)) >= each:
            break
    wait_until(
        lambda: len(client.get("/v1/timers").json()["timers"]) == count, "not all are pending"
    )
    return keys, handles
