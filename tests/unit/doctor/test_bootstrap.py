"""What `duewheel doctor` says of the bootstrap servers."""

from __future__ import annotations

import pytest
from tests.harness.findings import severities

from duewheel.api.examination import UNREACHABLE
from duewheel.doctor import bootstrap
from duewheel.doctor.findings import Ended
from duewheel.errors import ConfigError, KafkaUnavailable
from duewheel.kafka.connect.clients import KafkaClients


def test_one_server_of_several_may_be_away() -> None:
    found = list(bootstrap.check_servers([("a:1", ""), ("b:2", "refused")]))
    assert severities(found) == ["ok", "warning"]
    assert (found[1].subject, found[1].found) == ("b:2", "takes no connections: refused")


def test_no_server_at_all_ends_the_examination() -> None:
    with pytest.raises(Ended) as ended:
        list(bootstrap.check_servers([("a:1", "refused"), ("b:2", "refused")]))
    finding = ended.value.finding
    assert (finding.code, finding.subject) == (UNREACHABLE, "a:1,b:2")
    assert finding.found == "takes no connections: refused", "a shared reason is said once"


def test_behind_a_proxy_no_server_is_tried() -> None:
    assert list(bootstrap.check_servers([])) == []


def test_servers_that_accept_no_client() -> None:
    clients = KafkaClients({"bootstrap_servers": ["a:1"], "sasl_plain_password": "hunter2"})
    wrong = bootstrap.client_refused(clients, ConfigError("sasl_mechanism is unknown"), "")
    assert (wrong.found, wrong.remedy) == ("sasl_mechanism is unknown", "correct [kafka.client]")
    silent = bootstrap.client_refused(clients, KafkaUnavailable("no answer"), "said hunter2")
    assert silent.found.endswith("no answer; last log line: said ***")
    assert "log of the brokers" in silent.remedy
