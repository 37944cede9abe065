"""The parts of an examination: one that fails is a finding, and no server ends it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.harness.config_file import small_settings

from duewheel.api.examination import UNREACHABLE, DoctorFinding
from duewheel.clock import SystemClock
from duewheel.config.keys_and_defaults import KafkaSection
from duewheel.config.settings import load
from duewheel.dev.listeners import HOST, free_ports
from duewheel.doctor import examination
from duewheel.doctor.cluster import Cluster
from duewheel.doctor.findings import Check
from duewheel.errors import KafkaUnavailable
from duewheel.kafka.topics.admin import KafkaAdmin


@pytest.mark.parametrize(
    ("error", "reason", "cause"),
    [
        (KeyError("hunter2"), "KeyError: '***'", "an answer that no Apache Kafka"),
        (KafkaUnavailable("no answer within 30 s"), "no answer within 30 s", "log of the brokers"),
    ],
)
def test_a_part_that_fails_is_one_finding(error: Exception, reason: str, cause: str) -> None:
    def part(_: Cluster) -> Iterator[DoctorFinding]:
        yield Check("a", "s").ok("f")
        raise error

    admin = KafkaAdmin({"ssl_password": "hunter2"})
    cluster = Cluster(load(overrides={"timer": {"topics": "t"}}), admin, SystemClock())
    first, second = examination.guarded("topics", cluster, part)
    assert first.code == "a"
    assert (second.code, second.severity, second.subject) == ("not_examined", "error", "topics")
    assert second.found == reason
    assert cause in second.remedy


def test_without_a_server_the_examination_ends_with_the_reason(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    settings = small_settings(tmp_path)
    servers = KafkaSection(bootstrap_servers=(f"{HOST}:{port}",))
    away = settings.model_copy(update={"kafka": servers})
    begun: list[str] = []
    found = list(examination.examine(away, SystemClock(), lambda part, _: begun.append(part)))
    assert begun == ["host"]
    assert (found[-1].code, found[-1].severity) == (UNREACHABLE, "error")
    assert {finding.code for finding in found[:-1]}.isdisjoint({UNREACHABLE, "not_examined"})
