"""The development broker: starts on any data, survives a crash, never outlives its starter."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
import tomllib
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from kafka import KafkaAdminClient, KafkaProducer
from kafka.admin import NewTopic
from tests.harness.launcher import run
from tests.harness.reader import read_first

from duewheel.client import transaction
from duewheel.config.credentials import in_clear
from duewheel.dev.broker import JVM_OPTIONS, DevBroker, PortTaken, new_cluster_id
from duewheel.errors import DuewheelError, Locked
from duewheel.java.find import Java

pytestmark = [pytest.mark.kafka, pytest.mark.usefixtures("kafka_jars")]

PATIENCE_S = 120.0

RUN = (sys.executable, "-P", "-m", "duewheel", "dev-broker", "run", "--output", "json")


def write(broker: DevBroker, topic: str, value: bytes) -> None:
    producer = KafkaProducer(bootstrap_servers=broker.bootstrap_servers, acks="all")
    try:
        producer.send(topic, value).get(PATIENCE_S)
    finally:
        producer.close()


def create(broker: DevBroker, topic: str) -> None:
    client = KafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)
    try:
        client.create_topics([NewTopic(topic, 1, 1)])
    finally:
        client.close()


def read(broker: DevBroker, topic: str, count: int) -> list[bytes]:
    return [record.value for record in read_first(broker.bootstrap_servers, topic, count)]


def is_gone(pid: int) -> bool:
    """Whether the process ends within the time, also if it becomes a zombie of somebody else's."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        try:
            if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                return True
        except psutil.NoSuchProcess:
            return True
        time.sleep(0.05)
    return False


@contextmanager
def foreground(*options: str) -> Iterator[tuple[subprocess.Popen[str], dict[str, Any]]]:
    """`dev-broker run` in a process group of its own, and what it prints."""
    command = [*RUN, *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, process_group=0) as runner:
        try:
            assert runner.stdout is not None
            ready = json.loads(runner.stdout.readline())
            host, port = ready["bootstrap_servers"].split(":")
            socket.create_connection((host, int(port)), timeout=PATIENCE_S).close()
            yield runner, ready
        finally:
            runner.kill()


def test_takes_transactions_and_stops_without_a_trace(java: Java) -> None:
    """Started by a thread that ends before it, with a property of the caller's."""
    broker = DevBroker(java=java, properties={"auto.create.topics.enable": "true"})
    starter = threading.Thread(target=broker.start)
    starter.start()
    starter.join()
    try:
        create(broker, "orders")
        write(broker, "made-by-writing", b"value")
        assert read(broker, "made-by-writing", 1) == [b"value"], "the property has no effect"
        producer = KafkaProducer(
            bootstrap_servers=broker.bootstrap_servers, transactional_id="one", retry_backoff_ms=5
        )
        producer.init_transactions()
        with transaction(producer):
            producer.send("orders", b"value")
        producer.close()
        assert read(broker, "orders", 1) == [b"value"]
        assert not broker.wait(0), "it has ended with the thread that has started it"
        pid, folder = broker.pid, broker.data_dir
        assert folder.exists()
    finally:
        broker.stop()
    assert is_gone(pid)
    assert not folder.exists()


@pytest.mark.crash_matrix
def test_data_and_address_outlive_a_kill_and_a_given_folder_the_broker(
    java: Java, tmp_path: Path
) -> None:
    with DevBroker(tmp_path / "kafka", java=java) as broker:
        address = broker.bootstrap_servers
        create(broker, "orders")
        write(broker, "orders", b"before")
        with pytest.raises(Locked, match="another broker"):
            DevBroker(tmp_path / "kafka", java=java).start()
        broker.kill()
        broker.restart()
        write(broker, "orders", b"after the crash")
        broker.restart()
        assert broker.bootstrap_servers == address
        assert read(broker, "orders", 2) == [b"before", b"after the crash"]
    with DevBroker(tmp_path / "kafka", java=java) as broker:
        assert read(broker, "orders", 2) == [b"before", b"after the crash"]


def test_port_in_use_is_named_and_nothing_stays(java: Java, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        before = {child.pid for child in psutil.Process().children()}
        with pytest.raises(PortTaken, match=str(port)):
            DevBroker(tmp_path, port=port, java=java).start()
    assert {child.pid for child in psutil.Process().children()} <= before


def test_impossible_setting_is_reported_in_kafkas_words(java: Java) -> None:
    with pytest.raises(DuewheelError, match=r"num\.partitions"):
        DevBroker(java=java, properties={"num.partitions": "many"}).start()


def test_a_complaint_of_the_jvm_is_reported_though_kafka_has_begun_its_log(
    java: Java, tmp_path: Path
) -> None:
    """The heap is too small for Kafka, which says so on the JVM's own output only."""
    options = (*JVM_OPTIONS, "-XX:+ExitOnOutOfMemoryError")
    with pytest.raises(DuewheelError, match="OutOfMemoryError"):
        DevBroker(tmp_path, java=java, heap_mb=12, java_options=options).start()
    assert (tmp_path / "server.log").stat().st_size > 0


@pytest.mark.usefixtures("hangup")
@pytest.mark.parametrize(
    "number",
    [
        signal.SIGTERM,
        pytest.param(signal.SIGINT, marks=pytest.mark.crash_matrix),
        pytest.param(signal.SIGHUP, marks=pytest.mark.crash_matrix),
    ],
)
def test_runs_in_the_foreground_until_a_signal(tmp_path: Path, number: signal.Signals) -> None:
    with foreground("--data-dir", str(tmp_path)) as (runner, ready):
        # To the whole group, as a terminal does it on Ctrl-C: the broker itself must not get it.
        os.killpg(runner.pid, number)
        assert runner.wait(PATIENCE_S) == 0
        assert is_gone(ready["pid"])
    assert (tmp_path / "data" / ".kafka_cleanshutdown").exists()


def test_ends_when_its_starter_is_killed(tmp_path: Path) -> None:
    with foreground("--data-dir", str(tmp_path)) as (runner, ready):
        runner.kill()
        assert is_gone(ready["pid"])


def holders_of(secret: str, folder: Path) -> dict[str, int]:
    """The files with it, and their modes."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    found = [path for path in files if secret.encode() in path.read_bytes()]
    return {path.name: stat.S_IMODE(path.stat().st_mode) for path in found}


@pytest.mark.crash_matrix
def test_a_login_is_needed_and_written_for_clients(tmp_path: Path) -> None:
    """In a temporary folder, of which nothing stays."""
    with foreground("--sasl-ssl") as (runner, ready):
        written, servers = Path(ready["client_config"]), ready["bootstrap_servers"]
        config = tmp_path / "duewheel.toml"
        config.write_text(f'{written.read_text()}[timer]\ntopics = ["orders.delayed"]\n')
        created = run(config, "topic", "create", "orders")
        assert created.returncode == 0, created.stderr

        options = in_clear(tomllib.loads(written.read_text())["kafka"]["client"])
        producer = KafkaProducer(bootstrap_servers=servers, transactional_id="one", **options)
        producer.init_transactions()
        for value in (b"first", b"second"):  # the broker ends the first as a client of its own
            with transaction(producer):
                producer.send("orders", value)
        producer.close()
        assert len(read_first(servers, "orders", 2, **options)) == 2

        password = str(options["sasl_plain_password"])
        assert password not in json.dumps(ready)
        holders = holders_of(password, written.parent)
        assert holders == {"password": 0o600, "server.properties": 0o600}

        wrong = tmp_path / "wrong-password"
        wrong.write_text("hunter2\n")
        for setting, reason in {
            f"sasl_plain_password_file={wrong}": "does not accept user 'duewheel'",
            "security_protocol=SASL_PLAINTEXT": "speaks TLS",
        }.items():
            refused = run(config, "topic", "create", "late", "--set", f"kafka.client.{setting}")
            assert refused.returncode == 2 and reason in refused.stderr
        os.kill(runner.pid, signal.SIGTERM)
        assert runner.wait(PATIENCE_S) == 0
        assert is_gone(ready["pid"]) and not written.parent.exists()


@pytest.mark.crash_matrix
def test_a_login_stays_the_same_and_needs_no_new_data(java: Java, tmp_path: Path) -> None:
    """So that a client that runs meanwhile is let in again."""
    with DevBroker(tmp_path, java=java) as broker:
        create(broker, "orders")
        write(broker, "orders", b"before")
    with DevBroker(tmp_path, java=java, sasl_ssl=True) as broker:
        assert broker.client_config is not None
        options = in_clear(tomllib.loads(broker.client_config.read_text())["kafka"]["client"])
        broker.restart()
        (found,) = read_first(broker.bootstrap_servers, "orders", 1, **options)
        assert found.value == b"before"


def test_a_cluster_id_is_never_taken_for_an_option() -> None:
    ids = [new_cluster_id(uuid.UUID(int=first << 120)) for first in range(256)]
    assert all(name[0].isalpha() and len(name) == 22 for name in ids)
