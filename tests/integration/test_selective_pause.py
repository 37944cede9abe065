"""`duewheel pause` and `resume` of a target and of a timer topic, on a real broker."""

from __future__ import annotations

import json
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaProducer
from tests.harness.launcher import run, wait_until
from tests.harness.reader import read_topic
from tests.harness.served import (
    CHANGING,
    TOKEN,
    bearer,
    served,
)
from tests.harness.sparkless_shard import Message, Restartable, running, timer, until

from duewheel.clock import SystemClock
from duewheel.serve.access import Access

pytestmark = pytest.mark.kafka

NOW = ("TIMER_DELAY_MS", b"0")


def values(shard: Restartable, topic: str) -> list[bytes]:
    return sorted(record.value for record in read_topic(shard.servers, topic))


def paused(config: Path, *words: str) -> dict[str, Any]:
    done = run(config, *words, "--output", "json")
    assert (done.returncode, done.stderr) == (0, "")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def pump_until_paused(shard: Restartable, topic: str) -> None:
    wait_until(lambda: topic in str(shard.paused()), "never noticed", every_s=0.1)


@pytest.mark.slow
def test_a_paused_target_gets_nothing_over_a_restart_and_everything_once_afterwards(
    config: Path,
) -> None:
    with running(config) as shard:
        other = f"{shard.target}.2"
        with shard.admin() as admin:
            admin.create_topic(other, 1)
        done = paused(config, "pause", "--target", shard.target, "--note", "their database")
        assert (done["paused"], done["until_ms"], done["note"]) == (True, None, "their database")
        pump_until_paused(shard, shard.target)
        waits = [timer(shard, b"%d" % n, NOW) for n in range(3)]
        goes: Message = None, b"to another", [("REAL_TOPIC", other.encode()), NOW]
        shard.send(shard.timers, 0, *waits, goes)
        until(shard, lambda: values(shard, other) == [b"to another"])
        assert shard.delivered() == []
        assert sum(shard.statistics.parked.values()) >= 3
    with running(config) as shard:
        for _ in range(3):
            time.sleep(1)
            shard.pump()
        assert shard.delivered() == [], "the pause is known before the first delivery"
        assert paused(config, "resume", "--target", shard.target)["paused"] is False
        shard.pump_until([b"0", b"1", b"2"])
        assert shard.statistics.delivered == 3


def test_a_warning_names_a_target_that_no_timer_can_have_yet(config: Path) -> None:
    """It may get its topic later, so it is paused all the same."""
    with running(config) as shard:
        warnings = {
            f"{shard.target}.typo": f"Kafka has no topic '{shard.target}.typo'",
            "orders.denied": "no timer topic is open for 'orders.denied', and Kafka has no topic",
        }
        for name, why in warnings.items():
            done = run(config, "pause", "--target", name)
            assert done.returncode == 0
            assert ["name", name] in [shown.split() for shown in done.stdout.splitlines()]
            (line,) = done.stderr.splitlines()
            assert line.startswith("duewheel: paused, but ") and why in line
        with served(shard.settings, Access(CHANGING)) as client:
            typo = f"/v1/pause/target/{shard.target}.typo"
            done = client.post(typo, json={}, headers=bearer(TOKEN)).json()
            assert warnings[f"{shard.target}.typo"] in str(done["doubts"])


def test_the_pause_of_a_timer_topic_ends_by_itself(config: Path) -> None:
    with running(config) as shard:
        done = paused(config, "pause", "--timer-topic", shard.timers, "--for", "4s")
        pump_until_paused(shard, shard.timers)
        shard.send(shard.timers, 1, timer(shard, b"later", NOW))
        shard.pump()
        assert shard.delivered() == []
        shard.pump_until([b"later"])
        assert SystemClock().now_ms() >= done["until_ms"]


def test_a_tag_is_paused_over_http(config: Path) -> None:
    with running(config) as shard, served(shard.settings, Access(CHANGING)) as client:
        client.headers.update(bearer(TOKEN))
        done = client.post("/v1/pause/tag/spring", json={"note": "too early"}).json()
        assert done.items() >= {"kind": "tag", "name": "spring", "paused": True}.items()
        assert (done["was_paused"], done["former_until_ms"], done["former_note"]) == (
            False,
            None,
            "",
        )
        again = client.post("/v1/pause/tag/spring", json={"duration": "2h", "note": "late"}).json()
        assert (again["was_paused"], again["former_note"]) == (True, "too early")
        third = client.post("/v1/pause/tag/spring", json={}).json()
        assert (third["former_until_ms"], third["former_note"]) == (again["until_ms"], "late")
        pump_until_paused(shard, "spring")
        key, value, headers = timer(shard, b"tagged", NOW)
        shard.send(shard.timers, 0, (key, value, [*headers, ("TIMER_TAG", b"spring")]))
        shard.send(shard.timers, 0, timer(shard, b"other", NOW))
        until(shard, lambda: shard.delivered() == [b"other"])
        until(shard, lambda: client.get("/v1/timers?tag=spring").json()["timers"] != [])
        resumed = client.post("/v1/resume/tag/spring").json()
        assert (resumed["paused"], resumed["was_paused"], resumed["former_note"]) == (
            *(False, True),
            "",
        )
        shard.pump_until([b"other", b"tagged"])
        refused = client.post(f"/v1/pause/target/{shard.timers}", json={})
        assert (refused.status_code, refused.json()["code"]) == (422, "invalid_request")


def test_a_pause_is_seen_behind_another_writer_s_open_transaction(config: Path) -> None:
    with running(config) as shard:
        producer = KafkaProducer(bootstrap_servers=shard.servers, transactional_id=shard.target)
        with closing(producer):
            producer.init_transactions()
            producer.begin_transaction()
            producer.send(shard.settings.state_topic, b"", b"another", partition=0).get(timeout=30)
            paused(config, "pause", "--target", shard.target)
            pump_until_paused(shard, shard.target)
            producer.abort_transaction()


def test_nothing_is_paused_before_init(config: Path) -> None:
    """A topic with the broker's defaults would take the record, and no shard would read it."""
    done = run(config, "pause", "--target", "orders")
    assert done.returncode == 2
    assert "has no topic" in done.stderr and "duewheel init" in done.stderr
