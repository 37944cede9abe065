"""`duewheel doctor` on real brokers: sound ones, and some with wrong settings."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest
from kafka import KafkaAdminClient
from tests.harness.examining import CLOCK, errors, examined, only, settings_for
from tests.harness.fault_proxy import ALWAYS, Action, Fault, FaultProxy
from tests.harness.shared_broker import SharedBroker
from tests.harness.topics import alter_by

from duewheel import factory
from duewheel.api.examination import DoctorFinding
from duewheel.cli import examination
from duewheel.cli.examination import report
from duewheel.cli.output import Printer
from duewheel.config.settings import Settings
from duewheel.dev.listeners import free_ports
from duewheel.doctor import apis, rights, topics
from duewheel.doctor.cluster import Cluster
from duewheel.kafka.topics.admin import KafkaAdmin
from duewheel.kafka.topics.topic_checks import TopicChecks
from duewheel.runtime.dequeue_process import init_progress
from duewheel.wheel.publisher_protocol import publish_progress

pytestmark = pytest.mark.kafka


def init(settings: Settings, client: KafkaAdminClient) -> None:
    """The topics, the target, and the first progress."""
    with KafkaAdmin(settings.kafka.client_options("admin")) as admin:
        admin.init_topics(settings, partitions=1)
        for target in settings.timer.mapping.values():
            admin.create_topic(target, 1)
    init_progress(settings)


@pytest.fixture
def settings(broker: SharedBroker, tmp_path: Path, unique_name: Callable[[str], str]) -> Settings:
    name = unique_name("app")[-60:].strip("-")
    return settings_for(tmp_path, broker.bootstrap_servers, name)


@pytest.fixture
def client(broker: SharedBroker) -> Iterator[KafkaAdminClient]:
    with closing(KafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)) as client:
        yield client


def test_targets_that_topics_are_open_for_must_exist(settings: Settings) -> None:
    """Those of `timer.targets`, too; patterns name no topic."""
    timer = settings.timer
    opened = settings.model_copy(
        update={"timer": timer.model_copy(update={"targets": ("mails", "bills.*")})}
    )
    missing = {subject for code, subject in errors(examined(opened)) if code == "target_missing"}
    assert missing == {"topic mails", f"topic {settings.app.id}.orders"}


def test_the_progress_is_examined_without_a_topic_that_it_does_not_need(
    settings: Settings, client: KafkaAdminClient
) -> None:
    init(settings, client)
    timer = settings.timer.model_copy(update={"receipts_topic": f"{settings.app.id}.absent"})
    found = examined(settings.model_copy(update={"timer": timer}))
    assert ("topic_settings", f"topic {settings.app.id}.absent") in errors(found)
    only(found, "progress")


def test_a_whole_cluster_before_init_and_beside_a_running_shard(
    settings: Settings, client: KafkaAdminClient
) -> None:
    before = examined(settings)
    own = [*settings.timer.topics, settings.dead_letter_topic, settings.state_topic]
    assert errors(before) == {
        *(("topic_settings", f"topic {name}") for name in own),
        ("target_missing", f"topic {settings.app.id}.orders"),
    }
    assert only(before, "topic_settings", settings.state_topic).remedy == "duewheel init"
    assert not settings.storage.data_dir.exists()

    init(settings, client)
    running = factory.publisher(settings, factory.StoppableClock(threading.Event()))
    try:
        progress = running.start()
        assert progress is not None
        found = examined(settings)
        assert errors(found) == set()
        # One broker with one replica; nothing keeps the clock of many a container.
        warnings = {f.code for f in found if f.severity == "warning"}
        assert "durability" in warnings
        assert warnings <= {"durability", "clock_kept", "memory", "disk_space", "file_system"}
        publish_progress(running, progress)  # it has not been fenced
    finally:
        running.close()

    names = {f"{settings.app.id}.doctor.0"}
    assert names.isdisjoint(client.list_topics())
    assert names.isdisjoint(group["group_id"] for group in client.list_groups())
    assert sorted(path.name for path in settings.storage.data_dir.glob(".doctor*")) == []


def test_topics_that_cannot_be_examined_hide_no_finding_of_the_shard(
    settings: Settings, client: KafkaAdminClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    init(settings, client)
    monkeypatch.setattr(topics, "check_durability", None)  # a call fails
    found = examined(settings)
    assert errors(found) == {("not_examined", "topics")}
    assert only(found, "shard_partitions").severity == "ok"
    assert only(found, "progress").severity == "ok"


def test_what_is_set_wrongly_is_found_at_once(
    settings: Settings, client: KafkaAdminClient, capsys: pytest.CaptureFixture[str]
) -> None:
    init(settings, client)
    (timers,), target = settings.timer.topics, f"{settings.app.id}.orders"
    unclean = "unclean.leader.election.enable"
    changes = {
        timers: {"retention.ms": "3600000", "cleanup.policy": "compact", unclean: "true"},
        settings.dead_letter_topic: {"max.message.bytes": "1048588"},
        target: {"max.message.bytes": "1000"},
    }
    matching = f"{settings.app.id}.more"
    with KafkaAdmin(settings.kafka.client_options("admin")) as admin:
        admin.create_topic(matching, 1)
    alter_by(client, changes)
    wrong = settings.model_copy(
        update={
            "timer": settings.timer.model_copy(update={"topics_pattern": matching[:-1] + "."}),
            "shard": settings.shard.model_copy(update={"index": 1, "count": 2}),
            "dequeue": settings.dequeue.model_copy(update={"transaction_timeout_ms": 60_000}),
        }
    )
    capsys.readouterr()
    assert report(examination.run(wrong, CLOCK), Printer(is_json=True)) == 1
    shown = json.loads(capsys.readouterr().out)
    found = [DoctorFinding(**row) for row in shown["findings"]]
    wrongs = [(f.code, f.found.split()[0]) for f in found if f.severity == "error"]
    assert sorted(wrongs) == [
        ("durability", unclean),
        ("progress", "shard"),
        ("shard_partitions", "shard"),
        ("topic_settings", "cleanup.policy"),
        ("topic_settings", "max.message.bytes"),
        ("topic_settings", "partitions"),
        ("topic_settings", "retention.ms"),
    ]
    unread = [f for f in found if f"so {matching} is not read" in f.found]
    assert {f.severity for f in unread} == {"warning"}
    assert only(found, "message_size").severity == "warning"
    assert all(f.remedy for f in found if f.severity != "ok")


def through(settings: Settings, proxy: FaultProxy) -> Settings:
    """The same settings, for clients that reach the broker through the proxy only."""
    kafka = {"bootstrap_servers": (proxy.bootstrap_servers,)}
    return settings.model_copy(update={"kafka": settings.kafka.model_copy(update=kafka)})


def test_a_broker_that_lacks_an_api(settings: Settings, broker: SharedBroker) -> None:
    init_producer_id = 22
    with FaultProxy(broker.bootstrap_servers) as proxy:
        proxy.inject(Fault("ApiVersions", Action.WITHHOLD, init_producer_id, times=ALWAYS))
        found = examined(through(settings, proxy))
    lacking = only(found, "kafka_api")
    assert lacking.severity == "error"
    assert "InitProducerId (key 22) is not offered" in lacking.found
    assert {code for code, _ in errors(found)} >= {"kafka_api", "transactions"}
    assert "kafka-acls" not in only(found, "transactions").remedy


def test_a_broker_that_describes_no_transaction_is_no_fault(
    settings: Settings, broker: SharedBroker
) -> None:
    """As Kafka 2.8, the oldest supported one."""
    describe_transactions = 65
    with FaultProxy(broker.bootstrap_servers) as proxy:
        proxy.inject(Fault("ApiVersions", Action.WITHHOLD, describe_transactions, times=ALWAYS))
        found = examined(through(settings, proxy))
    assert only(found, "kafka_api").severity == "ok"
    assert only(found, "transactional_id").severity == "ok"


def test_a_commit_that_is_only_pretended_is_found_out(
    settings: Settings, broker: SharedBroker
) -> None:
    with FaultProxy(broker.bootstrap_servers) as proxy:
        pretended = proxy.inject(Fault("EndTxn", Action.REFUSE, code=0))
        found = examined(through(settings, proxy))
        assert pretended.hits == 1
        asked = dict(proxy.asked)
    listed = {api.key: api.version_min for api in (*apis.NEEDED, *apis.OPTIONAL)}
    assert {key: listed[key] for key in asked if asked[key] < listed[key]} == {}
    assert only(found, "transactions").severity == "ok"  # all that its client was told
    lost = only(found, "committed_seen")
    assert (lost.severity, lost.found) == ("error", "of 2 committed transactions 1 can be read")


def test_a_scratch_topic_with_the_senders_timestamps_tells_nothing_of_clocks(
    settings: Settings,
) -> None:
    """The doctor would compare this host's clock with itself."""
    scratch = f"{settings.app.id}.doctor.0"
    with KafkaAdmin(settings.kafka.client_options("admin")) as admin:
        admin.create_topic(scratch, 1)
    found = examined(settings)
    clock = only(found, "clock")
    assert clock.severity == "warning", clock
    assert f"{scratch} --add-config message.timestamp.type=LogAppendTime" in clock.remedy
    assert only(found, "committed_seen").severity == "ok"


def test_the_offset_of_an_earlier_run_is_not_taken_for_this_ones(
    settings: Settings, broker: SharedBroker
) -> None:
    """It stays without the right to delete groups, if the topic is the operator's."""
    delete_groups = 42
    dequeue = settings.dequeue.model_copy(update={"call_deadline": timedelta(seconds=5)})
    with FaultProxy(broker.bootstrap_servers) as proxy:
        settings = through(settings.model_copy(update={"dequeue": dequeue}), proxy)
        with KafkaAdmin(settings.kafka.client_options("admin")) as admin:
            admin.create_topic(f"{settings.app.id}.doctor.0", 1)
        proxy.inject(Fault("ApiVersions", Action.WITHHOLD, delete_groups, times=ALWAYS))
        assert only(examined(settings), "group_offsets").severity == "ok"
        pretended = proxy.inject(Fault("TxnOffsetCommit", Action.REFUSE, code=0))
        found = examined(settings)
        assert pretended.hits == 1
    assert only(found, "group_offsets").severity == "warning"


def test_an_id_whose_coordinator_is_away_is_no_unused_one(
    settings: Settings, broker: SharedBroker, client: KafkaAdminClient
) -> None:
    init(settings, client)
    with FaultProxy(broker.bootstrap_servers) as proxy:
        settings = through(settings, proxy)
        with TopicChecks(settings.kafka.client_options("admin"), 5.0) as reader:
            not_available = 15
            proxy.inject(Fault("FindCoordinator", Action.REFUSE, not_available, times=ALWAYS))
            found = list(rights.examine(Cluster(settings, reader, CLOCK)))
    assert only(found, "transactional_id").severity == "warning"


def test_a_cluster_that_is_away(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (port,) = free_ports(1)
    secret = {"bootstrap_servers": f"127.0.0.1:{port}", "client": {"ssl_password": "hunter2"}}
    away = settings_for(tmp_path, "", "app", kafka=secret, dequeue={"call_deadline": "1s"})
    assert report(examination.run(away, CLOCK), Printer(is_json=False)) == 3
    shown = capsys.readouterr().out
    assert shown.startswith("error")
    assert "kafka_unreachable" in shown
    assert "data_directory" in shown  # the host has been examined all the same
    assert "hunter2" not in shown
