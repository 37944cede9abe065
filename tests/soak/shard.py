"""The shard of a soak: its topics, and its two processes, which it restarts.

Whatever dies is started again a moment later, however often: figures of recovery are those of the
processes, without the back-off of `duewheel run`.
"""

from __future__ import annotations

import shutil
import signal
import time
from collections.abc import Collection
from contextlib import ExitStack
from pathlib import Path

from kafka import KafkaAdminClient
from kafka.admin import ConfigResource
from tests.harness.config_file import write_config
from tests.harness.launcher import launch

from duewheel.config.settings import Settings, load
from duewheel.errors import ConfigError, Fenced, Locked, RecoveryRefused
from duewheel.osutil.child_process import Child
from duewheel.prove.verdict import ProofRules
from duewheel.wheel.storage.full_check import Report, check

PROCESSES = ("dequeue", "ingest")
TIMERS, TARGET, REPLIES = "soak.timers", "soak.orders", "soak.replies"
TIMER_PARTITIONS = 2
PARTITIONS = 4  # of the target
WINDOW_MS = 2_000
PRECISION_MS = 50
_FINAL = {kind.exit_code for kind in (ConfigError, Fenced, Locked, RecoveryRefused)}
_AGAIN_S = 0.5
_STOP_S = 30.0


class SoakShard:
    """Not thread-safe.

    Attributes:
        settings: as its processes have them.
        rules: for the verdict.
        deaths: name and exit code of each process that has ended without being killed.
    """

    def __init__(self, folder: Path, servers: str) -> None:
        """
        Args:
            folder: of everything.
            servers: of Kafka.
        """
        self.folder = folder
        self._config = write_config(
            folder,
            servers,
            "soak",
            kafka={"client": {"reconnect_backoff_max_ms": 500}},
            timer={
                "mapping": {TIMERS: TARGET},
                "reply_topic": REPLIES,
                "precision_ms": PRECISION_MS,
                "roll_window": f"{WINDOW_MS}ms",
                "margin": "1m",
            },
            storage={"durable_interval": "1s"},
            dequeue={
                "chunk_records": 50,
                "transaction_timeout_ms": 10_000,
                "call_deadline": "5s",
            },
            shard={"take_over_after": "1s"},
            log={"format": "json"},
            spark={"spark.driver.extraJavaOptions": ""},  # for hours: as its users start it
        )
        self.settings: Settings = load(self._config)
        dead_letters = self.settings.dead_letter_topic
        self.rules = ProofRules(TARGET, dead_letters, WINDOW_MS, PRECISION_MS)
        self.deaths: list[tuple[str, int]] = []
        self._children: dict[str, Child] = {}
        self._start_at_s: dict[str, float] = {}

    @property
    def transactional_id(self) -> str:
        """Of dequeue."""
        return f"{self.settings.app.id}.dequeue.{self.settings.shard.index}"

    def create_topics(self) -> None:
        """The target and the reply topic stamp what they get."""
        stamped = {"message.timestamp.type": "LogAppendTime"}
        target = {"num_partitions": PARTITIONS, "configs": stamped}
        admin = KafkaAdminClient(bootstrap_servers=self.settings.kafka.servers)
        try:
            admin.create_topics({self.rules.target: target}, wait_for_metadata=True)
            init = self._start("init", "--partitions", str(TIMER_PARTITIONS))
            assert init.wait(_STOP_S) and init.exit_code == 0, self.said("init")
            admin.alter_configs([ConfigResource("TOPIC", REPLIES, stamped)])
        finally:
            admin.close()

    def tend(self) -> None:
        """Start what does not run.

        Raises:
            AssertionError: a process says that no new start can help.
        """
        for name in PROCESSES:
            child = self._children.get(name)
            if child is not None and child.exit_code is not None:
                self.deaths.append((name, child.exit_code))
                self._forget(name)
                assert child.exit_code not in _FINAL, f"{name} gives up:\n{self.said(name)}"
            if child is None and time.monotonic() >= self._start_at_s.get(name, 0):
                self._children[name] = self._start(name)

    def end(self, names: Collection[str], how: signal.Signals) -> None:
        """Kill processes, or tell them to stop; those that run."""
        with ExitStack() as stack:
            for name in names:
                child = self._children.get(name)
                if child is not None:
                    stack.callback(child.wait, _STOP_S)
                    child.end(how, 0)
                    self._forget(name)

    def lose_data(self) -> None:
        """Delete the data directory. A killed Spark writes on for a moment."""
        data = self.settings.storage.data_dir
        while data.exists():
            shutil.rmtree(data, ignore_errors=True)

    def check(self) -> Report:
        """Every byte on disk, as `duewheel check` looks at it."""
        return check(self.settings.storage.data_dir, self.settings.wheel)

    def said(self, name: str, lines: int = 20) -> str:
        """The end of a process's log."""
        path = self.folder / f"{name}.log"
        return "\n".join(path.read_text().splitlines()[-lines:]) if path.exists() else ""

    def _start(self, name: str, *flags: str) -> Child:
        """A duewheel command; what it says goes to its log."""
        return launch(self._config, name, *flags)

    def _forget(self, name: str) -> None:
        del self._children[name]
        self._start_at_s[name] = time.monotonic() + _AGAIN_S
