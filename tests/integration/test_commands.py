"""`init` and `status` as deployments call them: repeatedly, also beside running processes."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner
from kafka import KafkaProducer
from tests.harness.config_file import write_config
from tests.harness.launcher import launch, objects, run
from tests.harness.shared_broker import SharedBroker

from duewheel.checkpoints.live_fields import Lag
from duewheel.checkpoints.process_role import Role
from duewheel.cli.main import cli
from duewheel.clock import SystemClock
from duewheel.config.settings import load
from duewheel.errors import ConfigError, Locked
from duewheel.ops.shard.status import read_status
from duewheel.wheel.storage.data_directory import DataDirectory

pytestmark = pytest.mark.kafka


def test_init_may_be_repeated(config: Path) -> None:
    first = run(config, "init")
    assert first.returncode == 0, first.stderr
    assert "the shard has begun" in first.stdout
    again = run(config, "init")
    assert again.returncode == 0, again.stderr
    assert "the shard has begun before: its progress is not changed" in again.stdout


def test_before_init_each_reader_of_a_topic_names_it(config: Path) -> None:
    for words in (["dlq", "list"], ["recover", "--dry-run"]):
        error = CliRunner().invoke(cli, [*words, "--config", str(config)]).exception
        assert isinstance(error, ConfigError), (words, error)
        assert "`duewheel init` creates" in str(error)
    told = CliRunner().invoke(
        cli, ["reshard", "--to", "2", "--config", str(config)], catch_exceptions=False
    )
    assert told.output.startswith("no shard has begun: begin each of the ")


def test_a_name_that_no_topic_can_have_is_not_looked_up(config: Path) -> None:
    for words in (["topic", "create"], ["topic", "read"], ["topic", "read", "--for-send"]):
        refused = run(config, *words, "a topic")
        assert refused.stderr.startswith("duewheel: 'a topic' is no topic name"), refused.stderr
        assert refused.returncode == 2


def test_what_deployments_ask_of_running_processes(config: Path) -> None:
    assert run(config, "health").returncode == 2
    assert run(config, "init").returncode == 0
    assert run(config, "status").returncode == 0
    assert run(config, "health").returncode == 1
    settings = load(config)
    shard = {
        role: DataDirectory.start(settings.storage.data_dir, settings.wheel, role) for role in Role
    }
    try:
        # Who holds the lock and has given no sign of life may yet find that there is no progress.
        assert run(config, "init").returncode == Locked.exit_code
        for role, directory in shard.items():
            assert not read_status(settings, SystemClock()).ready
            directory.state.live.beat(role, os.getpid(), SystemClock().now_ms(), 0)
        assert not read_status(settings, SystemClock()).ready
        now_ms = SystemClock().now_ms()
        shard[Role.DEQUEUE].state.live.note_lag(Lag(now_ms, 0, now_ms, now_ms, 0))
        running = run(config, "health")
        assert running.returncode == 0, running.stdout
        beside = run(config, "init")
        assert beside.returncode == 0, beside.stderr
        assert "its progress is not changed" in beside.stdout
    finally:
        for directory in shard.values():
            directory.stop()


def test_a_first_message_needs_no_tools_of_kafka(
    broker: SharedBroker, tmp_path: Path, unique_name: Callable[[str], str]
) -> None:
    name = unique_name("app")[-40:].lstrip("-")
    target = f"{name}.orders"
    mapping = {"mapping": {f"{name}.timers": target}}
    config = write_config(tmp_path, broker.bootstrap_servers, name, timer=mapping)
    first = run(config, "init")
    assert first.returncode == 0, first.stderr
    assert f"{target}  missing  its due messages become dead letters" in first.stdout
    assert "Kafka at" in run(config, "topic", "read", target).stderr
    sent = run(config, "send", "--target", target, "--value", "v", "--delay", "1h")
    assert f"there is no topic '{target}' yet" in sent.stderr
    created, begun = objects(config, "init", "--create-targets")[1][-2:]
    assert (created["state"], begun["shard"], begun["began"]) == ("created", 0, False)
    assert run(config, "topic", "create", target).stdout == f"{target}  found\n"
    assert "`duewheel init` creates it" in run(config, "topic", "create", f"{name}.state").stderr

    with closing(KafkaProducer(bootstrap_servers=broker.bootstrap_servers)) as producer:
        at_ms = SystemClock().now_ms() - 60_000
        headers = [("TIMER_DUE_MS", b"%d" % (at_ms - 1_500))]
        producer.send(target, b"pay", b"order-42", headers, 0, at_ms).get(60)
    earlier = objects(config, "topic", "read", target, "--follow", "--from", "0", "--limit", "1")
    (row,) = earlier[1]
    assert (row["key"], row["value"], row["late_ms"]) == ("order-42", "pay", 1_500)
    follower = launch(config, "topic", "read", target, "--follow", "--limit", "1")
    with closing(KafkaProducer(bootstrap_servers=broker.bootstrap_servers)) as producer:
        while not follower.wait(0.2):
            producer.send(target, b"later")
    assert config.with_name("topic.log").read_text().endswith("later\n")
    text = run(config, "topic", "read", target, "--limit", "1").stdout
    assert text.split("  ")[1:] == ["0@0", "1500ms late", "key order-42", "pay\n"]
