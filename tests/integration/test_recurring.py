"""Recurring schedules on a real broker: the process `duewheel recur`, killed, beside a shard."""

from __future__ import annotations

import re
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from fastapi.testclient import TestClient
from kafka import KafkaProducer
from tests.harness.config_file import write_config
from tests.harness.launcher import events, launch, tail, wait_until
from tests.harness.reader import read_topic
from tests.harness.served import LOCAL, TOKEN, bearer
from tests.harness.shared_broker import SharedBroker
from tests.harness.sparkless_shard import SparklessShard

from duewheel.api.requests import MessageHeader
from duewheel.api.schedules import NewSchedule, ScheduleSummary
from duewheel.cli.schedules import schedule
from duewheel.clock import SystemClock
from duewheel.config.settings import load
from duewheel.errors import ConfigError
from duewheel.factory import StoppableClock
from duewheel.kafka.topics.admin import KafkaAdmin
from duewheel.ops import schedules
from duewheel.osutil.child_process import Child
from duewheel.recurring.kafka_store import KafkaStore
from duewheel.recurring.scheduler import Scheduler
from duewheel.serve.access import Access
from duewheel.serve.app import make_app

pytestmark = pytest.mark.kafka

SECOND_MS = 1_000
WITHIN_S = 120.0  # a shard that has few processors takes half a minute for a cancel


@pytest.fixture
def config(broker: SharedBroker, tmp_path: Path, unique_name: Callable[[str], str]) -> Path:
    app = unique_name("app")[-40:].lstrip("-")
    timer = {"reply_topic": f"{app}.replies", "schedules_topic": f"{app}.schedules"}
    shard = {"take_over_after": "3s"}
    log = {"format": "json"}
    servers = broker.bootstrap_servers
    return write_config(tmp_path, servers, app, timer=timer, shard=shard, log=log)


class Pumped:
    """A shard whose ingest and dequeue work in a thread."""

    def __init__(self, config: Path) -> None:
        self.shard = SparklessShard(load(config), 1)
        self._ending = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._pump, daemon=True)
        self._thread.start()

    def _pump(self) -> None:
        try:
            while not self._ending.is_set():
                self.shard.pump()
        except BaseException as error:
            self._failure = error
            raise

    def delivered(self) -> list[Any]:
        assert self._failure is None
        return read_topic(self.shard.servers, self.shard.target)

    def close(self) -> None:
        self._ending.set()
        self._thread.join()
        self.shard.close()


@pytest.fixture
def pumped(config: Path) -> Iterator[Pumped]:
    with closing(Pumped(config)) as made:
        yield made


def due(records: list[Any]) -> list[int]:
    """The instants of firings, in the order in which they left in each partition."""
    return [int(dict(record.headers)["TIMER_DUE_MS"]) for record in records]


def settled(row: ScheduleSummary, log: Path) -> ScheduleSummary:
    """A change that the scheduler has applied."""
    assert row.applied, f"{row}\n{tail(log)}"
    return row


def test_each_instant_leaves_once_though_the_scheduler_is_killed(
    config: Path, pumped: Pumped
) -> None:
    kills(config, pumped, 1)


@pytest.mark.crash_matrix
def test_many_kills(config: Path, pumped: Pumped) -> None:
    kills(config, pumped, 15)


def owner_of(running: list[Child], log: Path) -> Child:
    """The scheduler that has opened the schedules last, once it is one of these. On a busy host a
    standby may take over from one that lives.
    """
    found: list[Child] = []

    def look() -> bool:
        pids = [each["pid"] for each in events(log, "schedules opened")[-1:]]
        found[:] = [each for each in running if each.pid in pids]
        return bool(found)

    wait_until(look, lambda: tail(log))
    return found[0]


def kills(config: Path, pumped: Pumped, number: int) -> None:
    """A firing each second; the scheduler is killed so often, and a standby takes over. Then a
    pause at the last moment, a resume, a stop.
    """
    settings, log = load(config), config.with_name("recur.log")
    running = [launch(config, "recur"), launch(config, "recur")]
    header = MessageHeader(name="a", value="b")
    message = {"target": pumped.shard.target, "value": "tick", "key": "k", "headers": [header]}
    new = NewSchedule.of({"every": "1s", "missed": "all", **message})
    row = settled(schedules.put(settings, "tick", new, WITHIN_S), log)
    assert row.state == "active" and row.every_ms == SECOND_MS
    assert schedules.overview(settings).scheduler == "running"
    wait_until(lambda: len(pumped.delivered()) >= 2, lambda: tail(log))
    for kill in range(number):
        owner = owner_of(running, log)
        assert owner.end(signal.SIGKILL, WITHIN_S)
        running.remove(owner)
        if kill + 1 < number:
            running.append(launch(config, "recur"))
    owner_of(running, log)
    # The firings ahead of a change are cancelled, or have left; not both.
    assert settled(schedules.pause(settings, "tick", WITHIN_S, on=True), log).state == "paused"
    paused = pumped.delivered()
    assert settled(schedules.pause(settings, "tick", WITHIN_S, on=False), log).state == "active"
    wait_until(lambda: len(pumped.delivered()) >= len(paused) + 2, lambda: tail(log))
    (row,) = schedules.overview(settings).schedules
    assert row.last_due_ms is not None and row.next_due_ms is not None
    assert max(due(paused)) <= row.last_due_ms < row.next_due_ms
    settled(schedules.stop(settings, "tick", WITHIN_S), log)
    assert schedules.overview(settings).schedules == []
    records = pumped.delivered()
    instants = due(records)
    assert len(set(instants)) == len(instants)
    assert all(record.timestamp >= at for record, at in zip(records, instants, strict=True))
    assert {(record.key, record.value) for record in records} == {(b"k", b"tick")}
    assert all(("a", b"b") in record.headers for record in records)
    before = sorted(due(paused))
    assert before == list(range(before[0], before[-1] + 1, SECOND_MS))
    assert pumped.shard.letters() == []
    for each in running:
        assert each.end(signal.SIGTERM, WITHIN_S) and each.exit_code == 0


def test_before_init_each_operation_names_the_missing_topic(config: Path) -> None:
    new = ("--every", "90s", "--target", "orders", "--value", "v", "--no-wait")
    named = [("next", "a"), *((each, "a", "--no-wait") for each in ("pause", "resume", "stop"))]
    for words in [("set", "a", *new), ("list",), *named]:
        error = command(config, *words).exception
        assert isinstance(error, ConfigError), (words, error)
        assert re.search(r"no topic '.*[.]schedules': `duewheel init` creates it", str(error))
    app = make_app(load(config), SystemClock(), Access(TOKEN.encode()))
    with TestClient(app, base_url=LOCAL, headers=bearer(TOKEN)) as client:
        refused = client.get("/v1/schedules")
    assert (refused.status_code, refused.json()["code"]) == (422, "invalid_request")


def test_what_is_refused_and_shown(config: Path) -> None:
    settings = load(config)
    with KafkaAdmin(settings.kafka.client_options("admin")) as admin:
        admin.init_topics(settings)
    message: dict[str, Any] = {"target": "orders", "value": "v"}
    for wrong, reason in (
        ({"cron": "0 8 * * *", "zone": "Nowhere/City"}, "is no time zone"),
        ({"cron": "0 8 31 2 *"}, "no cron expression"),
        ({}, "either a cron expression or an interval"),
    ):
        with pytest.raises(ConfigError, match=reason):
            schedules.put(settings, "a", NewSchedule.of({**wrong, **message}), 0)
    itself = NewSchedule(cron="* * * * *", target=settings.timer.topics[0], value="")
    with pytest.raises(ConfigError, match="is the timer topic itself"):
        schedules.put(settings, "a", itself, 0)
    with pytest.raises(ConfigError, match="there is no schedule"):
        schedules.pause(settings, "nobody", 0, on=True)
    night = NewSchedule.of({"cron": "30 2 * * *", "zone": "Europe/Berlin", **message})
    row = schedules.put(settings, "night", night, 0)
    assert not row.applied
    shown = command(config, "list").output
    assert "night  active  30 2 * * * Europe/Berlin  to orders" in shown
    assert "not applied yet" in shown
    lines = command(config, "next", "night").output.splitlines()
    assert len(lines) == 10 and all("T02:30:00+0" in each for each in lines)
    assert command(config, "pause", "night", "--no-wait").exit_code == 0
    done = command(config, "next", "night")
    assert len(done.stdout.splitlines()) == 10
    assert "night is paused: none of these fires before `duewheel schedule resume`" in done.stderr
    done = command(config, "set", "b", "--every", "90", "--target", "orders", "--value", "v")
    assert isinstance(done.exception, ConfigError) and "is no duration" in str(done.exception)
    assert command(config, "stop", "night", "--no-wait").exit_code == 0
    done = command(config, "list")
    assert done.stdout == "" and "no scheduler runs" in done.stderr


def test_a_shard_whose_timer_topics_are_a_pattern(
    broker: SharedBroker, tmp_path: Path, unique_name: Callable[[str], str]
) -> None:
    app = unique_name("app")[-40:].lstrip("-")
    topics = {"topics": [], "topics_pattern": f"{app}[.]timers[.].*"}
    own = {"reply_topic": f"{app}.replies", "schedules_topic": f"{app}.schedules"}
    config = write_config(tmp_path, broker.bootstrap_servers, app, timer=topics | own)
    settings, timers = load(config), f"{app}.timers.eu"
    with KafkaAdmin(settings.kafka.client_options("admin")) as admin:
        admin.create_topic(timers, 2)
        admin.init_topics(settings)
    running = launch(config, "recur")
    new = NewSchedule(every="1s", target="orders", value="v")
    with pytest.raises(ConfigError, match="name the timer topic"):
        schedules.put(settings, "tick", new, 0)
    new = new.model_copy(update={"timer_topic": timers})
    assert schedules.put(settings, "tick", new, WITHIN_S).timer_topic == timers
    servers, log = broker.bootstrap_servers, config.with_name("recur.log")
    wait_until(lambda: len(read_topic(servers, timers)) > 1, lambda: tail(log))
    # No shard runs that would reply to cancels.
    assert schedules.pause(settings, "tick", 0, on=True).state == "paused"
    assert schedules.stop(settings, "tick", 0).state == "stopped"
    assert running.end(signal.SIGTERM, WITHIN_S) and running.exit_code == 0


def command(config: Path, *words: str) -> Result:
    return CliRunner().invoke(schedule, [*words, "--config", str(config)])


def test_the_same_by_http(config: Path) -> None:
    """Without a scheduler: each change is accepted, and not in effect."""
    settings = load(config)
    with KafkaAdmin(settings.kafka.client_options("admin")) as admin:
        admin.init_topics(settings)
    app = make_app(settings, SystemClock(), Access(TOKEN.encode()))
    path, now = "/v1/schedules/poll", {"wait": 0}
    with TestClient(app, base_url=LOCAL, headers=bearer(TOKEN)) as client:
        nothing: dict[str, Any] = {"schedules": [], "scheduler": "none", "heartbeat_ms": None}
        assert client.get("/v1/schedules").json() == nothing
        new = {"every": "90s", "target": "orders", "value_base64": "/w==", "missed": "all"}
        made = client.put(path, json=new, params=now)
        assert (made.status_code, made.json()["state"]) == (202, "active")
        (row,) = client.get("/v1/schedules").json()["schedules"]
        assert (row["every_ms"], row["missed"], row["applied"]) == (90_000, "all", False)
        upcoming = client.get(f"{path}/next").json()["due_ms"]
        assert len(upcoming) == 10 and upcoming[1] - upcoming[0] == 90_000
        assert client.post(f"{path}/pause", params=now).json()["state"] == "paused"
        assert client.post(f"{path}/resume", params=now).json()["state"] == "active"
        wrong = client.put(path, json={**new, "cron": "* * * * *"}, params=now)
        assert (wrong.status_code, wrong.json()["code"]) == (422, "invalid_request")
        assert client.delete(path, params=now).json()["state"] == "stopped"
        missing = client.post(f"{path}/pause", params=now)
        assert (missing.status_code, missing.json()["code"]) == (404, "no_such_schedule")


class Set(StoppableClock):
    """This host's, which may be set."""

    def __init__(self) -> None:
        super().__init__(threading.Event())
        self.ahead_ms = 0

    def now_ms(self) -> int:
        return super().now_ms() + self.ahead_ms


def test_a_clock_that_is_ahead_for_a_turn_skips_no_firing(config: Path) -> None:
    """Nor does a record of key `owner` that no scheduler has written end it."""
    settings = load(config)
    timers = settings.timer.topics[0]
    with KafkaAdmin(settings.kafka.client_options("admin")) as admin:
        admin.init_topics(settings, partitions=1)
    topic = settings.timer.schedules_topic
    producer = KafkaProducer(bootstrap_servers=settings.kafka.servers)
    for foreign in (b"\xff", b"[]", b'{"owner": 1}'):
        producer.send(topic, foreign, key=b"owner", partition=0).get(timeout=30)
        clock = Set()
        with closing(KafkaStore(settings, clock)) as store:
            Scheduler(store, clock).open()
    producer.close()
    new = NewSchedule(every="1s", target="orders", value="v")
    schedules.put(settings, "tick", new, 0)
    with closing(KafkaStore(settings, clock)) as store:
        scheduler = Scheduler(store, clock)
        scheduler.open()
        scheduler.turn()
        written, missed = scheduler.statistics.firings, scheduler.statistics.missed_steps
        assert written
        clock.ahead_ms = 86_400_000
        scheduler.turn()
        assert scheduler.statistics.firings == written
        clock.ahead_ms = 0
        scheduler.turn()
        assert scheduler.statistics.missed_steps == missed
    firings = read_topic(settings.kafka.servers, timers)
    ahead = sorted(int(dict(each.headers)["TIMER_DELIVER_MS"]) for each in firings)
    assert ahead == list(range(ahead[0], ahead[-1] + 1, SECOND_MS))


def test_a_schedule_whose_firings_would_become_dead_letters_is_refused(config: Path) -> None:
    settings = load(config, {"timer": {"max_delay": "59s"}})
    new = NewSchedule(every="1s", target="orders", value="v")
    with pytest.raises(ConfigError, match="max_delay"):
        schedules.accepted_schedule(settings, "tick", new)
    longer = load(config, {"timer": {"max_delay": "60s"}})
    assert schedules.accepted_schedule(longer, "tick", new).name == "tick"
