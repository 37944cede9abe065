"""The list of required Kafka APIs equals the requests, recorded through a proxy."""

from __future__ import annotations

from collections import defaultdict
from contextlib import closing
from pathlib import Path

import pytest
from kafka import KafkaProducer
from tests.harness.config_file import write_config
from tests.harness.examining import settings_for
from tests.harness.fault_proxy import FaultProxy
from tests.harness.launcher import launch, run, tail, wait_until
from tests.harness.shared_broker import SharedBroker

from duewheel.clock import SystemClock
from duewheel.config.settings import Settings
from duewheel.doctor import apis
from duewheel.kafka.topics.admin import KafkaAdmin
from duewheel.ops.shard.status import read_status

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.spark,
    pytest.mark.crash_matrix,
    pytest.mark.usefixtures("java"),
    pytest.mark.timeout(900),
]

LISTED = {api.key: api for api in (*apis.NEEDED, *apis.OPTIONAL)}


class Commands:
    """Commands that reach the broker through the proxy only."""

    def __init__(self, path: Path, broker: SharedBroker, proxy: FaultProxy) -> None:
        self.broker, self.proxy, self.name = broker, proxy, f"apis-{proxy.port}"
        self.timers, self.data_dir = f"{self.name}.timers", path / "data"
        self.config = write_config(
            path,
            proxy.bootstrap_servers,
            self.name,
            timer={
                "roll_window": "5s",
                "mapping": {self.timers: f"{self.name}.orders"},
                "reply_topic": f"{self.name}.answers",
            },
            dequeue={"hot_slot_window": "1s"},
        )
        with KafkaAdmin({"bootstrap_servers": broker.bootstrap_servers}) as admin:
            admin.create_topic(f"{self.name}.orders", 2)

    def run(self, *words: str, codes: frozenset[int] = frozenset({0})) -> None:
        done = run(self.config, *words)
        assert done.returncode in codes, done.stderr

    def serve(self, settings: Settings) -> None:
        """`run`, until timers, some of which roll, and dead letters have come through."""
        supervisor = launch(self.config, "run")
        try:
            with closing(KafkaProducer(bootstrap_servers=self.broker.bootstrap_servers)) as to:
                for number in range(40):
                    after_ms = b"%d" % (200 * number)  # the last ones beyond the window
                    to.send(self.timers, b"%d" % number, headers=[("TIMER_DELAY_MS", after_ms)])
                to.send(self.timers, b"no due time")
                nowhere = [("TIMER_DELAY_MS", b"0"), ("REAL_TOPIC", b"no.such.topic")]
                to.send(self.timers, b"no target", headers=nowhere)
            wait_until(
                lambda: (
                    self.data_dir.exists() and read_status(settings, SystemClock()).delivered >= 42
                ),
                lambda: tail(self.config.with_name("run.log")),
                every_s=0.2,
            )
            # Nobody has such a timer: that is what the answer says.
            self.run("cancel", "--id", "x", "--partition", "0", codes=frozenset({1}))
        finally:
            supervisor.stop(60)


def test_every_request_is_listed_at_a_version_that_is_allowed(
    tmp_path: Path, broker: SharedBroker, proxy: FaultProxy
) -> None:
    commands = Commands(tmp_path, broker, proxy)
    settings = settings_for(tmp_path, proxy.bootstrap_servers, commands.name)
    commands.run("init", "--partitions", "2")
    commands.serve(settings)
    commands.run("send", "--target", f"{commands.name}.orders", "--value", "x", "--delay", "1s")
    commands.run("dlq", "list")
    commands.run("dlq", "replay", codes=frozenset({0, 1}))
    commands.run("recover", "--dry-run")
    commands.run("audit", codes=frozenset({0, 1}))
    commands.run("doctor")
    commands.run("reshard", "--to", "2")

    sent: dict[int, set[int]] = defaultdict(set)
    for key, version in proxy.asked:
        sent[key].add(version)
    assert sent.keys() == LISTED.keys()
    lowest = {key: min(versions) for key, versions in sent.items()}
    assert {k: v for k, v in lowest.items() if v < LISTED[k].version_min} == {}
    newest = {key: max(versions) for key, versions in sent.items()}
    assert newest == {key: LISTED[key].version_max for key in sent}
