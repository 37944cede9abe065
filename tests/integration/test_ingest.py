"""The ingest process on a real broker and a real Spark, killed and restarted.

Nothing is delivered: this process holds dequeue's place, with a close page that says where the
floor is and where marks begin, so that all that was taken stays in the files and can be counted.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaAdminClient, KafkaProducer
from kafka import TopicPartition as KafkaPartition
from tests.harness.launcher import wait_until

from duewheel import factory
from duewheel.checkpoints import fs
from duewheel.checkpoints.page_codec import Close, Commit
from duewheel.checkpoints.progress_mirror import Mirror
from duewheel.checkpoints.recovery_decision import Keep, RecoveryRecord
from duewheel.checkpoints.state_file import INGEST
from duewheel.clock import SystemClock
from duewheel.config.settings import load
from duewheel.dev.broker import DevBroker
from duewheel.runtime.ingest_process import CHECKPOINT
from duewheel.schemas.batches import TopicPartition
from duewheel.streaming.batch_attempt import SPARK_DIR
from duewheel.wheel.recovery.startup import first_progress
from duewheel.wheel.slots import WheelConfig, closable_slot
from duewheel.wheel.storage.data_directory import DataDirectory, Role
from duewheel.wheel.storage.layout import FLAG_DEAD_LETTER, LEVEL_MASK, MAGIC_TIMER
from duewheel.wheel.storage.verify import check

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.usefixtures("spark_jars"),
]

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


class Shard:
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
        self._process: subprocess.Popen[bytes] | None = None
        self._dequeue: DataDirectory | None = None
        self.config = path / "duewheel.toml"
        self.config.write_text(
            f'[kafka]\nbootstrap_servers = "{servers}"\n'
            f'[timer]\ntopics = ["{topic}"]\nmapping = {{ "{topic}" = "mapped" }}\n'
            f"precision_ms = {WHEEL.precision_ms}\nslots = {WHEEL.slots}\n"
            f'roll_window = "{WHEEL.window_ms}ms"\nmargin = "{WHEEL.margin_ms}ms"\n'
            f'[storage]\ndata_dir = "{self.data_dir}"\n'
            '[ingest]\ndriver_memory = "1g"\nmax_offsets_per_trigger = 2000\n'
            '[log]\nformat = "json"\n'
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
        dequeue.state.mark_applied()
        settings = load(self.config)
        starts = dict.fromkeys(marks, 0)
        config = factory.dequeue_config(settings)
        progress = first_progress(dequeue, config, starts, SystemClock().now_ms())
        dequeue.state.write_mirror(Mirror(floor, 0, progress.encode()))
        start = dequeue.state.dequeue_starts
        RecoveryRecord("killed", Keep.ALL, 0, fs.boot_id(), start).write(self.data_dir)
        self._dequeue = dequeue

    def start(self) -> None:
        """Start the process; returns at once."""
        command = [sys.executable, "-P", "-m", "duewheel", "ingest", "--config", str(self.config)]
        workplace = self.path / "cwd"
        workplace.mkdir(exist_ok=True)
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(command, cwd=workplace, stdout=log, stderr=log)

    def end(self, how: signal.Signals) -> int:
        """Signal the process and wait for its end; its exit code."""
        process, self._process = self._process, None
        if process is None:
            return 0
        process.send_signal(how)
        return process.wait(DEADLINE_S)

    def wait_for_the_end(self) -> int:
        """Its exit code, when it ends by itself."""
        assert self._process is not None
        code = self._process.wait(DEADLINE_S)
        self._process = None
        return code

    @property
    def is_running(self) -> bool:
        assert self._process is not None
        return self._process.poll() is None

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
        deadline = time.monotonic() + DEADLINE_S
        while not reached():
            assert self._process is not None
            assert self._process.poll() is None, f"ingest has ended:\n{self.tail()}"
            assert time.monotonic() < deadline, f"{what}: marks {self.marks}\n{self.tail()}"
            time.sleep(0.1)

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
        lines = [line for line in self.log.read_text().splitlines() if line.startswith("{")]
        return [event for event in map(json.loads, lines) if event["event"] == name]

    def tail(self) -> str:
        return "\n".join(self.log.read_text().splitlines()[-20:])

    def close(self) -> None:
        self.end(signal.SIGKILL)
        if self._dequeue is not None:
            self._dequeue.stop()
        self.producer.close(timeout=5)
        self.admin.close()


@pytest.fixture
def shard(broker: DevBroker, unique_name: Callable[[str], str], tmp_path: Path) -> Iterator[Shard]:
    made = Shard(tmp_path, broker.bootstrap_servers, unique_name("delayed"))
    yield made
    made.close()


def transactional(broker: DevBroker, transactional_id: str) -> KafkaProducer:
    producer = KafkaProducer(
        bootstrap_servers=broker.bootstrap_servers,
        transactional_id=transactional_id,
        retry_backoff_ms=5,
    )
    producer.init_transactions()
    return producer


def test_all_header_forms_markers_and_new_partitions(
    shard: Shard, broker: DevBroker, unique_name: Callable[[str], str]
) -> None:
    shard.begin({(shard.topic, 0): 0, (shard.topic, 1): 0})
    now_ms = SystemClock().now_ms()
    instant = b"%d" % (now_ms + 1_200_000)
    to_orders: Headers = [("REAL_TOPIC", b"orders")]
    forms: list[Headers] = [
        [("TIMER_DELIVER_MS", instant), *to_orders],
        [("TIMER_DELAY_MS", b"1200000"), *to_orders, ("REAL_QID", b"3")],
        [("TIMER_DELAY_SEC", b"1200"), ("UNIQ_KEY", b"order-17")],
        [("DELAY", b"16"), *to_orders, ("trace", b"\x00\xff"), ("trace", b"")],
        [*to_orders],
        [("TIMER_DELAY_SEC", b"soon"), *to_orders],
        [("TIMER_DELAY_SEC", b"1200"), ("REAL_TOPIC", shard.topic.encode())],
    ]
    for headers in forms:
        shard.send(0, headers)
    shard.start()
    shard.wait_for_marks({0: 7, 1: 0})

    taken = shard.taken()
    assert [timer.rejected for timer in taken] == [False] * 4 + [True] * 3
    assert [timer.target for timer in taken[:4]] == ["orders", "orders", "mapped", "orders"]
    assert [timer.target_partition for timer in taken[:4]] == [-1, 3, -1, -1]
    assert taken[0].due_ms == int(instant)
    # The others' times count from the record's own timestamp, which is a moment later.
    assert all(0 <= t.due_ms - now_ms - 1_200_000 < 600_000 for t in taken[1:3])
    assert 0 <= taken[3].due_ms - now_ms - 1_800_000 < 600_000
    assert [timer.timer_id for timer in taken[:4]] == [b"", b"", b"order-17", b""]
    assert {timer.target for timer in taken[4:]} == {"duewheel.dead-letter"}

    # An aborted transaction: two records and a marker that nobody may see; one committed: a record
    # and a marker. The marks pass all five.
    producer = transactional(broker, unique_name("producer"))
    producer.begin_transaction()
    for _ in range(2):
        producer.send(shard.topic, b"aborted", partition=1, headers=LATER)
    producer.flush(DEADLINE_S)
    producer.abort_transaction()
    shard.wait_for_marks({0: 7, 1: 3})
    producer.begin_transaction()
    producer.send(shard.topic, b"committed", partition=1, headers=LATER).get(DEADLINE_S)
    producer.commit_transaction()
    producer.close(timeout=5)
    shard.wait_for_marks({0: 7, 1: 5})

    shard.admin.create_partitions({shard.topic: 4})
    with_new_partitions = KafkaProducer(bootstrap_servers=broker.bootstrap_servers)
    for partition in (2, 3):
        for _ in range(10):
            with_new_partitions.send(shard.topic, b"v", partition=partition, headers=LATER)
    with_new_partitions.flush(DEADLINE_S)
    with_new_partitions.close(timeout=5)
    shard.wait_for_marks({0: 7, 1: 5, 2: 10, 3: 10})

    assert shard.end(signal.SIGTERM) == 0, shard.tail()
    offsets = [(timer.partition, timer.offset) for timer in shard.taken()]
    expected = [(0, n) for n in range(7)] + [(1, 3)]
    assert offsets == expected + [(p, n) for p in (2, 3) for n in range(10)]
    assert check(shard.data_dir, WHEEL).ok
    assert not any((shard.path / "cwd").iterdir()), "something was left in the current directory"


def test_killed_in_the_middle_nothing_is_lost_or_taken_twice(shard: Shard) -> None:
    shard.begin({(shard.topic, 0): 0, (shard.topic, 1): 0})
    shard.send(0, LATER, 3_000)
    shard.start()
    shard.wait_for("first rows", lambda: shard.marks.get(0, 0) > 0)
    for _ in range(5):
        shard.send(1, LATER, 500)
    assert shard.end(signal.SIGKILL) == -signal.SIGKILL
    shard.send(0, LATER, 1_000)
    # Make the checkpoint older than the engine: batch 0 comes again, with rows that it has.
    for path in [*shard.checkpoint.glob("offsets/*"), *shard.checkpoint.glob("commits/*")]:
        if path != shard.checkpoint / "offsets" / "0":
            path.unlink()

    shard.start()
    shard.wait_for_marks({0: 4_000, 1: 2_500})
    beat = DataDirectory(shard.data_dir, WHEEL)
    assert shard.pid == beat.state.heartbeat(INGEST).pid
    beat.close()
    assert shard.end(signal.SIGTERM) == 0, shard.tail()
    shard.require_taken_once({0: range(4_000), 1: range(2_500)})
    (stopped,) = shard.events("ingest stopped")
    assert stopped["rows_replayed"] > 0
    assert not shard.events("Spark's checkpoint does not fit, starting from the marks")


def test_a_checkpoint_that_is_too_new_is_set_aside_and_lost_messages_are_reported(
    shard: Shard,
) -> None:
    shard.send(0, LATER, 200)
    shard.send(1, LATER, 100)
    shard.begin({(shard.topic, 0): 50, (shard.topic, 1): 0})
    # As Spark writes it: a batch that ends behind what the engine has taken.
    for name, lines in {
        "offsets/0": ["v1", "{}", json.dumps({shard.topic: {"0": 180, "1": 100}})],
        "commits/0": ["v1", "{}"],
    }.items():
        path = shard.checkpoint / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(lines))
    # Retention deletes what was not read yet.
    shard.admin.delete_records({KafkaPartition(shard.topic, 0): 70})

    shard.start()
    shard.wait_for_marks({0: 200, 1: 100})
    assert shard.end(signal.SIGTERM) == 0, shard.tail()
    shard.require_taken_once({0: range(70, 200), 1: range(100)})
    (aside,) = shard.events("Spark's checkpoint does not fit, starting from the marks")
    assert "180" in str(aside["reason"])
    assert (shard.checkpoint.parent / f"{CHECKPOINT}.aside-1" / "commits" / "0").exists()
    (loss,) = shard.events("retention deleted messages that were never read")
    assert (loss["partition"], loss["first_offset"], loss["rows_max"]) == (0, 50, 20)


def test_a_topic_that_is_made_anew_stops_ingest(shard: Shard) -> None:
    """Its offsets have grown past the marks: only the topic's id tells."""
    shard.send(0, LATER, 3)
    shard.begin({(shard.topic, 0): 0, (shard.topic, 1): 0})
    shard.start()
    shard.wait_for_marks({0: 3, 1: 0})
    shard.admin.delete_topics([shard.topic])
    shard.await_deleted()
    shard.create_topic()
    shard.send(0, LATER, 10)
    assert shard.wait_for_the_end() == 5, shard.tail()
    assert "it was made anew" in shard.log.read_text()
    shard.start()
    assert shard.wait_for_the_end() == 5, shard.tail()


def test_a_topic_that_ends_below_its_marks_is_refused(shard: Shard) -> None:
    shard.send(0, LATER, 5)
    shard.begin({(shard.topic, 0): 6, (shard.topic, 1): 0})
    shard.start()
    assert shard.wait_for_the_end() == 5
    assert "ends at offset 5, but messages up to 6 were taken" in shard.log.read_text()
