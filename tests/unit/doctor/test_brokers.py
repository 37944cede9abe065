"""What `duewheel doctor` says of the versions and the settings of brokers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import pytest
from kafka.errors import IncompatibleBrokerVersion, KafkaError, KafkaTimeoutError
from kafka.protocol.broker_version_data import BROKER_API_VERSIONS
from tests.harness.config_file import small_settings
from tests.harness.findings import severities

from duewheel.api.examination import UNREACHABLE
from duewheel.clock import SystemClock
from duewheel.doctor import apis, brokers
from duewheel.doctor.cluster import Cluster
from duewheel.doctor.findings import Ended
from duewheel.doctor.remedies import KafkaCommands
from duewheel.kafka.topics.topic_checks import TopicChecks
from duewheel.kafka.transaction_limits import TransactionLimits

COMMANDS = KafkaCommands("kafka:9092", "User:x")


@pytest.mark.parametrize(("longest_ms", "severity"), [(20_000, "ok"), (19_999, "error")])
def test_transactions_must_be_allowed_to_last(longest_ms: int, severity: str) -> None:
    limits = TransactionLimits(transaction_timeout_ms=20_000)
    config = {"transaction.max.timeout.ms": str(longest_ms)}
    (finding,) = brokers.check_settings("broker 1", COMMANDS, config, limits)
    assert finding.severity == severity
    assert f"is {longest_ms}; dequeue.transaction_timeout_ms is 20000" in finding.found


def test_the_largest_batch_must_fit_into_a_request() -> None:
    limits = TransactionLimits(batch_bytes_max=1_000_000)
    for most, severity in ((1_001_024, "ok"), (1_001_023, "warning")):
        config = {"socket.request.max.bytes": str(most)}
        (finding,) = brokers.check_settings("broker 1", COMMANDS, config, limits)
        assert finding.severity == severity


def test_settings_that_may_not_be_read() -> None:
    (finding,) = brokers.check_settings("broker 1", COMMANDS, {}, TransactionLimits())
    assert finding.severity == "warning"
    assert "--allow-principal User:x --operation DescribeConfigs --cluster" in finding.remedy


@pytest.mark.parametrize(
    ("is_refusal", "remedy"), [(True, "correct [kafka.client]"), (False, "advertised.listeners")]
)
def test_a_broker_that_logs_no_client_in_is_not_out_of_reach(is_refusal: bool, remedy: str) -> None:
    answer = brokers._Answer(1, "a:9092", problem="refused", is_refusal=is_refusal)  # noqa: SLF001
    finding = brokers._check_reachable(answer)  # noqa: SLF001
    assert (finding.severity, remedy in finding.remedy) == ("error", True)


@pytest.mark.parametrize(
    ("reason", "severity"), [(IncompatibleBrokerVersion, "ok"), (KafkaTimeoutError, "warning")]
)
def test_features_that_are_not_answered_are_not_taken_for_none(
    reason: type[KafkaError], severity: str, tmp_path: Path
) -> None:
    class Failing(TopicChecks):
        def call(self, what: str, *_: object, **_options: object) -> NoReturn:
            with self.clients.explained(what):
                raise reason("of Kafka")

    cluster = Cluster(small_settings(tmp_path), Failing({}), SystemClock())
    finding = brokers._check_features(cluster)  # noqa: SLF001
    assert (finding.severity, bool(finding.remedy)) == (severity, severity != "ok")


@pytest.mark.parametrize(
    ("refusals", "code"),
    [((True, True), "kafka_refuses"), ((True, False), UNREACHABLE), ((False,), UNREACHABLE)],
)
def test_brokers_that_all_log_no_client_in_are_not_out_of_reach(
    refusals: Sequence[bool], code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = [
        brokers._Answer(n, "a:9092", problem="no", is_refusal=is_refusal)  # noqa: SLF001
        for n, is_refusal in enumerate(refusals)
    ]
    monkeypatch.setattr(brokers, "_ask", lambda _: answers)
    cluster = Cluster(small_settings(tmp_path), TopicChecks({}), SystemClock())
    with pytest.raises(Ended) as end:
        list(brokers.examine(cluster))
    assert end.value.finding.code == code
    assert "advertised.listeners" in end.value.finding.remedy or code == "kafka_refuses"


def test_the_oldest_kafka_that_is_not_refused_is_the_oldest_that_offers_all_apis() -> None:
    """By kafka-python's table of the APIs that each version of Kafka offers."""
    accepted = [v for v in BROKER_API_VERSIONS if brokers.check_version("b", v).severity == "ok"]
    whole = [
        version
        for version, offered in BROKER_API_VERSIONS.items()
        if "error" not in severities(apis.check_apis({"b": offered}))
    ]
    assert accepted == whole != []
