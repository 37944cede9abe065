"""A warm standby on the real processes, under load: the owner is killed in the middle of a slot."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.harness.launcher import events, launch, paused, run
from tests.harness.loaded_shard import LoadedShard
from tests.harness.whole_shard import CLOCK

from duewheel.clock import SystemClock
from duewheel.config.settings import load
from duewheel.dev.broker import DevBroker
from duewheel.errors import ConfigError, Fenced
from duewheel.java.find import Java
from duewheel.ops.shard.status import read_status
from duewheel.osutil.child_process import Child
from duewheel.wheel.storage.full_check import check

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.crash_matrix,
    pytest.mark.usefixtures("java"),
    pytest.mark.timeout(1200),
]


class Instance:
    """`duewheel run` or `duewheel standby` on a data directory of its own."""

    def __init__(self, shard: LoadedShard, data_dir: Path) -> None:
        self.shard = shard
        self.log = data_dir.with_suffix(".log")
        self.flags = ["--data-dir", str(data_dir)]
        self.settings = load(shard.config, {"storage": {"data_dir": str(data_dir)}})
        self.child: Child | None = None

    def start(self, command: str) -> Child:
        self.child = launch(self.shard.config, command, *self.flags, log=self.log)
        self.shard.supervisors.append(self.child)
        return self.child

    def alone(self, *words: str) -> tuple[int, str, str]:
        """Exit code, stdout and stderr of a command that ends by itself."""
        done = run(self.shard.config, *words, *self.flags)
        return done.returncode, done.stdout, done.stderr

    def status(self) -> dict[str, Any]:
        return read_status(self.settings, SystemClock()).as_json()

    def events(self, event: str) -> list[dict[str, Any]]:
        return events(self.log, event)

    def await_standby(self) -> None:
        """It has all that the owner had closed a while ago: a batch may take long."""
        self.shard.wait(lambda: bool(self.events("standing by")))
        self.shard.wait(lambda: self.status()["ingest"]["state"] == "running")
        self.shard.wait(lambda: self.status()["standby"]["behind_ms"] < 20_000)

    def promote(self) -> float:
        """`duewheel promote`; the seconds that it says to have taken."""
        code, out, said = self.alone("promote", "--output", "json")
        assert code == 0, said
        return float(json.loads(out)["took_s"])


@pytest.fixture(scope="module")
def broker(java: Java, kafka_jars: list[Path]) -> Iterator[DevBroker]:
    """One that may stand still."""
    with DevBroker(java=java) as running:
        yield running


@pytest.fixture
def shard(
    tmp_path: Path, broker: DevBroker, request: pytest.FixtureRequest
) -> Iterator[LoadedShard]:
    """With the given line about `take_over_after`."""
    shard = LoadedShard(tmp_path, broker.bootstrap_servers, f"standby-{uuid.uuid4().hex[:8]}")
    text = shard.config.read_text().replace('take_over_after = "1s"', request.param)
    shard.config.write_text(text)
    shard.settings = load(shard.config)
    try:
        shard.start()
        shard.load.start()
        yield shard
    finally:
        shard.close()


@pytest.mark.parametrize("shard", ['take_over_after = "60s"'], indirect=True)
def test_a_standby_takes_over(shard: LoadedShard) -> None:
    first, second = Instance(shard, shard.data), Instance(shard, shard.path / "second")
    second.start("standby")
    second.await_standby()
    before = second.status()
    assert (before["role"], before["recovering"]) == ("standby", None)
    shard.wait(lambda: second.status()["pending"] > 0)

    shard.burst()
    shard.kill_all()
    killed_ms = CLOCK.now_ms()
    took_s = second.promote()
    shard.wait(lambda: any(at > killed_ms + 1_000 for *_, at in arrivals(shard)))
    resumed_ms = min(at for *_, at in arrivals(shard) if at > killed_ms + 1_000)
    print({"took_s": took_s, "until_delivery_s": (resumed_ms - killed_ms) / 1000})
    shard.await_arrivals()

    # Nothing was rebuilt, and ingest has run on.
    after = second.status()
    assert (after["role"], after["standby"]) == ("owner", None)
    assert after["ingest"]["pid"] == before["ingest"]["pid"]
    assert [event["case"] for event in second.events("dequeue started")] == ["standby"]
    assert len(second.events("recovered")) == 1

    # The former owner is refused, and can follow; then they change places, while both live.
    code, _, said = first.alone("dequeue")
    assert (code, "belongs to the data directory" in said) == (Fenced.exit_code, True)
    assert second.alone("promote")[0] == ConfigError.exit_code
    first.start("standby")
    first.await_standby()
    assert first.promote() >= 0
    assert second.child is not None
    shard.wait(lambda: second.child is not None and second.child.exit_code is not None)
    assert second.child.exit_code == Fenced.exit_code
    shard.await_arrivals()

    time.sleep(2)  # a double would come with the next chunk
    shard.load.stop()
    shard.await_arrivals()
    shard.judge()
    assert first.child is not None
    first.child.stop(30)
    for instance in (first, second):
        report = check(instance.settings.storage.data_dir, instance.settings.wheel)
        assert report.ok, report.findings


@pytest.mark.parametrize("shard", [""], indirect=True)
def test_a_standby_takes_over_by_itself_and_in_no_pause(
    shard: LoadedShard, broker: DevBroker
) -> None:
    """With the default patience, under load."""
    second = Instance(shard, shard.path / "second")
    second.start("standby")
    second.await_standby()
    pids = {name: shard.status()[name]["pid"] for name in ("dequeue", "ingest")}
    jvms = [p.pid for p in psutil.Process(pids["ingest"]).children(recursive=True) if is_jvm(p)]
    assert jvms
    for whose, seconds in (([pids["dequeue"]], 6), (jvms, 12), ([broker.pid], 8)):
        with paused(*whose):
            time.sleep(seconds)
        shard.await_arrivals()
        assert shard.status()["dequeue"]["pid"] == pids["dequeue"]
        assert second.status()["role"] == "standby"

    shard.burst()
    shard.kill_all()
    killed_ms = CLOCK.now_ms()
    shard.wait(lambda: any(at > killed_ms + 1_000 for *_, at in arrivals(shard)))
    resumed_ms = min(at for *_, at in arrivals(shard) if at > killed_ms + 1_000)
    print({"until_delivery_s": (resumed_ms - killed_ms) / 1000})
    assert second.status()["role"] == "owner"
    time.sleep(2)  # a double would come with the next chunk
    shard.load.stop()
    shard.await_arrivals()
    shard.judge()


def is_jvm(process: psutil.Process) -> bool:
    return process.name() == "java"


def arrivals(shard: LoadedShard) -> list[tuple[Any, ...]]:
    return list(shard.arrivals.first.values())
