"""Why servers accept no client, as far as no broker is needed: tests/integration/test_login.py.

Also of kafka/connect/network_client.py.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaAdminClient
from kafka.errors import KafkaConnectionError, SaslAuthenticationFailedError
from tests.harness.launcher import wait_until
from tests.harness.publishing import own_threads, where_they_are
from tests.harness.small_servers import hangs_up, is_silent, server, speaks_tls

from duewheel.deadline import Deadline
from duewheel.dev.listeners import HOST, free_ports
from duewheel.errors import ConfigError, KafkaUnavailable
from duewheel.kafka.connect.clients import KafkaClients
from duewheel.kafka.connect.login import LoginAttempt, attempts, in_words, require_one


def attempt(address: str, seconds: float = 5.0, **settings: Any) -> LoginAttempt:
    (made,) = attempts({"bootstrap_servers": [address], **settings}, Deadline(seconds))
    return made


def test_a_client_without_tls_at_a_port_with_it() -> None:
    with server(speaks_tls) as address:
        made = attempt(address)
        assert made.is_refusal
        expected = "speaks TLS: security_protocol is PLAINTEXT, should be SSL or SASL_SSL"
        assert made.problem == expected
        with pytest.raises(ConfigError, match=f"{address} {expected}"):
            require_one([made])


def test_a_server_that_says_nothing_is_no_refusal() -> None:
    (nobody,) = free_ports(1)
    assert not attempt(f"{HOST}:{nobody}").is_refusal
    with server(hangs_up) as address:
        made = attempt(address)
        assert made.problem and not made.is_refusal
    with server(is_silent) as address:
        made = attempt(address, 0.3)
        # Whichever time-out is first, this deadline's or kafka-python's.
        assert "no answer within 0.3 s" in made.problem or "timed out after" in made.problem
        assert not made.is_refusal


@pytest.mark.slow
def test_attempts_that_are_abandoned_leave_no_threads() -> None:
    """Timers of the call end with its deadline, so its thread wakes just when it is closed."""
    before = own_threads()
    with server(is_silent) as address:
        settings = KafkaClients({"bootstrap_servers": address})
        for _ in range(100):
            attempt(address, 0.03)
            with pytest.raises(KafkaUnavailable):
                settings.connect(Deadline(0.03))
        wait_until(
            lambda: own_threads() <= before, lambda: where_they_are(own_threads() - before), 30
        )


def test_a_file_that_is_missing_is_named(tmp_path: Path) -> None:
    with server(hangs_up) as address:
        absent = str(tmp_path / "absent.pem")
        made = attempt(address, security_protocol="SSL", ssl_cafile=absent)
    assert made.is_refusal and "No such file" in made.problem


def test_one_server_that_accepts_is_enough() -> None:
    refused = LoginAttempt("a:1", "speaks TLS", is_refusal=True)
    unknown = LoginAttempt("b:1", "is down")
    with pytest.raises(ConfigError, match="a:1 speaks TLS"):
        require_one([unknown, refused])
    require_one([refused, LoginAttempt("c:1")])
    with pytest.raises(KafkaUnavailable, match="Kafka answers no client: b:1: is down"):
        require_one([unknown])


def test_a_client_gives_up_at_once_where_its_settings_are_refused() -> None:
    with server(speaks_tls) as address:
        client, begun_s = KafkaClients({"bootstrap_servers": [address]}), time.monotonic()
        with pytest.raises(ConfigError, match="speaks TLS"):
            client.open(KafkaAdminClient, Deadline(60))
    assert time.monotonic() - begun_s < 30


def test_a_client_that_reaches_nobody_ends_with_the_reason(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Its time passes once the reason is known, however long a slow host takes for that."""
    deadline = Deadline(60, now_s=lambda: 60.0 * ("this client tries again" in caplog.text))
    (nobody,) = free_ports(1)
    client = KafkaClients({"bootstrap_servers": [f"{HOST}:{nobody}"]})
    reason = f"{HOST}:{nobody}: Connection refused (ECONNREFUSED)"
    limit = "connect (KafkaAdminClient): no answer within 60 s"
    with pytest.raises(KafkaUnavailable) as raised:
        client.open(KafkaAdminClient, deadline)
    assert str(raised.value) == f"Kafka answers no client: {reason}; {limit}"


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (KafkaConnectionError("refused"), "KafkaConnectionError: refused"),
        (
            SaslAuthenticationFailedError("SaslAuthenticationFailedError: Authentication failed"),
            "SaslAuthenticationFailedError: Authentication failed",
        ),
        (KafkaConnectionError(), "KafkaConnectionError"),
        (KafkaConnectionError("111 ECONNREFUSED"), "Connection refused (ECONNREFUSED)"),
        (OSError("two\nlines"), "OSError: two lines"),
    ],
)
def test_the_class_of_an_error_is_named_once(error: Exception, expected: str) -> None:
    assert in_words(error) == expected
