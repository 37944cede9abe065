"""The parts of an examination: one that fails is a finding, and no server ends it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest
from tests.harness.config_file import small_settings

from duewheel.api.examination import UNREACHABLE, DoctorFinding
from duewheel.clock import SystemClock
from duewheel.config.keys_and_defaults import KafkaSection
from duewheel.config.settings import load
from duewheel.dev.listeners import HOST, free_ports
from duewheel.doctor import examination, host
from duewheel.doctor.cluster import Cluster
from duewheel.doctor.findings import Check
from duewheel.errors import KafkaUnavailable
from duewheel.kafka.topics.topic_checks import TopicChecks


def refused() -> NoReturn:
    raise PermissionError(13, "denied", "/usr/lib/jvm")


@pytest.mark.parametrize(
    ("error", "reason", "cause"),
    [
        (KeyError("hunter2"), "KeyError: '***'", "an answer that no Apache Kafka"),
        (PermissionError(13, "denied", "/data"), "[Errno 13] denied: '/data'", "rights of user"),
        (KafkaUnavailable("no answer within 30 s"), "no answer within 30 s", "log of the brokers"),
    ],
)
def test_a_part_that_fails_is_one_finding(error: Exception, reason: str, cause: str) -> None:
    def part(_: Cluster) -> Iterator[DoctorFinding]:
        yield Check("a", "s").ok("f")
        raise error

    reader = TopicChecks({"ssl_password": "hunter2"})
    cluster = Cluster(load(overrides={"timer": {"topics": "t"}}), reader, SystemClock())
    first, second = examination.guarded("topics", cluster, part)
    assert first.code == "a"
    assert (second.code, second.severity, second.subject) == ("not_examined", "error", "topics")
    assert second.found == reason
    assert cause in second.remedy


def test_without_a_server_the_examination_ends_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host, "find_java", refused)
    (port,) = free_ports(1)
    settings = small_settings(tmp_path)
    servers = KafkaSection(bootstrap_servers=(f"{HOST}:{port}",))
    away = settings.model_copy(update={"kafka": servers})
    begun: list[str] = []
    found = list(examination.examine(away, SystemClock(), lambda part, _: begun.append(part)))
    assert begun == ["data directory", "host", "registry", "bootstrap servers"]
    assert (found[-1].code, found[-1].severity) == (UNREACHABLE, "error")
    assert UNREACHABLE not in {finding.code for finding in found[:-1]}
    (failed,) = [finding for finding in found if finding.code == "not_examined"]
    assert (failed.subject, failed.severity) == ("host", "error")


def test_a_part_that_asks_no_kafka_blames_none(tmp_path: Path) -> None:
    def part(_: Cluster) -> Iterator[DoctorFinding]:
        yield from ()
        raise ValueError("x")

    cluster = Cluster(small_settings(tmp_path), TopicChecks({}), SystemClock())
    (failed,) = examination.guarded("host", cluster, part)
    assert failed.remedy == "a defect of duewheel"
