"""`duewheel serve` for several teams on a real broker: tokens with a scope, and the topic of
changes over a kill.
"""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest
from tests.harness.config_file import write_config
from tests.harness.launcher import events, launch, tail, wait_until
from tests.harness.reader import read_topic
from tests.harness.served import READ_TOKEN, TOKEN, bearer
from tests.harness.shared_broker import SharedBroker
from tests.harness.sparkless_shard import SparklessShard

from duewheel.clock import SystemClock
from duewheel.config.settings import load
from duewheel.ops.topics.targets import is_open_to_producers
from duewheel.osutil.child_process import Child
from duewheel.schemas.wire.single_record import Header

pytestmark = pytest.mark.kafka

HOUR_MS = 3_600_000
ANA, BEN = bearer(TOKEN), bearer(READ_TOKEN)


@pytest.fixture
def config(broker: SharedBroker, tmp_path: Path, unique_name: Any) -> Path:
    name = unique_name("teams")[-40:]
    tokens = tmp_path / "tokens"
    tokens.write_text(f"ana {TOKEN} {name}.timers\nben {READ_TOKEN} {name}.b*\n")
    kept = {"reply_topic": f"{name}.replies", "receipts_topic": f"{name}.receipts"}
    topics = {"topics": [f"{name}.timers", f"{name}.bills"], "targets": ["*"]}
    serve = {"token_file": str(tokens), "read_token_file": str(tokens), "port": 0}
    return write_config(
        tmp_path,
        broker.bootstrap_servers,
        name,
        timer={**topics, **kept},
        serve={**serve, "changes_topic": f"{name}.changes"},
        log={"format": "json"},
    )


@pytest.fixture
def shard(config: Path) -> Iterator[SparklessShard]:
    shard = SparklessShard(load(config), 1)
    yield shard
    shard.close()


@contextmanager
def api(config: Path) -> Iterator[tuple[httpx.Client, Child]]:
    """A client of a process that serves; it is killed at the end, if it still runs."""
    log = config.with_name("serve.log")
    log.unlink(missing_ok=True)
    process = launch(config, "serve")
    try:
        wait_until(lambda: events(log, "serving"), lambda: tail(log), seconds=60)
        (started,) = events(log, "serving")
        with httpx.Client(base_url=started["url"], timeout=60) as client:
            yield client, process
    finally:
        process.end(signal.SIGKILL, 30)


def changes(shard: SparklessShard) -> list[dict[str, Any]]:
    """The committed records of the topic of changes."""
    topic = shard.settings.serve.changes_topic
    assert topic is not None
    records = read_topic(shard.servers, topic)
    found = [json.loads(record.value) for record in records]
    assert [record.key.decode() for record in records] == [each["change"] for each in found]
    return found


def scheduled(client: httpx.Client, shard: SparklessShard, timer_id: str) -> str:
    new = {"topic": shard.target, "delay": "30m", "value": "secret value", "id": timer_id}
    answer = client.post("/v1/timers", json=new, headers=ANA).json()
    shard.pump()
    handle: str = answer["handle"]
    return handle


def test_a_team_cancels_its_own_timer_and_no_other_and_the_topic_of_changes_has_it(
    config: Path, shard: SparklessShard
) -> None:
    with api(config) as (client, _):
        handle = scheduled(client, shard, "first")
        url = f"/v1/timers/{handle}"
        for method, path in (("DELETE", url), ("POST", f"{url}/fire"), ("GET", url)):
            refused = client.request(method, path, headers=BEN)
            assert (refused.status_code, refused.json()["code"]) == (403, "out_of_scope")
        search = {"filter": {"topic": shard.target}, "dry_run": False}
        assert client.post("/v1/cancel?wait=0", json=search, headers=BEN).json()["matched"] == 0
        assert client.get("/v1/timers", headers=BEN).json()["timers"] == []
        shard.pump()
        (row,) = client.get("/v1/timers", headers=ANA).json()["timers"]
        assert (row["id"], row["cancelled"]) == ("first", False)
        assert client.delete(f"{url}?wait=0", headers=ANA).status_code == 202
        shard.pump()
        assert client.get(url, headers=ANA).json()["cancelled"] is True
    found = changes(shard)
    assert [(each["operation"], each["by"], each["state"]) for each in found] == [
        (operation, name, state)
        for operation, name in (
            ("schedule", "ana"),
            ("cancel_timers", "ben"),
            ("cancel_timer", "ana"),
        )
        for state in ("begun", "ended")
    ]
    *_, bulk, begun, ended = found
    assert (bulk["status"], bulk["result"]["matched"]) == (200, 0)
    assert begun["arguments"]["id"] == "first" and begun["client"] == "127.0.0.1"
    assert ended["result"]["id"] == "first"
    added = {"state": "ended", "ended_ms": ended["ended_ms"], "status": 202}
    assert ended == begun | added | {"result": ended["result"]}
    assert "secret value" not in str(found) and TOKEN not in str(found)


@pytest.mark.slow
def test_after_a_kill_the_topic_of_changes_has_the_begin_of_a_change_and_no_outcome(
    config: Path, shard: SparklessShard
) -> None:
    with api(config) as (client, process):
        handle = scheduled(client, shard, "killed")

        def cancel() -> None:
            with suppress(httpx.HTTPError):
                client.delete(f"/v1/timers/{handle}?wait=30", headers=ANA)

        waits = threading.Thread(target=cancel)
        waits.start()  # for a reply, which ingest does not write meanwhile
        wait_until(lambda: len(read_topic(shard.servers, shard.timers)) == 2, "no cancel")
        process.end(signal.SIGKILL, 30)
        waits.join()
    last = changes(shard)[-1]
    assert (last["operation"], last["state"], last["arguments"]["id"]) == (
        "cancel_timer",
        "begun",
        "killed",
    )
    with api(config) as (client, _):
        shard.pump()
        url = f"/v1/timers/{handle}"
        assert client.get(url, headers=ANA).json()["cancelled"] is True, "it was made nevertheless"
        topic = shard.settings.serve.changes_topic
        assert topic is not None
        with shard.admin() as admin:
            admin.delete_topics([topic])
        refused = client.post(f"{url}/fire", headers=ANA)
        assert (refused.status_code, refused.json()["code"]) == (503, "not_recorded")
        assert len(read_topic(shard.servers, shard.timers)) == 2


def test_dead_letters_and_receipts_of_another_team_are_not_listed(
    config: Path, shard: SparklessShard
) -> None:
    now_ms = SystemClock().now_ms()
    bills = shard.settings.timer.topics[1]
    receipts = shard.settings.timer.receipts_topic
    assert receipts is not None
    for place, topic in enumerate((shard.timers, bills, shard.timers, "gone")):
        source = f"{topic}-0@{place}"
        ends: list[Header] = [("TIMER_ERROR_CODE", b"expired"), ("TIMER_SOURCE", source.encode())]
        shard.send(shard.settings.dead_letter_topic, 0, (b"k", b"v", ends))
        receipt = {"source": source, "target": "x", "target_partition": 0, "due_ms": now_ms}
        shard.send(receipts, 0, (b"id", json.dumps(receipt).encode(), []))
    with api(config) as (client, _):
        for headers, topic, count in ((ANA, shard.timers, 2), (BEN, bills, 1)):
            letters = client.get("/v1/dead-letters?limit=1", headers=headers).json()
            shown = [*letters["letters"]]
            while letters["next"]:
                parameters = {"limit": 1, "page": letters["next"]}
                letters = client.get("/v1/dead-letters", params=parameters, headers=headers).json()
                shown += letters["letters"]
            listed = client.get("/v1/receipts", headers=headers).json()["receipts"]
            for rows in (shown, listed):
                assert [each["source"].rpartition("-")[0] for each in rows] == [topic] * count
        place = shown[0]["offset"]
        assert client.get(f"/v1/dead-letters/0/{place}", headers=BEN).status_code == 200
        hidden = client.get(f"/v1/dead-letters/0/{place}", headers=ANA)
        assert (hidden.status_code, hidden.json()["code"]) == (404, "no_such_letter")


def test_no_timer_can_have_the_topic_of_changes_as_its_target(
    config: Path, shard: SparklessShard
) -> None:
    """Its record would be delivered with duewheel's rights, and forge a change."""
    topic = shard.settings.serve.changes_topic
    new = {"topic": topic, "delay": "1m", "value": "{}", "timer_topic": shard.timers}
    with api(config) as (client, _):
        refused = client.post("/v1/timers", json=new, headers=ANA)
        assert "(forbidden_target)" in refused.json()["detail"]
    (ended,) = (each for each in changes(shard) if each["state"] == "ended")
    assert (ended["status"], ended["code"]) == (422, "invalid_request")


def test_another_topic_than_the_shards_takes_no_records(
    config: Path, shard: SparklessShard
) -> None:
    """Timers may have it as their target, and would forge records in it."""
    assert not is_open_to_producers(shard.settings, f"{shard.settings.app.id}.changes")
    assert is_open_to_producers(shard.settings, f"{shard.settings.app.id}.other")
