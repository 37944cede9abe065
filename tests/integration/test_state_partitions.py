"""A partition of the state topic for each shard, on a real broker: what is open in one holds up no
other, and an owner that writes behind an open transaction is not taken for dead.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from kafka import KafkaProducer
from tests.harness.application import Application
from tests.harness.progress_rows import partitions_of, progress_of
from tests.harness.reader import await_markers
from tests.harness.shared_broker import SharedBroker
from tests.harness.timer_shard import TimerShard

from duewheel import factory
from duewheel.checkpoints.local_state import Local
from duewheel.checkpoints.partition_limit import PARTITIONS_MAX
from duewheel.checkpoints.progress import record_key
from duewheel.config.settings import Settings
from duewheel.errors import ConfigError, Fenced, RecoveryPending, RecoveryRefused
from duewheel.kafka import shard_settings
from duewheel.kafka.publish.fenced_session import ShardNames
from duewheel.kafka.publish.publisher import KafkaPublisher
from duewheel.kafka.topics.admin import KafkaAdmin
from duewheel.kafka.transaction_limits import TransactionLimits
from duewheel.runtime import dequeue_process
from duewheel.threads import beside
from duewheel.wheel.publisher_protocol import publish_progress
from duewheel.wheel.recovery import startup
from duewheel.wheel.storage.cross_file_damage import survey_files
from duewheel.wheel.storage.data_directory import DataDirectory

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(120)]


@pytest.fixture
def application(tmp_path: Path, broker: SharedBroker) -> Application:
    return Application(tmp_path, broker)


@contextmanager
def open_transaction(application: Application, name: str, shard: int) -> Iterator[None]:
    """Somebody has written to a shard's partition of the state topic, and is not heard of again."""
    producer = KafkaProducer(
        bootstrap_servers=application.settings.kafka.servers,
        transactional_id=f"{application.name}.{name}",
        transaction_timeout_ms=60_000,
    )
    producer.init_transactions()
    producer.begin_transaction()
    where = {"topic": application.settings.state_topic, "partition": shard}
    producer.send(**where, key=record_key(shard), value=b"never committed").get(timeout=30)
    try:
        yield
    finally:
        producer.abort_transaction()
        producer.close()


def impatient(settings: Settings, application: Application) -> KafkaPublisher:
    """A publisher that waits far less long than an open transaction lasts."""
    of_id = shard_settings.transactional_id(settings)
    topics = settings.state_topic, settings.dead_letter_topic
    return KafkaPublisher(
        settings.kafka.client_options("producer"),
        ShardNames(of_id, *topics, settings.shard.index),
        application.clock,
        limits=TransactionLimits(start_deadline_s=8.0),
    )


def test_an_open_transaction_of_one_shard_holds_up_no_start_and_no_standby_of_another(
    application: Application,
) -> None:
    second = application.of(1, 2)
    begun = application.begin(2)[1]
    reader = factory.progress_reader(second, application.clock)
    with open_transaction(application, "dequeue.0", 0):
        publisher = impatient(second, application)
        assert publisher.start() == begun
        publish_progress(publisher, replace(begun, epoch=7))
        seen = reader.newest()
        assert seen is not None and seen.progress.epoch == 7
        publisher.close()
    reader.close()


def test_an_owner_that_writes_behind_an_open_transaction_is_not_silent(
    application: Application,
) -> None:
    application.begin(1)
    first, second = application.of(0, 1), application.path / "second"
    owner = application.local(0, 1)
    owner.start_dequeue(take_over=True)
    publisher = impatient(first, application)
    with open_transaction(application, "dlq-replay", 0):
        committed = publisher.peek()
        assert committed is not None
        patience_ms, ended = 2_000, threading.Event()

        def own() -> None:
            """All the time: on a busy host the heir's start outlasts its patience."""
            while not ended.is_set():
                tick(owner)

        owning = beside("the owner", own)
        since_ms = publisher.broker_now_ms()
        while publisher.broker_now_ms() < since_ms + 2 * patience_ms:
            time.sleep(0.1)
        standing_by = first.model_copy(
            update={"storage": first.storage.model_copy(update={"data_dir": second})}
        )
        heir = application.local(0, 1, standing_by, take_over_after_ms=patience_ms)
        with pytest.raises(RecoveryPending, match="its last heartbeat is"):
            heir.start_dequeue()
        ended.set()
        owning.result()  # it has not been fenced
    publisher.close()
    since_ms = publisher.broker_now_ms()
    while publisher.broker_now_ms() < since_ms + 2 * patience_ms:
        time.sleep(0.1)
    assert heir.dequeue is not None
    heir.dequeue.start()


def test_a_slow_instance_takes_over_from_an_owner_that_writes_all_the_time(
    application: Application, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An owner that took its transactional id back at once would always be quicker."""
    application.begin(1)
    first = application.of(0, 1)
    owner = application.local(0, 1)
    owner.start_dequeue(take_over=True)
    beside_it = first.model_copy(
        update={
            "storage": first.storage.model_copy(update={"data_dir": application.path / "second"})
        }
    )
    heir, attempts = application.local(0, 1, beside_it), list[float]()

    def slow_survey(directory: DataDirectory) -> Local:
        """Between the heir's taking of the id and its claim."""
        attempts.append(time.monotonic())
        time.sleep(1)
        return survey_files(directory)

    def own() -> None:
        while True:
            tick(owner)

    owning = beside("the owner", own)
    monkeypatch.setattr(startup, "survey_files", slow_survey)
    heir.start_dequeue(take_over=True)
    with pytest.raises(Fenced, match="now belongs to the data directory"):
        owning.result()
    assert len(attempts) <= 4
    tick(heir)


def tick(shard: TimerShard) -> None:
    assert shard.dequeue is not None
    shard.dequeue.tick()


def test_init_and_reshard_give_the_state_topic_the_partitions_that_it_lacks(
    application: Application,
) -> None:
    topic = application.settings.state_topic
    with KafkaAdmin(application.settings.kafka.client_options("admin")) as admin:
        assert admin.partition_counts([topic]) == {topic: 1}
        second = application.of(1, 2)
        with pytest.raises(ConfigError, match=r"partitions is 1, wanted is >= 2.*duewheel init"):
            admin.require_topics(second)
        with pytest.raises(ConfigError, match=r"has 1 partitions, shard 1 needs 2.*duewheel init"):
            factory.publisher(second, application.clock).peek()
        found = admin.init_topics(second)
        assert {f.state.value for f in found} == {"found"}
        admin.require_topics(second)
        assert admin.partition_counts([topic]) == {topic: 2}
        for index in range(2):
            assert dequeue_process.init_progress(application.of(index, 2))
        await_markers(application.settings.kafka.servers, topic)  # else a record may be missed
        for to, partitions in ((4, 4), (1, 4)):
            application.reshard(to)
            assert admin.partition_counts([topic]) == {topic: partitions}
        admin.require_topics(application.settings)


def test_a_start_reads_a_progress_of_all_partitions_that_there_is_room_for(
    application: Application,
) -> None:
    """Once committed, it must be readable for every start and standby."""
    application.begin(1)
    publisher = factory.publisher(application.settings, application.clock)
    found = publisher.start()
    assert found is not None
    full = replace(progress_of(partitions_of(500, PARTITIONS_MAX // 500)), epochs=found.epochs)
    took_s = []
    for epoch in range(5):
        begun_s = time.monotonic()
        publish_progress(publisher, replace(full, epoch=epoch))
        took_s.append(round(time.monotonic() - begun_s, 3))
    print({"partitions": len(full.partitions), "bytes": len(full.encode()), "took_s": took_s})
    begun_s = time.monotonic()
    assert publisher.start() == replace(full, epoch=4)
    print({"start_s": round(time.monotonic() - begun_s, 3)})
    reader = factory.progress_reader(application.settings, application.clock)
    seen = reader.newest()
    assert seen is not None and seen.progress.epoch == 4
    reader.close()
    publisher.close()


def test_progress_of_an_earlier_version_is_refused_by_every_shard(application: Application) -> None:
    """There all shards wrote to partition 0: one that finds nothing in its own is not new."""
    producer = KafkaProducer(bootstrap_servers=application.settings.kafka.servers)
    value = json.dumps({"format": 1, "shard": 1, "shards": 2}).encode()
    state = {"topic": application.settings.state_topic, "partition": 0}
    producer.send(**state, key=record_key(1), value=value).get(timeout=30)
    producer.close()
    second = application.of(1, 2)
    with KafkaAdmin(application.settings.kafka.client_options("admin")) as admin:
        admin.init_topics(second)
    with pytest.raises(RecoveryRefused, match=r"format 1, this version reads.*another app\.id"):
        dequeue_process.init_progress(second)
