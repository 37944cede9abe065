"""Schedules of a former `duewheel recur`, moved to recurring timers on a real broker. The records
that it left are fixed samples.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from kafka import KafkaProducer
from tests.harness.config_file import write_config
from tests.harness.reader import read_topic
from tests.harness.shared_broker import SharedBroker
from tests.harness.sparkless_shard import SparklessShard, opened_once, until

from duewheel.cli.schedules import schedule
from duewheel.clock import SystemClock
from duewheel.config.settings import load
from duewheel.errors import ConfigError, PublishDoubt
from duewheel.kafka.ledger import producer_internals, transactional_producer
from duewheel.kafka.topics.admin import KafkaAdmin
from duewheel.kafka.topics.requirements import Requirement, TopicPlan
from duewheel.ops.schedule_move import move

pytestmark = pytest.mark.kafka

SAMPLE = {
    "revision": "5f0c01ab",
    "timer_topic": "timers",
    "target": "orders",
    "cron": "0 8 * * MON-FRI",
    "zone": "Europe/Berlin",
    "interval_ms": None,
    "start_ms": 1_800_000_000_000,
    "key": "aw==",
    "value": "dg==",
    "headers": [["a", "Yg=="]],
    "missed": "skip",
    "paused": False,
}
POSITION = {"revision": "5f0c01ab", "timer_topic": "timers", "done_ms": 0, "fired_ms": None}
OWNER = json.dumps({"owner": "0a1b2c3d4e5f6071"}).encode()
STEP_MS = 1_000


class Former:
    """A shard, and the schedules topic that `recur` has left."""

    def __init__(self, broker: SharedBroker, folder: Path, app: str, *, recurring: bool = True):
        topic = {f"{app}.timers": {"recurring": recurring}}
        servers = broker.bootstrap_servers
        sections: dict[str, Any] = {
            "timer": {"topic": topic, "reply_topic": f"{app}.replies"},
            "shard": {"take_over_after": "3s"},
        }
        self.config = write_config(folder, servers, app, **sections)
        self.settings = load(self.config)
        self.topic, self.timers = f"{app}.schedules", f"{app}.timers"
        self.producer = KafkaProducer(bootstrap_servers=servers)
        compacted = Requirement("cleanup.policy", "compact", "as `init` made it")
        stamped = Requirement("message.timestamp.type", "LogAppendTime", "likewise")
        with KafkaAdmin(self.settings.kafka.client_options("admin")) as admin:
            admin.create([TopicPlan(self.topic, (compacted, stamped), 1)])

    def write(self, key: str, value: bytes | None) -> None:
        self.producer.send(self.topic, value, key.encode(), partition=0).get(timeout=30)

    def schedule(self, name: str, done_ms: int, ahead: list[int] | None = None, **own: Any) -> None:
        """As `recur` had them: a schedule that has fired so far."""
        place = {"timer_topic": self.timers, "target": f"{self.timers[:-7]}.orders"}
        self.write(f"schedule/{name}", json.dumps({**SAMPLE, **place, **own}).encode())
        written = {"done_ms": done_ms, "ahead": [[at, 0] for at in ahead or []]}
        self.write(f"position/{name}", json.dumps({**POSITION, **place, **written}).encode())

    def left(self) -> set[bytes]:
        """Keys of records that were not deleted."""
        newest = {
            each.key: each.value for each in read_topic(self.settings.kafka.servers, self.topic)
        }
        return {key for key, value in newest.items() if value and key.startswith((b"s", b"p"))}

    def move(self, *words: str) -> Result:
        given = ("move", "--from", self.topic, "--config", str(self.config), *words)
        return CliRunner().invoke(schedule, given)

    def rows(self, *words: str) -> dict[str, dict[str, Any]]:
        lines = self.move("--output", "json", *words).stdout.splitlines()
        return {row["name"]: row for row in map(json.loads, lines)}


@pytest.fixture
def app(unique_name: Callable[[str], str]) -> str:
    return unique_name("app")[-40:].lstrip("-")


def test_each_instant_once_though_the_move_is_killed(
    broker: SharedBroker, tmp_path: Path, app: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Missed instants of 20 s and those of the next 20 s are more than two transactions take."""
    monkeypatch.setattr(move, "_RECORDS_MAX", 10)
    monkeypatch.setattr(move, "AHEAD_MS", 20_000)
    monkeypatch.setattr(move, "_IN_TIME_MS", 18_000)
    former = Former(broker, tmp_path, app)
    with closing(SparklessShard(former.settings, 1)) as shard:
        now_ms = SystemClock().now_ms()
        begin_ms = now_ms - 40_000
        written_ms = begin_ms + 20 * STEP_MS  # of these the last two are pending timers
        ahead = [written_ms - STEP_MS, written_ms]
        every = {"cron": None, "interval_ms": STEP_MS, "start_ms": begin_ms, "missed": "all"}
        former.schedule("tick", ahead[0] - STEP_MS, ahead, **every)
        former.schedule("daily", now_ms, paused=True, value=None)
        former.write("schedule/odd", b'{"revision": 5}')
        former.write("owner", OWNER)
        refused = former.move()
        assert isinstance(refused.exception, ConfigError), refused.output
        assert "stop every instance" in str(refused.exception)
        former.write("owner", None)

        shown = former.rows("--dry-run")
        assert {name: row["state"] for name, row in shown.items()} == {
            "daily": "paused",
            "odd": "stays",
            "tick": "active",
        }
        assert read_topic(shard.servers, shard.timers) == []

        for committed in (True, False):
            with monkeypatch.context() as killed:
                dying = _killed_in_second(committed=committed)
                killed.setattr(transactional_producer, "commit_all", dying)
                killed.setattr(transactional_producer, "open_producer", opened_once())
                done = former.move()
                assert isinstance(done.exception, PublishDoubt), (committed, done.output)
            # "daily" went in the first transaction, the second has firings and a position.
            assert former.left() == {b"schedule/odd", b"schedule/tick", b"position/tick"}
        rows = former.rows()
        assert rows.keys() == {"odd", "tick"} and "cannot be read" in rows["odd"]["error"]
        assert former.left() == {b"schedule/odd"}
        assert former.rows().keys() == {"odd"}

        seeds = [dict(r.headers) for r in read_topic(shard.servers, shard.timers)]
        seeds = [headers for headers in seeds if "TIMER_STARTS_MS" in headers]
        assert {headers["UNIQ_KEY"] for headers in seeds} == {b"daily", b"tick"}
        (starts_ms,) = {int(h["TIMER_STARTS_MS"]) for h in seeds if h["UNIQ_KEY"] == b"tick"}
        assert starts_ms == rows["tick"]["next_due_ms"]
        wanted = range(written_ms + STEP_MS, starts_ms + 3 * STEP_MS, STEP_MS)

        def fired() -> list[int]:
            found = [dict(each.headers) for each in read_topic(shard.servers, shard.target)]
            return sorted(int(headers["TIMER_DUE_MS"]) for headers in found)

        until(shard, lambda: len(fired()) >= len(wanted))
        assert fired()[: len(wanted)] == list(wanted)
        assert shard.letters() == []
        for record in read_topic(shard.servers, shard.target):
            assert (record.key, record.value) == (b"k", b"v") and ("a", b"b") in record.headers


def _killed_in_second(*, committed: bool) -> Callable[..., Any]:
    """A `commit_all` in whose second call the process ends, before or after the commit."""
    calls, whole = 0, transactional_producer.commit_all

    def killed(producer: Any, batches: Any, now_ms: int, deadline: Any, *others: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls != 2 or committed:
            outcomes = whole(producer, batches, now_ms, deadline, **others)
        else:
            producer.begin_transaction()
            queued = producer_internals.enqueue(producer, batches, now_ms)
            outcomes = producer_internals.await_outcomes(producer, queued, deadline)
        if calls == 2:
            raise ConnectionError("gone")
        return outcomes

    return killed


def test_a_timer_topic_that_is_not_open_is_refused_before_anything_is_written(
    broker: SharedBroker, tmp_path: Path, app: str
) -> None:
    former = Former(broker, tmp_path, app, recurring=False)
    former.schedule("daily", 5)
    error = former.move().exception
    assert isinstance(error, ConfigError) and "recurring = true" in str(error)
    assert former.left() == {b"schedule/daily", b"position/daily"}


def test_a_topic_that_does_not_exist_is_named(
    broker: SharedBroker, tmp_path: Path, app: str
) -> None:
    former = Former(broker, tmp_path, app)
    former.topic = f"{app}.elsewhere"
    assert f"{app}.elsewhere" in str(former.move().exception)
