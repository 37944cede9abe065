"""The ingest process, and a data directory whose dequeue is the test.

No timer is delivered, so every taken row stays in the files and can be counted."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaAdminClient, KafkaProducer
from tests.harness.config_file import QUICK_JVM
from tests.harness.launcher import events, launch, tail, wait_until
from tests.harness.shared_broker import SharedBroker

from duewheel import factory
from duewheel.checkpoints.commit_and_close_pages import Close, Commit
from duewheel.checkpoints.fs import HOST_FS
from duewheel.checkpoints.local_state import Keep, RecoveryRecord
from duewheel.checkpoints.process_role import Role
from duewheel.checkpoints.progress_mirror import Mirror
from duewheel.clock import SystemClock
from duewheel.config.settings import load
from duewheel.osutil.child_process import Child
from duewheel.runtime.ingest_process import CHECKPOINT
from duewheel.schemas.batches import TopicPartition
from duewheel.streaming.batch_attempt import SPARK_DIR
from duewheel.wheel.recovery.startup import first_progress
from duewheel.wheel.slots import WheelConfig, closable_slot
from duewheel.wheel.storage.byte_layouts import FLAG_DEAD_LETTER, LEVEL_MASK, MAGIC_TIMER
from duewheel.wheel.storage.data_directory import DataDirectory
from duewheel.wheel.storage.full_check import check
from duewheel.wheel.storage.runs import Runs

DEADLINE_S = 120.0
WHEEL = WheelConfig(precision_ms=50, slots=80_000, window_ms=3_600_000, margin_ms=60_000)


Headers = list[tuple[str, bytes]]


Marks = dict[TopicPartition, int]


LATER: Headers = [("TIMER_DELAY_SEC", b"1800"), ("REAL_TOPIC", b"orders")]


@dataclass(frozen=True)
class Taken:
    """A timer found in the data directory."""

    partition: int
    offset: int
    due_ms: int
    target: str
    target_partition: int
    timer_id: bytes | None
    rejected: bool


class IngestShard:
    """A data directory, its timer topic, and the ingest process that works on them."""

    def __init__(self, path: Path, servers: str, topic: str) -> None:
        self.path = path
        self.topic = topic
        self.data_dir = path / "data"
        self.checkpoint = self.data_dir / SPARK_DIR / CHECKPOINT
        self.log = path / "ingest.log"
        self.admin = KafkaAdminClient(bootstrap_servers=servers)
        self.create_topic()
        self.producer = KafkaProducer(bootstrap_servers=servers, linger_ms=5)
        self._process: Child | None = None
        self._dequeue: DataDirectory | None = None
        self.config = path / "duewheel.toml"
        self.config.write_text(
            f'[kafka]\nbootstrap_servers = "{servers}"\n'
            f'[timer]\ntopics = ["{topic}"]\nmapping = {{ "{topic}" = "mapped" }}\n'
            'targets = ["*"]\n'
            f"precision_ms = {WHEEL.precision_ms}\nslots = {WHEEL.slots}\n"
            f'roll_window = "{WHEEL.window_ms}ms"\nmargin = "{WHEEL.margin_ms}ms"\n'
            f'[storage]\ndata_dir = "{self.data_dir}"\n'
            "[ingest]\nmax_offsets_per_trigger = 2000\n"
            '[log]\nformat = "json"\n'
            f'[spark]\n"spark.driver.extraJavaOptions" = "{QUICK_JVM}"\n'
        )

    def create_topic(self) -> None:
        """Make the timer topic, with settings that ingest accepts."""
        configs = {"message.timestamp.type": "LogAppendTime", "retention.ms": "-1"}
        self.admin.create_topics(
            {self.topic: {"num_partitions": 2, "replication_factor": 1, "configs": configs}}
        )

    def begin(self, marks: Marks) -> None:
        """Close everything up to now, with these marks, as dequeue would, and stay."""
        dequeue = DataDirectory.start(self.data_dir, WHEEL, Role.DEQUEUE)
        floor = closable_slot(SystemClock().now_ms(), WHEEL.precision_ms)
        dequeue.state.write_close(Close(floor - 1, marks, floor, marks))
        dequeue.state.write_commit(Commit(1, marks, {}, 0))
        for batch in (0, 1):  # RocksDB has a key of each batch
            dequeue.append_runs(Runs.joined([]), batch)
        dequeue.state.mark_applied()
        settings = load(self.config)
        starts = dict.fromkeys(marks, 0)
        config = factory.dequeue_config(settings)
        progress = first_progress(dequeue, config, starts, SystemClock().now_ms())
        dequeue.state.write_mirror(Mirror(floor, 0, progress.encode()))
        start = dequeue.state.dequeue_starts
        record = RecoveryRecord("intact", Keep.ALL, 0, HOST_FS.boot_id(), start)
        record.write(self.data_dir, HOST_FS)
        self._dequeue = dequeue

    def start(self) -> None:
        """Start the process; returns at once."""
        workplace = self.path / "cwd"
        workplace.mkdir(exist_ok=True)
        self._process = launch(self.config, "ingest", log=self.log, cwd=workplace)

    def end(self, how: signal.Signals) -> int:
        """Signal the process and wait for its end; its exit code."""
        process, self._process = self._process, None
        if process is None:
            return 0
        assert process.end(how, DEADLINE_S), self.tail()
        assert process.exit_code is not None
        return process.exit_code

    def wait_for_the_end(self) -> int:
        """Its exit code, when it ends by itself."""
        assert self._process is not None
        assert self._process.wait(DEADLINE_S), self.tail()
        code, self._process = self._process.exit_code, None
        assert code is not None
        return code

    @property
    def is_running(self) -> bool:
        assert self._process is not None
        return self._process.exit_code is None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def await_deleted(self) -> None:
        """Wait until the brokers have forgotten the topic."""
        wait_until(
            lambda: self.admin.describe_topics([self.topic])[0]["error_code"] != 0,
            f"{self.topic} is still there",
        )

    def send(self, partition: int, headers: Headers, count: int = 1, value: bytes = b"v") -> None:
        for _ in range(count):
            self.producer.send(self.topic, value, key=b"k", partition=partition, headers=headers)
        self.producer.flush(DEADLINE_S)

    @property
    def marks(self) -> dict[int, int]:
        """Of the newest commit, by partition."""
        directory = DataDirectory(self.data_dir, WHEEL)
        try:
            return {number: mark for (_, number), mark in directory.state.commit().marks.items()}
        finally:
            directory.close()

    def wait_for(self, what: str, reached: Callable[[], bool]) -> None:
        """Until it is so; the process must live meanwhile."""

        def alive_and_reached() -> bool:
            if reached():
                return True
            assert self.is_running, f"ingest has ended:\n{self.tail()}"
            return False

        wait_until(
            alive_and_reached, lambda: f"{what}: marks {self.marks}\n{self.tail()}", DEADLINE_S
        )

    def wait_for_marks(self, marks: dict[int, int]) -> None:
        self.wait_for(f"marks {marks}", lambda: self.marks == marks)

    def taken(self) -> list[Taken]:
        """Every timer in the files, by partition and offset."""
        directory = DataDirectory(self.data_dir, WHEEL)
        found = []
        with directory.locked() as commit:
            hours = commit.hours
        for hour, lengths in hours.items():
            records = directory.log.read(hour, 0, lengths.log_bytes)
            records = records[(records["magic"] & ~LEVEL_MASK) == MAGIC_TIMER]
            messages = directory.messages.read(hour, records)
            prefix = messages.prefix
            ids = messages.timer_id.to_pylist()
            targets = [name.decode() for name in messages.target.to_pylist() if name is not None]
            for row, timer_id, target in zip(prefix, ids, targets, strict=True):
                found.append(
                    Taken(
                        int(row["source_partition"]),
                        int(row["source_offset"]),
                        int(row["due_ms"]),
                        target,
                        int(row["target_partition"]),
                        timer_id,
                        bool(row["flags"] & FLAG_DEAD_LETTER),
                    )
                )
        directory.close()
        return sorted(found, key=lambda timer: (timer.partition, timer.offset))

    def require_taken_once(self, expected: dict[int, range]) -> None:
        """Exactly these offsets are in the files, each once, and the files are whole."""
        offsets = [(timer.partition, timer.offset) for timer in self.taken()]
        assert offsets == [(p, offset) for p in sorted(expected) for offset in expected[p]]
        report = check(self.data_dir, WHEEL)
        assert report.ok, report.findings[:5]

    def events(self, name: str) -> list[dict[str, Any]]:
        """Log lines with this text."""
        return events(self.log, name)

    def tail(self) -> str:
        return tail(self.log)

    def close(self) -> None:
        self.end(signal.SIGKILL)
        if self._dequeue is not None:
            self._dequeue.stop()
        self.producer.close(timeout=5)
        self.admin.close()


@pytest.fixture
def shard(
    broker: SharedBroker, unique_name: Callable[[str], str], tmp_path: Path
) -> Iterator[IngestShard]:
    made = IngestShard(tmp_path, broker.bootstrap_servers, unique_name("delayed"))
    yield made
    made.close()
