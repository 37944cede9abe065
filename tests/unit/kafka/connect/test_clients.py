"""The options of Kafka's clients."""

from __future__ import annotations

import logging
import select
import selectors
import socket
import threading
from contextlib import closing, suppress

import pytest
from kafka.errors import KafkaError
from kafka.future import Future
from kafka.net.sasl.oauth import AbstractTokenProvider

from duewheel.deadline import Deadline
from duewheel.errors import ConfigError, Unacknowledged
from duewheel.kafka.connect.clients import KafkaClients
from duewheel.kafka.connect.network_client import NetworkClient, loop_of
from duewheel.kafka.connect.token_provider import tokens_of


def token() -> str:
    return "a.b.c"


NO_FUNCTION = "text"


def no_text() -> str:
    return ""


def test_tokens_come_from_the_function_that_is_named() -> None:
    provider = tokens_of(f"{__name__}:token")
    assert isinstance(provider, AbstractTokenProvider)
    assert (provider.token(), provider.extensions()) == ("a.b.c", {})
    with pytest.raises(ConfigError, match="the function returned no text"):
        tokens_of(f"{__name__}:no_text").token()


@pytest.mark.parametrize(
    ("named", "reason"),
    [
        ("no.such.module:token", "ModuleNotFoundError"),
        (f"{__name__}:nothing", "AttributeError"),
        (f"{__name__}:NO_FUNCTION", "is no function"),
    ],
)
def test_a_function_that_does_not_exist_is_named(named: str, reason: str) -> None:
    with pytest.raises(ConfigError, match="sasl_oauth_token_provider") as caught:
        KafkaClients({"sasl_oauth_token_provider": named})
    assert named in str(caught.value)
    assert reason in str(caught.value)


def test_client_settings() -> None:
    with pytest.raises(ConfigError, match=r"unknown.*'sasl_plain_pasword'") as caught:
        KafkaClients({"sasl_plain_pasword": "hunter2"})
    assert "hunter2" not in str(caught.value)
    with pytest.raises(ConfigError, match="'linger_ms' is decided"):
        KafkaClients({"linger_ms": 5})

    settings = KafkaClients({"bootstrap_servers": ["a:1", "b:2"], "sasl_plain_password": "hu2"})
    assert repr(settings) == "KafkaClients(a:1,b:2)"
    assert settings.explain(KafkaError("refused: hu2\nagain")) == "KafkaError: refused: *** again"


def test_a_write_without_an_answer_may_be_done_all_the_same() -> None:
    """A program may try again after a KafkaUnavailable, and would write twice."""
    never = threading.Event()
    with pytest.raises(Unacknowledged, match=r"create topics.*may be done all the same"):
        KafkaClients({}).write(Deadline(0.05), "create topics", never.wait)
    never.set()


@pytest.mark.parametrize(
    ("owner", "name", "missing"),
    [
        ("kafka.net.manager.KafkaConnectionManager", "_build_transport", "_manager"),
        ("kafka.net.manager.KafkaConnectionManager", "get_connection", "_manager"),
        ("kafka.net.manager.KafkaConnectionManager", "send", "_manager"),
        ("kafka.net.selector.NetworkSelector", "call_soon_threadsafe", "_net"),
        ("kafka.net.manager.KafkaConnectionManager", "update_backoff", "_manager"),
        ("kafka.cluster.ClusterMetadata", "_topics", "cluster"),
        ("kafka.cluster.ClusterMetadata", "_do_refresh_metadata", "cluster"),
    ],
)
def test_a_kafka_python_without_a_part_that_is_used_is_refused(
    owner: str, name: str, missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Without:
        def __get__(self, *_: object) -> None:
            raise AttributeError

        def __set__(self, *_: object) -> None:
            """Keeps nothing."""

    monkeypatch.setattr(f"{owner}.{name}", Without(), raising=False)
    with pytest.raises(ConfigError, match=f"kafka-python .* has no {missing}.{name}"):
        NetworkClient(bootstrap_servers="127.0.0.1:1")


def test_a_client_that_is_closed_right_after_its_last_answer_logs_nothing(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its task that renews the metadata has that answer, and has not gone on yet."""
    client = NetworkClient(bootstrap_servers="127.0.0.1:1")
    cluster, answer = client.cluster, Future()
    client._manager._bootstrap_future = Future().success(None)  # noqa: SLF001
    cluster._refresh_future = answer  # noqa: SLF001
    cluster.start_refresh_loop()
    client.poll(timeout_ms=0)
    monkeypatch.setattr(cluster, "ttl", lambda: 60_000)
    answer.success(None)
    client.close()
    assert [each.getMessage() for each in caplog.records if each.levelno > logging.INFO] == []
    assert cluster._refresh_loop_future.succeeded(), "it has ended"  # noqa: SLF001


def test_a_socket_that_is_closed_during_its_wait_leaves_its_number_to_the_next() -> None:
    with closing(NetworkClient()) as client:
        net = loop_of(client)
        for _ in range(2):
            one, other = socket.socketpair()
            net.register_event(one, selectors.EVENT_READ, lambda: None)
            one.close()
            other.close()
            net.unregister_event(one, selectors.EVENT_READ)


def test_where_there_is_no_poll_the_loop_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """On Windows, or where eventlet has patched the module."""
    monkeypatch.delattr(select, "poll")
    one, other = socket.socketpair()
    with closing(NetworkClient()) as client, one, other:
        assert [*loop_of(client).wait_write(one).__await__()] != []


def test_a_full_socket_is_waited_for_and_no_other() -> None:
    one, other = socket.socketpair()
    with closing(NetworkClient()) as client, one, other:
        net = loop_of(client)
        one.setblocking(False)
        assert [*net.wait_write(one).__await__()] == []
        with suppress(BlockingIOError):
            while True:
                one.send(bytes(1 << 16))
        assert [*net.wait_write(one).__await__()] != []
