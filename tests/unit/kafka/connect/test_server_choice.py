"""Which servers a network client takes, and how long it waits for them.

With real brokers: tests/integration/test_silent_servers.py.
"""

from __future__ import annotations

import gc
from collections.abc import Sequence
from contextlib import closing
from typing import Any

import pytest
from kafka.errors import KafkaTimeoutError, RequestTimedOutError
from kafka.future import Future
from kafka.protocol.metadata import MetadataResponse
from tests.harness.small_servers import is_silent, server

from duewheel.kafka.connect import server_choice
from duewheel.kafka.connect.network_client import NetworkClient, loop_of, manager_of
from duewheel.kafka.connect.server_choice import SilentServers

PORT = 9092


@pytest.fixture(autouse=True)
def silent(monkeypatch: pytest.MonkeyPatch) -> SilentServers:
    own = SilentServers()
    monkeypatch.setattr(server_choice, "SILENT", own)
    return own


def client_of(hosts: Sequence[str]) -> NetworkClient:
    """Its cluster has these brokers."""
    client = NetworkClient()
    for node_id, host in enumerate(hosts):
        broker = MetadataResponse.MetadataResponseBroker(node_id, host, PORT, None)
        client.cluster._brokers[node_id] = broker  # noqa: SLF001
    return client


def test_a_server_is_silent_for_some_seconds_and_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    now_s = 0.0
    silent = SilentServers(lambda: now_s)
    for _ in range(2):
        silent.add("kafka-1", PORT, "refused")
    assert silent.has("kafka-1", PORT)
    assert not silent.has("kafka-2", PORT)
    assert caplog.messages == ["Kafka server kafka-1:9092 comes last for 30 s: refused"]
    now_s = 31.0
    assert not silent.has("kafka-1", PORT)
    silent.add("kafka-1", PORT, "refused")
    assert len(caplog.messages) == 2
    silent.remove("kafka-1", PORT)
    assert not silent.has("kafka-1", PORT)


def test_a_silent_server_is_taken_only_if_there_is_no_other(silent: SilentServers) -> None:
    with closing(client_of(["kafka-0", "kafka-1"])) as client:
        taken = [manager_of(client).least_loaded_node() for _ in range(100)]
        assert set(taken) == {0, 1}
        silent.add("kafka-0", PORT, "hangs")
        assert {manager_of(client).least_loaded_node() for _ in range(100)} == {1}
        silent.add("kafka-1", PORT, "hangs")
        assert {manager_of(client).least_loaded_node() for _ in range(100)} == {0, 1}
    with closing(NetworkClient(bootstrap_servers=["kafka-0", "kafka-2"])) as client:
        assert [each.host for each in client.cluster.bootstrap_brokers()] == ["kafka-2"]
        silent.add("kafka-2", PORT, "hangs")
        assert len(client.cluster.bootstrap_brokers()) == 2


def test_a_broker_that_is_away_is_not_ready(silent: SilentServers) -> None:
    """kafka-python's error made its producer forget the request for a coordinator."""
    with closing(NetworkClient(bootstrap_servers="127.0.0.1:1")) as client:
        assert not client.await_ready("bootstrap-0", timeout_ms=1_000)
        assert silent.has("127.0.0.1", 1)


# kafka-python leaves a socket of TLS to the garbage collector where a handshake fails.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("protocol", ["PLAINTEXT", "SSL"])
def test_each_attempt_to_connect_has_twice_as_long(
    protocol: str, silent: SilentServers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether its handshake or its first request has no answer."""
    monkeypatch.setitem(server_choice.CONNECT_MS, "socket_connection_setup_timeout_ms", 50)
    with (
        server(is_silent) as address,
        closing(NetworkClient(bootstrap_servers=address, security_protocol=protocol)) as client,
    ):
        manager, (broker,) = manager_of(client), client.cluster.bootstrap_brokers()
        manager.jitter_pct = lambda: 1.0
        bounds_ms = []
        for _ in range(4):
            loop_of(client).run(_ended_attempt, manager, broker.node_id)
            bounds_ms.append(manager.socket_connection_setup_timeout_ms(broker.node_id))
        assert bounds_ms == [50, 100, 200, 400]
        assert silent.has(broker.host, broker.port)
    gc.collect()  # under the filter


async def _ended_attempt(manager: Any, node_id: str) -> None:
    while manager.connection_delay(node_id):
        await manager._net.sleep(manager.connection_delay(node_id))  # noqa: SLF001
    with pytest.raises((KafkaTimeoutError, RequestTimedOutError)):
        await manager.get_connection(node_id, refresh_metadata_on_err=False)
    await manager._net.sleep(0.01)  # noqa: SLF001


@pytest.fixture
def requested(monkeypatch: pytest.MonkeyPatch) -> dict[int, Future]:
    """The requests for metadata, by broker."""
    sent: dict[int, Future] = {}

    async def refresh(_: object, node_id: int) -> None:
        assert node_id not in sent, "a second time"
        sent[node_id] = Future()
        await sent[node_id]

    monkeypatch.setattr(server_choice, "_METADATA_MS", 10)
    monkeypatch.setattr("kafka.cluster.ClusterMetadata._do_refresh_metadata", refresh)
    return sent


def test_the_first_broker_that_answers_gives_the_metadata(
    requested: dict[int, Future], silent: SilentServers
) -> None:
    async def answered_by_the_second(client: NetworkClient) -> None:
        refreshed = manager_of(client).call_soon(client.cluster.refresh_metadata)
        while len(requested) < 2:
            await loop_of(client).sleep(0.005)
        first, second = requested
        assert silent.has(f"kafka-{first}", PORT)
        requested[second].success(None)
        await refreshed

    with closing(client_of(["kafka-0", "kafka-1"])) as client:
        loop_of(client).run(answered_by_the_second, client)


@pytest.mark.parametrize("fails", [False, True])
def test_the_only_broker_is_waited_for(requested: dict[int, Future], *, fails: bool) -> None:
    async def answered_late(client: NetworkClient) -> None:
        refreshed = manager_of(client).call_soon(client.cluster.refresh_metadata)
        await loop_of(client).sleep(0.05)
        (answer,) = requested.values()
        assert not refreshed.is_done
        if not fails:
            answer.success(None)
            await refreshed
            return
        answer.failure(RequestTimedOutError("in the end"))
        with pytest.raises(RequestTimedOutError, match="in the end"):
            await refreshed

    with closing(client_of(["kafka-0"])) as client:
        loop_of(client).run(answered_late, client)
