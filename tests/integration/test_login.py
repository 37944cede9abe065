"""Each wrong login is told apart, in seconds: by the clients, the commands and `run`.

One broker with four listeners: without security, with passwords, with TLS, with both.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaAdminClient
from tests.harness.certificates import self_signed
from tests.harness.config_file import write_config
from tests.harness.launcher import run
from tests.harness.secured_broker import (
    keystore_properties,
    listener_properties,
    password_properties,
)

from duewheel.client import DelayProducer
from duewheel.dev.broker import HOST, DevBroker, free_ports
from duewheel.errors import ConfigError
from duewheel.java.find import Java
from duewheel.kafka.clients import ClientSettings
from duewheel.kafka.deadline import Deadline

# kafka-python leaves a socket of TLS to the garbage collector where a handshake fails.
pytestmark = [
    pytest.mark.kafka,
    pytest.mark.crash_matrix,
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture(autouse=True)
def collected() -> Iterator[None]:
    """Those sockets are collected under the filter: at the end of the session they are an error."""
    yield
    gc.collect()


USER, PASSWORD = "ann", "hunter2"
AT_ONCE_S = 20.0  # of a deadline of 60: 2 s on a machine that does nothing else


@dataclass(frozen=True)
class Listeners:
    """host:port of each listener, and the file of the certificate that clients have to trust."""

    plain: str
    sasl: str
    tls: str
    both: str
    authority: Path


@pytest.fixture(scope="module")
def listeners(
    java: Java, kafka_jars: list[Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Listeners]:
    store, certificate = self_signed(java, tmp_path_factory.mktemp("certificate"), PASSWORD)
    *ports, controller = free_ports(5)
    names = ("PLAINTEXT", "SASL", "TLS", "BOTH")
    at = dict(zip(names, ports, strict=True))
    protocols = dict(zip(names, ("PLAINTEXT", "SASL_PLAINTEXT", "SSL", "SASL_SSL"), strict=True))
    properties = listener_properties(at, protocols, controller)
    for name in ("TLS", "BOTH"):
        properties |= keystore_properties(name, store, PASSWORD)
    for name in ("SASL", "BOTH"):
        properties |= password_properties(name, USER, PASSWORD)
    with DevBroker(java=java, port=ports[0], properties=properties):
        plain, sasl, tls, both = (f"{HOST}:{port}" for port in ports)
        yield Listeners(plain, sasl, tls, both, certificate)


def login(**others: str) -> dict[str, str]:
    return {
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "PLAIN",
        "sasl_plain_username": USER,
        "sasl_plain_password": PASSWORD,
        **others,
    }


WRONG: list[tuple[str, dict[str, str], str]] = [
    ("sasl", login(sasl_plain_password="hunter3"), "user 'ann' with this password"),
    ("both", login(security_protocol="SASL_SSL", sasl_plain_password="hunter3"), "this password"),
    ("sasl", login(sasl_mechanism="SCRAM-SHA-256"), "does not offer SASL SCRAM-SHA-256, but PLAIN"),
    ("sasl", {}, r"requires a login \(PLAIN\): security_protocol is PLAINTEXT, should be SASL_PL"),
    ("plain", login(), "takes no login: security_protocol is SASL_PLAINTEXT, should be PLAINTEXT"),
    ("tls", {}, "speaks TLS: security_protocol is PLAINTEXT, should be SSL or SASL_SSL"),
    ("both", login(), "speaks TLS: security_protocol is SASL_PLAINTEXT, should be SSL or SASL_SSL"),
    ("plain", {"security_protocol": "SSL"}, "speaks no TLS: security_protocol is SSL, should be P"),
    ("sasl", login(security_protocol="SASL_SSL"), "speaks no TLS: security_protocol is SASL_SSL"),
    ("both", {"security_protocol": "SSL"}, r"requires a login \(PLAIN\): security_protocol is SSL"),
    ("tls", {"security_protocol": "SSL", "ssl_cafile": ""}, "certificate verify failed"),
]


def client(listeners: Listeners, to: str, settings: dict[str, str]) -> dict[str, Any]:
    options: dict[str, Any] = {"bootstrap_servers": [getattr(listeners, to)], **settings}
    if "SSL" in settings.get("security_protocol", ""):
        options = {"ssl_cafile": str(listeners.authority), **options}
    return {name: value for name, value in options.items() if value}


@pytest.mark.parametrize(("to", "settings", "reason"), WRONG)
def test_each_wrong_setting_has_a_reason_of_its_own(
    listeners: Listeners, to: str, settings: dict[str, str], reason: str
) -> None:
    options, begun_s = client(listeners, to, settings), time.monotonic()
    with pytest.raises(ConfigError, match=reason) as refused:
        ClientSettings(options).open(KafkaAdminClient, Deadline(60))
    assert time.monotonic() - begun_s < AT_ONCE_S
    assert "hunter" not in str(refused.value)


def test_the_right_settings_are_accepted(listeners: Listeners) -> None:
    tls = {"security_protocol": "SSL"}
    both = login(security_protocol="SASL_SSL")
    for to, settings in (("plain", {}), ("sasl", login()), ("tls", tls), ("both", both)):
        (made,) = ClientSettings(client(listeners, to, settings)).attempts(Deadline(30))
        assert made.problem == ""


def test_the_client_of_an_application(listeners: Listeners) -> None:
    options = client(listeners, "sasl", login(sasl_plain_password="hunter3"))
    with pytest.raises(ConfigError, match="this password"):
        DelayProducer("timers", **options)


def test_commands_doctor_and_run(listeners: Listeners, tmp_path: Path) -> None:
    wrong = login(sasl_plain_password="hunter3")
    config = write_config(tmp_path, listeners.sasl, "app", kafka={"client": wrong})
    for words in (["init"], ["run"]):
        begun_s, done = time.monotonic(), run(config, *words)
        assert done.returncode == ConfigError.exit_code, done.stderr
        assert "user 'ann' with this password" in done.stderr
        assert time.monotonic() - begun_s < AT_ONCE_S
    examined = run(config, "doctor")
    assert "kafka_refuses" in examined.stdout and "with this password" in examined.stdout
    assert "hunter" not in examined.stdout + examined.stderr
