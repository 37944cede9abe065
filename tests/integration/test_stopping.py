"""Stops while Kafka is down, and `run` with a process that is stuck or does not start."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import psutil
import pytest
from tests.harness.config_file import write_config
from tests.harness.launcher import events, launch, wait_until
from tests.harness.shared_broker import SharedBroker

from duewheel.checkpoints.file_lock import holder_of
from duewheel.checkpoints.process_role import Role
from duewheel.checkpoints.state_file import State
from duewheel.config.settings import load
from duewheel.errors import ConfigError, Locked
from duewheel.java.find import Java
from duewheel.osutil.child_process import Child
from duewheel.runtime import run_file
from duewheel.wheel.storage.data_directory import DataDirectory

pytestmark = pytest.mark.slow

DEADLINE_S = 60.0
STOP_S = 8.0  # promised: `run` kills what takes longer


@pytest.fixture(params=["refuses", "is silent"])
def kafka_away(request: pytest.FixtureRequest) -> Iterator[str]:
    """The address of a Kafka that refuses connections, or takes them and never answers."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        if request.param == "is silent":
            listener.listen()
        yield f"127.0.0.1:{listener.getsockname()[1]}"


def configured(path: Path, servers: str, name: str = "duewheel") -> Path:
    return write_config(path, servers, name, log={"format": "json"})


def start(config: Path, command: str) -> Child:
    config.with_name(f"{command}.log").unlink(missing_ok=True)
    return launch(config, command, on_parent_death=signal.SIGTERM)


def wait_for(what: str, condition: Callable[[State], bool], data: Path) -> None:
    """Wait until the data directory's state says so."""
    wait_until(lambda: (data / "state").exists() and look(data, condition), what, DEADLINE_S)


def look(data: Path, condition: Callable[[State], bool]) -> bool:
    state = State.open(data)
    try:
        return condition(state)
    finally:
        state.release()


def stopped_cleanly(data: Path) -> bool:
    return look(data, lambda state: state.stopped_cleanly)


@pytest.mark.parametrize("command", ["dequeue", "ingest"])
def test_a_process_stops_in_order_while_kafka_is_away(
    kafka_away: str, tmp_path: Path, command: str
) -> None:
    data = tmp_path / "data"
    process = start(configured(tmp_path, kafka_away), command)
    try:
        wait_for("it has started", lambda state: state.starts == 1, data)
        time.sleep(1)  # more often than not it waits for Kafka then
        assert process.end(signal.SIGTERM, STOP_S)
        assert process.exit_code == 0
        assert stopped_cleanly(data)
    finally:
        process.stop(0)


def test_run_stops_in_order_although_a_process_had_to_be_killed(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        run = start(configured(tmp_path, f"127.0.0.1:{nobody.getsockname()[1]}"), "run")
        try:
            wait_for("both have started", lambda state: state.starts == 2, data)
            dequeue = holder_of(data / Role.DEQUEUE.lock_name)
            assert dequeue
            os.kill(dequeue, signal.SIGSTOP)
            assert run.end(signal.SIGTERM, DEADLINE_S)
            assert run.exit_code == 0
            assert holder_of(data / Role.DEQUEUE.lock_name) is None
            assert stopped_cleanly(data)
        finally:
            run.stop(DEADLINE_S)


@pytest.mark.kafka
@pytest.mark.crash_matrix
@pytest.mark.parametrize(
    ("role", "name"),
    [(Role.INGEST, "ingest"), (Role.DEQUEUE, "dequeue")],
)
def test_either_goes_on_where_the_other_is_refused_until_that_is_started(
    broker: SharedBroker, tmp_path: Path, unique_name: Callable[[str], str], role: Role, name: str
) -> None:
    config = configured(tmp_path, broker.bootstrap_servers, unique_name("app"))
    init = start(config, "init")
    assert init.wait(DEADLINE_S)
    assert init.exit_code == 0
    settings = load(config)
    data = settings.storage.data_dir
    other = DataDirectory.start(data, settings.wheel, role)
    run = start(config, "run")
    try:
        wait_for("it was refused twice", partial(was_refused_twice, config, name), data)
        if role is Role.INGEST:
            wait_for("dequeue goes on", Beats().several, data)
        other.stop()
        wait_for("it runs", partial(lives, data, name), data)
        assert run.end(signal.SIGTERM, DEADLINE_S)
        assert run.exit_code == 0
    finally:
        run.stop(DEADLINE_S)
    assert stopped_cleanly(data)


@pytest.mark.kafka
def test_run_ends_with_the_refusal_of_a_process_that_has_not_run_since(
    broker: SharedBroker, tmp_path: Path, unique_name: Callable[[str], str]
) -> None:
    config = configured(tmp_path, broker.bootstrap_servers, unique_name("app"))
    settings = load(config)
    data = settings.storage.data_dir
    run = start(config, "run")
    assert run.wait(DEADLINE_S)
    assert run.exit_code == ConfigError.exit_code, "there are no topics yet"
    other = DataDirectory.start(data, settings.wheel, Role.INGEST)
    init = start(config, "init")
    assert init.wait(DEADLINE_S)
    run = start(config, "run")
    try:
        wait_for("ingest is refused", lambda _: refusals(config, "ingest") > 0, data)
        assert run.end(signal.SIGTERM, DEADLINE_S)
        assert run.exit_code == Locked.exit_code
    finally:
        run.stop(DEADLINE_S)
        other.stop()


class Beats:
    """Signs of life of dequeue, counted from the first look on."""

    def __init__(self) -> None:
        self._seen: set[int] = set()

    def several(self, state: State) -> bool:
        """Whether there were some by now."""
        self._seen.add(state.live.heartbeat(Role.DEQUEUE).at_ms)
        return len(self._seen) > 4


def refusals(config: Path, name: str) -> int:
    """How often `run` says that this process met a lock."""
    died = events(config.with_name("run.log"), "process died")
    return sum((e["process"], e["exit_code"]) == (name, Locked.exit_code) for e in died)


def was_refused_twice(config: Path, name: str, _: State) -> bool:
    return refusals(config, name) > 1


def lives(data: Path, name: str, _: State) -> bool:
    """Whether `run` knows that this process runs."""
    known = run_file.read(data)
    return known is not None and known[name].lives


@pytest.mark.spark
@pytest.mark.parametrize("delay_s", [pytest.param(0.0, marks=pytest.mark.crash_matrix), 1.0])
def test_a_jvm_that_starts_ends_with_its_process(
    java: Java, tmp_path: Path, delay_s: float
) -> None:
    """Also if the folder is gone to which it would report its port, as behind the next start."""
    code = f"""
from pathlib import Path
from duewheel.streaming.session import SessionOptions, start_session
start_session(SessionOptions("killed", Path({str(tmp_path)!r}), Path({str(java.home)!r})))
"""
    jvms = partial(jvms_of, tmp_path / "scratch")
    process = subprocess.Popen([sys.executable, "-P", "-c", code], stderr=subprocess.DEVNULL)
    try:
        wait_until(jvms, "its JVM", DEADLINE_S, 0.01)
        time.sleep(delay_s)
    finally:
        process.kill()
        process.wait(DEADLINE_S)
    shutil.rmtree(tmp_path / "scratch")
    try:
        wait_until(lambda: not jvms(), "the end of its JVM", DEADLINE_S)
    finally:
        for left in jvms():
            left.kill()


def jvms_of(scratch: Path) -> list[psutil.Process]:
    """The JVMs whose Spark writes there."""
    found = []
    for process in psutil.process_iter(["name"]):
        with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            if process.info["name"] == "java" and (
                process.environ().get("SPARK_LOCAL_DIRS") == str(scratch)
            ):
                found.append(process)
    return found
