"""The dequeue process, `dlq replay` and DelayProducer with a broker that fails or is down.

As in test_broker_faults.py, through a proxy; here where a fault meets the life of a process: one
that is killed, stands still, or starts while the broker is away.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from kafka import KafkaProducer, TopicPartition
from tests.harness.config_file import write_config
from tests.harness.fault_judge import (
    GIVE_UP_S,
    PARTITIONS,
    FaultTopics,
    Judge,
)
from tests.harness.fault_proxy import Action, Fault, FaultProxy
from tests.harness.launcher import launch, tail, wait_until
from tests.harness.reader import read_committed
from tests.harness.shared_broker import SharedBroker

from duewheel.api.dead_letters import ReplayFilter
from duewheel.checkpoints.local_state import dequeue_has_decided
from duewheel.checkpoints.process_role import Role
from duewheel.client import DelayProducer
from duewheel.clock import SystemClock
from duewheel.config.settings import Settings, load
from duewheel.errors import PublishDoubt
from duewheel.kafka.topics.admin import KafkaAdmin
from duewheel.ops.dead_letters import replay
from duewheel.osutil.child_process import Child
from duewheel.wheel.append.engine import Engine
from duewheel.wheel.recovery.rebuild import apply_recovery
from duewheel.wheel.storage.data_directory import DataDirectory
from duewheel.wheel.storage.full_check import check

pytestmark = pytest.mark.kafka

TIMEOUT_S = 2.0  # of transactions


@pytest.fixture
def topics(unique_name: Callable[[str], str]) -> FaultTopics:
    return FaultTopics.named(unique_name("app")[-40:].lstrip("-"))


@pytest.fixture
def config(tmp_path: Path, proxy: FaultProxy, topics: FaultTopics) -> Path:
    """A shard that knows the proxy only."""
    path = write_config(
        tmp_path,
        proxy.bootstrap_servers,
        topics.timers.removesuffix(".timers"),
        dequeue={
            "chunk_records": 40,
            "transaction_timeout_ms": round(TIMEOUT_S * 1000),
            "call_deadline": "1500ms",
        },
        log={"format": "json"},
    )
    settings = load(path)
    with KafkaAdmin(settings.kafka.client_options("admin")) as admin:
        admin.init_topics(settings, partitions=PARTITIONS)
        for target in (topics.orders, topics.bills):
            admin.create_topic(target, 4)
    return path


class Process:
    """`duewheel dequeue`, and the engine of ingest in this process."""

    def __init__(self, config: Path, broker: SharedBroker, topics: FaultTopics) -> None:
        self.settings: Settings = load(config)
        self._config = config
        self._judge = Judge(broker.bootstrap_servers, topics, 0, SystemClock())
        self._child: Child | None = None
        self._directory: DataDirectory | None = None
        self._engine: Engine | None = None

    @property
    def child(self) -> Child:
        assert self._child is not None
        return self._child

    def start(self) -> None:
        self._child = launch(self._config, "dequeue")

    def schedule(self) -> None:
        """Put timers in that are due now."""
        if self._engine is None:
            wait_until((self.settings.storage.data_dir / "state").exists, "no data directory")
            self._directory = DataDirectory.start(
                self.settings.storage.data_dir, self.settings.wheel, Role.INGEST
            )
            state, path = self._directory.state, self._directory.path
            wait_until(
                lambda: dequeue_has_decided(state, path) is not None, "dequeue has not started"
            )
            record = dequeue_has_decided(state, path)
            assert record is not None
            apply_recovery(self._directory, record, lambda _: {})
            self._engine = Engine(self._directory, SystemClock())
        self._judge.append(self._engine, self.settings.timer.precision_ms)

    def await_delivery(self) -> None:
        """Until all that was put in has arrived."""
        wait_until(lambda: self._judge.all_arrived, "not delivered in time")

    def stop(self) -> None:
        """SIGTERM, and judge."""
        assert self._directory is not None
        assert self.child.end(signal.SIGTERM, GIVE_UP_S)
        assert self.child.exit_code == 0, self._said()
        self._judge.judge(self._directory)
        self.close()
        report = check(self.settings.storage.data_dir, self.settings.wheel)
        assert report.ok, report.findings

    def close(self) -> None:
        if self._child is not None:
            self._child.stop(0)
        directory, self._directory = self._directory, None
        if directory is not None:
            directory.stop()

    def _said(self) -> str:
        return tail(self._config.with_name("dequeue.log"))


@pytest.fixture
def process(config: Path, broker: SharedBroker, topics: FaultTopics) -> Iterator[Process]:
    process = Process(config, broker, topics)
    yield process
    process.close()


def await_commit(commit: Fault, *, done: bool) -> None:
    """Until the proxy has it, or the broker has answered it."""
    wait_until(lambda: (commit.done if done else commit.hits) == 1, f"not {commit}")


@pytest.mark.slow
def test_one_process_lives_through_it_all(process: Process, proxy: FaultProxy) -> None:
    """A start and a delivery while the broker is away, and a pause longer than a transaction."""
    proxy.away()
    process.start()
    time.sleep(1.5)
    proxy.back()
    process.schedule()
    process.await_delivery()

    # The broker gives the transaction up while its process stands still, and hears the commit then.
    commit = proxy.inject(Fault("EndTxn", Action.HOLD, seconds=GIVE_UP_S))
    process.schedule()
    await_commit(commit, done=False)
    os.kill(process.child.pid, signal.SIGSTOP)
    time.sleep(TIMEOUT_S + 1.5)  # it looks once a second
    proxy.clear()
    await_commit(commit, done=True)
    os.kill(process.child.pid, signal.SIGCONT)
    process.await_delivery()

    proxy.away()
    process.schedule()
    time.sleep(1.5 * TIMEOUT_S)
    proxy.back()
    process.await_delivery()
    process.stop()


@pytest.mark.slow
def test_processes_killed_over_a_commit_whose_outcome_they_never_learn(
    process: Process, proxy: FaultProxy
) -> None:
    """It comes to the broker after the kill: before there is an heir, and when it is too late."""
    process.start()
    process.schedule()
    process.await_delivery()
    for heir_first in (False, True):
        commit = proxy.inject(Fault("EndTxn", Action.HOLD, seconds=GIVE_UP_S))
        process.schedule()
        await_commit(commit, done=False)
        assert process.child.end(signal.SIGKILL, GIVE_UP_S)
        if not heir_first:
            proxy.clear()
            await_commit(commit, done=True)
        process.start()
        process.await_delivery()
        proxy.clear()
        await_commit(commit, done=True)
    process.stop()


REPLAYED = [
    Fault("EndTxn", Action.CUT_DONE),
    Fault("EndTxn", Action.HOLD_ANSWER, seconds=GIVE_UP_S),
    Fault("EndTxn", Action.HOLD, seconds=GIVE_UP_S),
    Fault("EndTxn", Action.REFUSE, 90),
    Fault("EndTxn", Action.MISREPORT, 90),
    Fault("Produce", Action.CUT_DONE),
    Fault("Produce", Action.REFUSE, 45),
    Fault("AddPartitionsToTxn", Action.REFUSE, 51, times=3),
]


def test_dead_letters_are_replayed_once_over_faults(
    config: Path, broker: SharedBroker, proxy: FaultProxy, topics: FaultTopics
) -> None:
    settings = load(config)
    producer = KafkaProducer(bootstrap_servers=broker.bootstrap_servers)
    headers = [
        ("TIMER_ERROR_CODE", b"unknown_target_topic"),
        ("TIMER_ERROR", b"it was not there"),
        ("REAL_TOPIC", topics.orders.encode()),
    ]
    for number, fault in enumerate(REPLAYED):
        for letter in range(20 * number, 20 * number + 20):
            source = ("TIMER_SOURCE", f"{topics.timers}-0@{letter}".encode())
            producer.send(topics.dead_letters, b"%d" % letter, headers=[*headers, source])
        producer.flush(30)
        placed = proxy.inject(fault)
        replayed = 0
        while placed.hits < fault.times or replayed == 0:
            with suppress(PublishDoubt):
                replay.replay(settings, SystemClock(), ReplayFilter(), dry_run=False)
                replayed += 1
        proxy.clear()
    producer.close()
    assert replay.replay(settings, SystemClock(), ReplayFilter(), dry_run=False).replayed == 0
    starts = {TopicPartition(topics.orders, partition): 0 for partition in range(4)}
    values = sorted(int(r.value) for r in read_committed(broker.bootstrap_servers, starts))
    assert values == list(range(20 * len(REPLAYED)))


# An answer that says "perhaps" is followed by the same record again, and the broker knows it.
SENT = [
    Fault("Produce", Action.CUT),
    Fault("Produce", Action.CUT_DONE),
    *(Fault("Produce", Action.REFUSE, code, times=2) for code in (6, 7, 19)),
    *(Fault("Produce", Action.MISREPORT, code) for code in (6, 7, 20)),
    Fault("Produce", Action.HOLD_ANSWER, seconds=0.5),
]


def test_timers_are_scheduled_once_over_faults(
    config: Path, broker: SharedBroker, proxy: FaultProxy, topics: FaultTopics
) -> None:
    assert config.exists()  # and so are the topics
    with DelayProducer(topics.timers, bootstrap_servers=proxy.bootstrap_servers) as producer:
        for number, fault in enumerate(SENT):
            placed = proxy.inject(fault)
            asked = [
                producer.schedule(topics.orders, b"%d" % value, key=b"k", delay="1h")
                for value in range(50 * number, 50 * number + 50)
            ]
            assert len({timer.result(GIVE_UP_S).offset for timer in asked}) == 50
            assert placed.hits == fault.times, fault
    starts = {TopicPartition(topics.timers, partition): 0 for partition in range(PARTITIONS)}
    values = [int(r.value) for r in read_committed(broker.bootstrap_servers, starts)]
    assert values == list(range(50 * len(SENT)))
