"""What `duewheel doctor` says of the bootstrap servers."""

from __future__ import annotations

import pytest
from tests.harness.findings import severities

from duewheel.api.examination import UNREACHABLE
from duewheel.doctor import servers
from duewheel.doctor.findings import Ended
from duewheel.errors import ConfigError, KafkaUnavailable
from duewheel.kafka.connect.clients import KafkaClients
from duewheel.kafka.connect.login import LoginAttempt

CLIENTS = KafkaClients({"bootstrap_servers": ["a:1", "b:2"]})
REFUSED = LoginAttempt("a:1", "refused")


def test_one_server_of_several_may_be_away() -> None:
    found = list(servers.check_servers(CLIENTS, [LoginAttempt("b:2"), REFUSED]))
    assert severities(found) == ["ok", "warning"]
    assert (found[1].subject, found[1].found) == ("a:1", "logs no client in: refused")
    assert "firewall" in found[1].remedy
    wrong = LoginAttempt("a:1", "speaks TLS", is_refusal=True)
    (_, refused) = servers.check_servers(CLIENTS, [LoginAttempt("b:2"), wrong])
    assert refused.remedy.startswith("correct [kafka.client]")


def test_no_server_at_all_ends_the_examination() -> None:
    with pytest.raises(Ended) as ended:
        list(servers.check_servers(CLIENTS, [REFUSED, LoginAttempt("b:2", "refused")]))
    finding = ended.value.finding
    assert (finding.code, finding.subject) == (UNREACHABLE, "a:1,b:2")
    assert finding.found == "Kafka answers no client: a:1: refused; b:2: refused"


def test_settings_that_one_server_refuses_end_the_examination() -> None:
    wrong = LoginAttempt("b:2", "speaks TLS", is_refusal=True)
    with pytest.raises(Ended) as ended:
        list(servers.check_servers(CLIENTS, [REFUSED, wrong]))
    finding = ended.value.finding
    assert (finding.code, finding.remedy) == ("kafka_refuses", "correct [kafka.client]")
    assert finding.found == "Kafka refuses these client settings: b:2 speaks TLS"


def test_servers_that_accept_no_client() -> None:
    clients = KafkaClients({"bootstrap_servers": ["a:1"], "sasl_plain_password": "hunter2"})
    wrong = servers.client_refused(clients, ConfigError("sasl_mechanism is unknown"), "")
    assert (wrong.found, wrong.remedy) == ("sasl_mechanism is unknown", "correct [kafka.client]")
    silent = servers.client_refused(clients, KafkaUnavailable("no answer"), "said hunter2")
    assert silent.found.endswith("no answer; last log line: said ***")
    assert "log of the brokers" in silent.remedy
