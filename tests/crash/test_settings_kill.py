"""kill -9 of a dequeue that takes other settings while ingest runs: no row gets two outcomes.

Real Kafka, a real process of dequeue by way of fault_points.py; the engine of ingest is the test's,
so that a batch can come at every step.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.crash.fault_shard import POINTS, SCRIPT
from tests.harness.config_file import write_config
from tests.harness.launcher import events, launch, tail, wait_until
from tests.harness.reader import read_topic
from tests.harness.shared_broker import SharedBroker
from tests.harness.sparkless_shard import Restartable, running

from duewheel.checkpoints.config_epochs import Epochs
from duewheel.checkpoints.state_file import State
from duewheel.config.settings import load
from duewheel.errors import SettingsChange
from duewheel.kafka.topics.admin import KafkaAdmin
from duewheel.osutil.child_process import Child
from duewheel.runtime import take_settings

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

QUICK = {"settings.committed", "settings.claimed"}  # the others in `make crash-matrix`
SETTINGS = [name for name in POINTS if name.startswith("settings.")]


class Changing:
    """A shard whose timers without a target go to `old`, and are to go to `new`."""

    def __init__(self, folder: Path, servers: str, name: str) -> None:
        self._folder, self._servers, self._name = folder, servers, name
        self.timers, self.old, self.new = (f"{name}.{of}" for of in ("timers", "old", "new"))
        self.config = self.mapped_to(self.old)

    def mapped_to(self, target: str) -> Path:
        timer = {"mapping": {self.timers: target}, "targets": [f"{self._name}.*"]}
        return write_config(
            self._folder, self._servers, self._name, timer=timer, log={"format": "json"}
        )

    def request(self) -> None:
        settings = load(self.mapped_to(self.new))
        with State.open(settings.storage.data_dir) as state:
            state.live.want_settings(take_settings.digest(settings))

    def arrived(self, target: str) -> list[bytes]:
        return sorted(record.value for record in read_topic(self._servers, target))

    def log(self) -> Path:
        return self._folder / "dequeue.log"

    def dequeue(self, *faults: str) -> Child:
        """A process of its own; returns once it delivers."""
        ready = len(events(self.log(), "dequeue is ready"))
        if faults:
            words = [*faults, "--", "dequeue", "--config", str(self.config)]
            with self.log().open("ab") as out:
                command = [sys.executable, "-P", str(SCRIPT), *words]
                child = Child(command, stdout=out, stderr=out, on_parent_death=signal.SIGKILL)
        else:
            child = launch(self.config, "dequeue")
        wait_until(
            lambda: len(events(self.log(), "dequeue is ready")) > ready,
            lambda: tail(self.log()),
        )
        return child


def epochs(shard: Restartable) -> Epochs:
    with State.open(shard.settings.storage.data_dir) as state:
        mirror = state.mirror()
    assert mirror is not None
    return mirror.progress.epochs


@pytest.fixture
def changing(broker: SharedBroker, tmp_path: Path, unique_name: Callable[[str], str]) -> Changing:
    return Changing(tmp_path, broker.bootstrap_servers, unique_name("app")[-40:].lstrip("-"))


@pytest.mark.parametrize(
    "point",
    [
        pytest.param(each, marks=() if each in QUICK else pytest.mark.crash_matrix)
        for each in SETTINGS
    ],
)
def test_a_kill_at_each_step_of_a_change(changing: Changing, tmp_path: Path, point: str) -> None:
    delay: list[tuple[str, bytes | None]] = [("TIMER_DELAY_MS", b"1")]
    settings = load(changing.config)
    with KafkaAdmin(settings.kafka.client_options("admin")) as admin:
        admin.init_topics(settings, partitions=2)
        for target in (changing.old, changing.new):
            admin.create_topic(target, 1)
    with running(changing.config) as shard:
        shard.send(changing.timers, 0, (None, b"before", delay))
        shard.take()
        shard.leave_dequeue()
        mark = tmp_path / "mark"
        child = changing.dequeue("--point", point, "--mark", str(mark))
        shard.send(changing.timers, 0, (None, b"between", delay))
        changing.request()
        with pytest.raises(SettingsChange):
            shard.take()
        marks = dict(shard.engine.marks)
        wait_until(lambda: child.exit_code is not None, lambda: tail(changing.log()))
        assert mark.exists()
        if shard.engine.settings_change:
            with pytest.raises(SettingsChange):
                shard.take()
        child = changing.dequeue()
        assert [dict(each.since) for each in epochs(shard).epochs[1:]] == [marks]
        with pytest.raises(SettingsChange):
            shard.take()
        shard.engine.load_epochs()
        shard.take()
        wait_until(
            lambda: (
                (changing.arrived(changing.old), changing.arrived(changing.new))
                == ([b"before"], [b"between"])
            ),
            lambda: tail(changing.log()),
        )
        child.stop(30)
