"""The programs of docs/clients, in other languages: what they write is ingested and delivered.

They are compiled and run. Go's and Node's need a library, which comes from the cache of modules, or
of npm: `go mod download` in docs/clients/go and `npm install` in docs/clients/node fill it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Self

import pytest
from kafka import KafkaAdminClient, KafkaProducer
from kafka.admin import MemberToRemove
from tests.harness.config_file import write_config
from tests.harness.reader import read_topic
from tests.harness.shared_broker import SharedBroker
from tests.harness.sparkless_shard import SparklessShard, until

from duewheel.config.settings import load
from duewheel.java.find import Java

# Seconds for each: a compiler, then a program.
pytestmark = [pytest.mark.kafka, pytest.mark.crash_matrix]

Require = Callable[[object, str], None]

CLIENTS = Path(__file__).resolve().parents[2] / "docs" / "clients"
BUILD_S = 240
# Values of RETRY_ATTEMPT that count as none.
NO_ATTEMPTS = (b"", None, b"x", b"0", b"-1", b"-Infinity", b"-1e300", b"1.5", b"1" * 20, b"1\n")
ROOM = 1_048_450  # bytes of a header that a topic takes, and not with those of a retry


@pytest.fixture
def shard(
    broker: SharedBroker, tmp_path: Path, unique_name: Callable[[str], str]
) -> Iterator[SparklessShard]:
    """With more partitions than keys: a cancel finds its timer only by the same partitioner."""
    name = unique_name("app")[-40:].lstrip("-")
    replies = {"reply_topic": f"{name}.replies"}
    config = write_config(tmp_path, broker.bootstrap_servers, name, timer=replies)
    with closing(SparklessShard(load(config), 1)) as shard:
        yield shard


@pytest.fixture
def java_programs(java: Java, kafka_jars: list[Path], require: Require) -> list[list[str]]:
    """Java compiles a single file before it runs it, if it is a JDK's."""
    compiler = java.executable.parent / "javac"
    require(compiler.exists(), "no Java compiler")
    jars = os.pathsep.join(map(str, kafka_jars))
    run = [str(java.executable), "-cp", jars]
    return [[*run, str(CLIENTS / "java" / f"{name}.java")] for name in ("Reminder", "Retry")]


@pytest.fixture
def go_programs(require: Require, tmp_path: Path) -> list[list[str]]:
    go = shutil.which("go")
    require(go, "Go is not installed")
    to = ["-o", f"{tmp_path}/"]
    built = offline([str(go), "build", *to, "./..."], CLIENTS / "go", GOPROXY="off")
    require("GOPROXY=off" not in built.stderr, "franz-go is not in Go's module cache")
    assert built.returncode == 0, built.stderr
    return [[str(tmp_path / name)] for name in ("reminder", "retry")]


@pytest.fixture
def node_programs(require: Require, tmp_path: Path) -> list[list[str]]:
    node, npm = shutil.which("node"), shutil.which("npm")
    require(node and npm, "Node or npm is not installed")
    folder = tmp_path / "node"
    shutil.copytree(CLIENTS / "node", folder)
    installed = offline([str(npm), "install", "--offline", "--no-audit", "--no-fund"], folder)
    require("ENOTCACHED" not in installed.stderr, "kafkajs is not in npm's cache")
    assert installed.returncode == 0, installed.stderr
    return [[str(node), str(folder / f"{name}.js")] for name in ("reminder", "retry")]


def offline(command: list[str], folder: Path, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, **more},
        capture_output=True,
        text=True,
        timeout=BUILD_S,
        check=False,
    )


@pytest.fixture(params=["java", "go", "node"])
def programs(request: pytest.FixtureRequest) -> list[list[str]]:
    """The commands of `reminder` and `retry` in one language."""
    found: list[list[str]] = request.getfixturevalue(f"{request.param}_programs")
    return found


@pytest.fixture
def an_empty_group(broker: SharedBroker) -> Iterator[None]:
    """Afterwards no killed program is a member, which Node's client could not join for 45 s."""
    yield
    with closing(KafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)) as admin:
        members = admin.describe_groups(["billing"])["billing"]["members"]
        admin.remove_group_members(
            "billing", [MemberToRemove(member["member_id"]) for member in members]
        )


def test_a_timer_leaves_and_a_cancelled_one_does_not(
    programs: list[list[str]], shard: SparklessShard, tmp_path: Path
) -> None:
    replies = shard.settings.timer.reply_topic
    assert replies is not None
    with Running(programs[0], shard, tmp_path, shard.target, replies) as running:
        until(shard, running.has_ended, BUILD_S)
        assert running.output() == ["cancelled"]

    written = {(r.key, r.value): r for r in read_topic(shard.servers, shard.timers)}
    assert set(written) == {
        (b"order-42", b"pay your order"),
        (b"order-43", b"pay now"),
        (b"order-42", None),
    }
    due_ms = dict(written[b"order-43", b"pay now"].headers)["TIMER_DELIVER_MS"]
    until(shard, lambda: bool(read_topic(shard.servers, shard.target)))
    (delivered,) = read_topic(shard.servers, shard.target)
    assert (delivered.key, delivered.value) == (b"order-43", b"pay now")
    assert dict(delivered.headers)["TIMER_DUE_MS"] == due_ms
    assert delivered.timestamp >= int(due_ms)


@pytest.mark.usefixtures("an_empty_group")
def test_a_message_that_fails_comes_again_and_then_is_a_dead_letter(
    programs: list[list[str]], shard: SparklessShard, tmp_path: Path
) -> None:
    failed = f"{shard.target}.failed"
    with shard.admin() as admin:
        admin.create_topic(failed, 1)
    with closing(KafkaProducer(bootstrap_servers=shard.servers)) as producer:
        for value in (b"oops", b"order"):
            producer.send(shard.target, value, b"key", headers=[("own", b"1")]).get(30)
    with Running(programs[1], shard, tmp_path, shard.target, failed) as running:
        until(shard, lambda: "given up: oops, attempt 4" in running.output(), BUILD_S)
        assert "done: order, attempt 1" in running.output()
    first, fine, *again = read_topic(shard.servers, shard.target)
    assert (first.value, fine.value) == (b"oops", b"order")
    assert [(r.key, r.value) for r in again] == [(b"key", b"oops")] * 3
    headers = [dict(r.headers) for r in again]
    assert [each["RETRY_ATTEMPT"] for each in headers] == [b"2", b"3", b"4"]
    assert all(each["own"] == b"1" for each in headers)
    (letter,) = read_topic(shard.servers, failed)
    assert (letter.key, letter.value) == (b"key", b"oops")
    assert dict(letter.headers) == {**headers[-1], "RETRY_ERROR_TEXT": b"no order"}


@pytest.mark.usefixtures("an_empty_group")
def test_no_record_of_a_stranger_stops_the_consumer(
    programs: list[list[str]], shard: SparklessShard, tmp_path: Path
) -> None:
    failed = f"{shard.target}.failed"
    with shard.admin() as admin:
        admin.create_topic(failed, 1)
    for attempt in NO_ATTEMPTS:
        shard.send(shard.target, 0, (b"key", b"oops", [("RETRY_ATTEMPT", attempt)]))
    shard.send(shard.target, 0, (b"key", b"oops", [("RETRY_ATTEMPT", b"999999")]))
    shard.send(shard.target, 0, (None, None, []))
    shard.send(shard.target, 0, (b"key", b"oops", [("own", b"x" * ROOM)]))
    shard.send(shard.target, 0, (b"key", b"order", [("own", None)]))
    *_, huge, _ = read_topic(shard.servers, shard.target)
    letters = len(NO_ATTEMPTS) + 2
    with Running(programs[1], shard, tmp_path, shard.target, failed) as running:
        until(
            shard,
            lambda: running.has_ended() or len(read_topic(shard.servers, failed)) == letters,
            BUILD_S,
        )
        assert not running.has_ended()
        output = running.output()
    assert output.count("given up: oops, attempt 4") == len(NO_ATTEMPTS)
    assert "given up: oops, attempt 999999" in output
    assert "done: order, attempt 1" in output
    (pointer,) = (r for r in read_topic(shard.servers, failed) if r.value != b"oops")
    assert (pointer.key, pointer.value) == (None, None)
    assert dict(pointer.headers) == {
        "RETRY_FIRST": f"{shard.target}-0@{huge.offset}".encode(),
        "RETRY_REASON": b"too_large",
        "RETRY_ERROR_TEXT": b"no order",
    }


class Running:
    """A program that runs beside the shard, until the end of a with block."""

    def __init__(
        self, program: list[str], shard: SparklessShard, folder: Path, *topics: str
    ) -> None:
        self._out, self._err = folder / "out", folder / "err"
        with self._out.open("wb") as out, self._err.open("wb") as err:
            command = [*program, shard.servers, shard.timers, *topics]
            self._process = subprocess.Popen(command, stdout=out, stderr=err)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        print(self._err.read_text())

    def has_ended(self) -> bool:
        """Whether it has ended by itself."""
        return self._process.poll() is not None

    def output(self) -> list[str]:
        """The lines of its standard output so far."""
        return self._out.read_text().splitlines()
