"""The parts of an examination: one that fails is a finding, and no server ends it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest
from kafka.errors import TopicAuthorizationFailedError
from tests.harness.config_file import small_settings

from duewheel.api.examination import UNREACHABLE, DoctorFinding
from duewheel.clock import SystemClock
from duewheel.config.keys_and_defaults import KafkaSection
from duewheel.dev.listeners import HOST, free_ports
from duewheel.doctor import examination, host
from duewheel.doctor.examination import guarded
from duewheel.doctor.findings import Check
from duewheel.errors import ConfigError, KafkaUnavailable
from duewheel.kafka.connect.clients import KafkaClients


def refused() -> NoReturn:
    raise PermissionError(13, "denied", "/usr/lib/jvm")


@pytest.mark.parametrize(
    ("error", "reason", "cause"),
    [
        (KeyError("hunter2"), "KeyError: '***'", "an answer that no Apache Kafka"),
        (PermissionError(13, "denied", "/data"), "[Errno 13] denied: '/data'", "rights of user"),
        (OSError(28, "full", "/data"), "[Errno 28] full: '/data'", "disk and limits"),
        (KafkaUnavailable("no answer within 30 s"), "no answer within 30 s", "log of the brokers"),
        (ConfigError("it is x"), "it is x", "the setting or the topic"),
    ],
)
def test_a_part_that_fails_is_one_finding(error: Exception, reason: str, cause: str) -> None:
    def part() -> Iterator[DoctorFinding]:
        yield Check("a", "s").ok("f")
        raise error

    first, second = guarded("topics", part(), KafkaClients({"ssl_password": "hunter2"}))
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


def test_a_part_that_asks_no_kafka_blames_none() -> None:
    def part() -> Iterator[DoctorFinding]:
        yield from ()
        raise ValueError("x")

    (failed,) = guarded("host", part())
    assert failed.remedy == "a defect of duewheel"


def test_a_part_that_lacks_a_right_says_where_the_rights_are() -> None:
    clients = KafkaClients({})

    def part() -> Iterator[DoctorFinding]:
        yield from ()
        with clients.explained("read t"):
            raise TopicAuthorizationFailedError("t")

    (failed,) = guarded("shard", part(), clients)
    assert failed.remedy.startswith("grant the right: docs/security.md")


def test_client_settings_that_cannot_be_read_hide_no_finding_of_the_host(tmp_path: Path) -> None:
    client = {"ssl_password_file": str(tmp_path / "absent")}
    kafka = KafkaSection.model_validate({"bootstrap_servers": "kafka:9092", "client": client})
    settings = small_settings(tmp_path).model_copy(update={"kafka": kafka})
    *of_host, last = examination.examine(settings, SystemClock(), lambda _part, _parts: None)
    assert {"data_directory", "disk_space", "memory", "java"} <= {f.code for f in of_host}
    assert (last.code, last.severity, last.subject) == ("kafka_refuses", "error", "kafka:9092")
    assert str(tmp_path / "absent") in last.found
