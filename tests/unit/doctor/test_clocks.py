"""What `duewheel doctor` says of the clocks of brokers."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from kafka.errors import TopicAuthorizationFailedError
from tests.harness.config_file import small_settings
from tests.harness.findings import partition

from duewheel.api.examination import DoctorFinding
from duewheel.clock import SystemClock
from duewheel.doctor import clocks
from duewheel.doctor.cluster import Cluster
from duewheel.doctor.remedies import KafkaCommands
from duewheel.doctor.scratch import ScratchTopic
from duewheel.errors import KafkaUnavailable
from duewheel.kafka.connect.clients import KafkaClients
from duewheel.kafka.progress.broker_clock import NotStamped
from duewheel.kafka.topics.description import Partition
from duewheel.kafka.topics.topic_checks import TopicChecks


@pytest.mark.parametrize(
    ("least_ms", "most_ms", "severity", "said"),
    [
        (-2, 5, "ok", "to within 5 ms"),
        (900, 1_000, "ok", "ahead by 900 to 1000 ms"),
        (1_001, 1_010, "error", "no slot is closed beyond 1000"),
        (-1_010, -1_001, "warning", "behind by 1001 to 1010 ms"),
        (-1_010, -999, "ok", "behind by 999"),
        (-5_000, 5_000, "ok", "to within 5000 ms"),
    ],
)
def test_clocks_that_differ(least_ms: int, most_ms: int, severity: str, said: str) -> None:
    finding = clocks.check_skew("broker 1", least_ms, most_ms, 1_000)
    assert finding.severity == severity
    assert said in finding.found


def cluster_of(data_dir: Path) -> Cluster:
    return Cluster(small_settings(data_dir), TopicChecks({}), SystemClock())


def scratch_of(cluster: Cluster, partitions: Sequence[Partition], brokers: int) -> ScratchTopic:
    """The topic with these partitions, on so many brokers."""
    scratch = ScratchTopic(cluster)
    scratch.partitions, scratch.brokers = partitions, range(1, brokers + 1)
    return scratch


def test_a_broker_that_leads_no_partition_is_named(tmp_path: Path) -> None:
    scratch = scratch_of(cluster_of(tmp_path), [partition(1, leader=2)], 3)
    found = list(clocks.check_led(scratch, KafkaCommands("kafka:9092", "User:x")))
    assert [(each.subject, each.severity) for each in found] == [
        ("broker 1", "warning"),
        ("broker 3", "warning"),
    ]
    assert found[0].remedy.endswith("--alter --topic duewheel.doctor.0 --partitions 3")


def test_a_broker_that_does_not_answer_hides_the_clock_of_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clients = KafkaClients({})

    def measured(_: object, __: object, broker: str, ___: object) -> DoctorFinding:
        with clients.explained("have it stamp a record"):
            if broker == "broker 1":
                raise KafkaUnavailable("no answer")
            if broker == "broker 2":
                raise TopicAuthorizationFailedError("t")
            if broker == "broker 3":
                raise NotStamped("no timestamp of the broker")
        return clocks.check_skew(broker, 0, 0, 1_000)

    def opened(*_: object, **__: Any) -> nullcontext[None]:
        return nullcontext()

    monkeypatch.setattr(clocks, "_measure", measured)
    monkeypatch.setattr(KafkaClients, "opened", opened)
    led = [replace(partition(1, leader=each), number=each) for each in (1, 2, 3, 4)]
    cluster = cluster_of(tmp_path)
    found = list(clocks.examine(cluster, scratch_of(cluster, led, 5)))
    assert [(each.subject, each.severity) for each in found] == [
        (f"broker {each}", "ok" if each == 4 else "warning") for each in (1, 2, 3, 4, 5)
    ]
    silent, forbidden, stamped, _, idle = (each.remedy for each in found)
    assert silent == "the log of the brokers has the reason"
    assert "kafka-acls.sh" in forbidden and "--topic duewheel.doctor." in forbidden
    assert "message.timestamp.type=LogAppendTime" in stamped and "--alter --topic" in idle
