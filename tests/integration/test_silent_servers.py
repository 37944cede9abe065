"""A server of a cluster takes connections and answers nothing, as a process that hangs."""

from __future__ import annotations

import random
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaAdminClient
from tests.harness.config_file import write_config
from tests.harness.launcher import paused, wait_until
from tests.harness.publishing import (
    Message,
    Names,
    create_topics,
    new_publisher,
    progress,
    publish,
    read,
    slot_of,
    started,
    values,
)
from tests.harness.shared_broker import SharedBroker
from tests.harness.small_servers import hangs, server
from tests.soak.cluster import Cluster

from duewheel.config.settings import load
from duewheel.deadline import Deadline
from duewheel.errors import PublishDoubt
from duewheel.kafka.connect.clients import KafkaClients, close
from duewheel.kafka.connect.network_client import loop_of, manager_of
from duewheel.kafka.connect.server_choice import SILENT
from duewheel.kafka.publish.publisher import KafkaPublisher
from duewheel.ops.changes.producer_pool import connect_plain

pytestmark = pytest.mark.kafka

ROWS = 50
OUTAGE_S = 40.0  # Kafka's own takes 9 s


def test_a_client_takes_another_server_and_the_next_one_takes_that_at_once(
    broker: SharedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    connections = 0

    def is_counted(connection: socket.socket) -> None:
        nonlocal connections
        connections += 1
        hangs(connection)

    def silent_first(drawn: Sequence[Any]) -> Any:
        return min(drawn, key=lambda each: f"{each.host}:{each.port}" != silent)

    monkeypatch.setattr(random, "choice", silent_first)
    with server(is_counted) as silent:
        clients = KafkaClients({"bootstrap_servers": [silent, broker.bootstrap_servers]})
        with clients.opened(KafkaAdminClient, Deadline(30)):
            taken = connections
        assert taken > 0
        with clients.opened(KafkaAdminClient, Deadline(30)):
            pass
        close(clients.connect(Deadline(30)))
        assert connections == taken


def test_one_server_that_logs_a_client_in_is_not_made_to_wait_for_the_others(
    broker: SharedBroker,
) -> None:
    given_up = threading.Event()

    def is_watched(connection: socket.socket) -> None:
        hangs(connection)
        given_up.set()

    with server(is_watched) as silent:
        clients = KafkaClients({"bootstrap_servers": [silent, broker.bootstrap_servers]})
        clients.require_login(Deadline(5))
        assert not given_up.is_set()


def test_a_server_that_answers_is_silent_no_longer(broker: SharedBroker) -> None:
    host, _, port = broker.bootstrap_servers.rpartition(":")
    SILENT.add(host, int(port), "a test")
    clients = KafkaClients({"bootstrap_servers": broker.bootstrap_servers})
    with clients.opened(KafkaAdminClient, Deadline(30)):
        assert not SILENT.has(host, int(port))


@pytest.mark.parametrize("given", [{}, {"request_timeout_ms": 20_000}])
def test_the_time_out_of_an_operator_wins(
    broker: SharedBroker, tmp_path: Path, given: dict[str, int]
) -> None:
    config = write_config(tmp_path, broker.bootstrap_servers, "shop", kafka={"client": given})
    with closing(connect_plain(load(config))) as producer:
        assert producer.config["request_timeout_ms"] == given.get("request_timeout_ms", 10_000)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(3, tmp_path) as cluster:
        yield cluster


@pytest.mark.crash_matrix
def test_metadata_comes_from_another_broker(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    clients = KafkaClients({"bootstrap_servers": cluster.bootstrap_servers})
    with closing(clients.connect(Deadline(30))) as client:
        assert all(client.await_ready(number) for number in cluster.numbers)
        monkeypatch.setattr(random, "random", lambda: 0.0)
        hung = manager_of(client).least_loaded_node()
        with paused(cluster.pid_of(hung)):
            loop_of(client).run(client.cluster.refresh_metadata)
            assert manager_of(client).least_loaded_node() != hung


def coordinator(cluster: Cluster, transactional_id: str) -> int:
    return cluster.coordinator_of(transactional_id)


def another(cluster: Cluster, transactional_id: str) -> int:
    others = set(cluster.numbers) - {cluster.coordinator_of(transactional_id)}
    return min(others)


@pytest.mark.crash_matrix
@pytest.mark.timeout(600)
@pytest.mark.parametrize("which", [coordinator, another])
def test_deliveries_go_on_while_one_of_three_brokers_stands_still(
    cluster: Cluster, which: Callable[[Cluster, str], int]
) -> None:
    with closing(KafkaAdminClient(bootstrap_servers=cluster.bootstrap_servers)) as admin:
        names = create_topics(admin)
    cluster.await_in_sync()
    with (
        closing(new_publisher(cluster, names, 0)) as publisher,
        delivering(publisher, names) as done,
    ):
        wait_until(lambda: len(done) > 5, "nothing is delivered")
        with paused(cluster.pid_of(which(cluster, f"{names.state}-0"))):
            # What was under way may still be answered by the others.
            enough = len(done) + 20
            wait_until(lambda: len(done) > enough, "nothing is delivered", OUTAGE_S, 0.2)
    delivered = values(read(cluster, names.target))
    assert len(delivered) == len(set(delivered)) == ROWS * len(done)


@contextmanager
def delivering(publisher: KafkaPublisher, names: Names) -> Iterator[list[int]]:
    """Publishes slot after slot beside the block; the slots that are known to be delivered."""
    done: list[int] = []
    ending = threading.Event()

    def deliver() -> None:
        slot = 0
        started(publisher)
        while not ending.is_set():
            number = slot * ROWS
            rows = [Message(names.target, b"%d" % i) for i in range(number, number + ROWS)]
            try:
                publish(publisher, rows, progress(slot))
            except PublishDoubt:
                known = slot_of(started(publisher))
                if known != slot:
                    continue
            done.append(slot)
            slot += 1

    thread = threading.Thread(target=deliver)
    thread.start()
    try:
        yield done
    finally:
        ending.set()
        thread.join()
