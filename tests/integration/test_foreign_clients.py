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

import pytest
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
def java_program(java: Java, kafka_jars: list[Path], require: Require) -> list[str]:
    """Java compiles a single file before it runs it, if it is a JDK's."""
    compiler = java.executable.parent / "javac"
    require(compiler.exists(), "no Java compiler")
    jars = os.pathsep.join(map(str, kafka_jars))
    return [str(java.executable), "-cp", jars, str(CLIENTS / "java" / "Reminder.java")]


@pytest.fixture
def go_program(require: Require, tmp_path: Path) -> list[str]:
    go, program = shutil.which("go"), tmp_path / "reminder"
    require(go, "Go is not installed")
    built = offline([str(go), "build", "-o", str(program), "."], CLIENTS / "go", GOPROXY="off")
    require("GOPROXY=off" not in built.stderr, "franz-go is not in Go's module cache")
    assert built.returncode == 0, built.stderr
    return [str(program)]


@pytest.fixture
def node_program(require: Require, tmp_path: Path) -> list[str]:
    node, npm = shutil.which("node"), shutil.which("npm")
    require(node and npm, "Node or npm is not installed")
    folder = tmp_path / "node"
    shutil.copytree(CLIENTS / "node", folder)
    installed = offline([str(npm), "install", "--offline", "--no-audit", "--no-fund"], folder)
    require("ENOTCACHED" not in installed.stderr, "kafkajs is not in npm's cache")
    assert installed.returncode == 0, installed.stderr
    return [str(node), str(folder / "reminder.js")]


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


@pytest.mark.parametrize("language", ["java", "go", "node"])
def test_a_timer_leaves_and_a_cancelled_one_does_not(
    request: pytest.FixtureRequest, shard: SparklessShard, language: str
) -> None:
    program = request.getfixturevalue(f"{language}_program")
    done = offline([*program, shard.servers, shard.timers, shard.target], CLIENTS)
    assert done.returncode == 0, done.stderr

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

    replies = shard.settings.timer.reply_topic
    assert replies is not None
    until(shard, lambda: bool(read_topic(shard.servers, replies)))
    (reply,) = read_topic(shard.servers, replies)
    assert dict(reply.headers)["TIMER_ANSWER"] == b"cancelled"
