"""duewheel on a Kafka of its own, with both of its processes.

The load is encoded into record batches before it is sent: producers' own work is not measured.
Kafka runs with the optimising compiler, unlike `duewheel dev-broker`, whose JVM starts fast.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tests.bench.kafka_consumer import DIGITS, MARK
from tests.bench.kafka_wire import Connection, produce_request
from tests.bench.system import (
    AT_ONCE,
    BODY_BYTES,
    Kind,
    Receipts,
    SendResult,
    TimerLoad,
    allocated_bytes,
)
from tests.bench.usage import ProcessTree
from tests.harness.launcher import launch, line, tail, wait_until

from duewheel import __version__
from duewheel.checkpoints.process_role import Role
from duewheel.checkpoints.state_file import State
from duewheel.clock import SystemClock
from duewheel.config.keys_and_defaults import TimerSection
from duewheel.config.settings import load
from duewheel.config.values import as_millis
from duewheel.dev.broker import DevBroker
from duewheel.kafka.topics.admin import KafkaAdmin
from duewheel.ops.shard.status import read_status
from duewheel.osutil.child_process import Child
from duewheel.runtime.dequeue_process import init_progress
from duewheel.schemas.arrays import Int64
from duewheel.schemas.batches import ANY_TIME, NO_PARTITION, NO_POLICY, Deliveries
from duewheel.schemas.columns import Column, binary, constant, decimals, from_parts, join
from duewheel.schemas.wire.record_batch import seal, split
from duewheel.schemas.wire.record_codec import framed, framed_bytes, key_values
from duewheel.wheel.slots import TimelineKind

TIMERS, TARGET, REPLIES = "bench.timers", "bench.orders", "bench.replies"
TIMER_PARTITIONS = 4
KEY_BYTES = 16
TICK_MS = 20  # of an open loop: what is to be sent within one is one request
_HEAP_MB = 1024
_BROKER_JAVA = (f"-Xms{_HEAP_MB}m", "-XX:+UseG1GC", "-Djava.awt.headless=true")
_START_S = 600.0  # on a loaded machine
_REQUEST_ROWS = 8_000
_REQUESTS_MAX = 5  # not acknowledged yet
_BATCH_BYTES_MAX = 900 * 1024
_CLOCK = SystemClock()
_USER_HEADERS = ((b"trace", b"0" * 16), (b"tenant", b"acme"), (b"kind", b"reminder"))
_ENCODED_HEADERS = b"".join(framed_bytes(name) + framed_bytes(v) for name, v in _USER_HEADERS)
_ID_HEADERS = {
    Kind.TIMERS: None,
    Kind.TIMERS_WITH_IDS: b"UNIQ_KEY",
    Kind.CANCELS: b"TIMER_DEL_UNIQKEY",
}


@dataclass(frozen=True)
class Encoded(TimerLoad):
    """A load as requests, each with the time when it is to be sent, or AT_ONCE."""

    requests: Sequence[tuple[int, bytes]] = ()


class DuewheelSystem:
    """See the module."""

    name = "duewheel"

    def __init__(
        self,
        path: Path,
        target_partitions: int = 4,
        roll_window: str | None = None,
        precision_ms: int = 50,
        trigger_ms: int = 100,
    ) -> None:
        """Starts nothing."""
        self._path = path
        self._target_partitions = target_partitions
        self._stack = ExitStack()
        self._broker = DevBroker(path / "kafka", heap_mb=_HEAP_MB, java_options=_BROKER_JAVA)
        self._run: Child | None = None
        self._processes = ProcessTree()
        self.receipts = Receipts(path / "receipts")
        self._pool = ThreadPoolExecutor(thread_name_prefix="load")
        self.config: Mapping[str, Any] = {
            "version": __version__,
            "precision_ms": precision_ms,
            "trigger_ms": trigger_ms,
            "kafka_heap_mb": _HEAP_MB,
            "key_bytes": KEY_BYTES,
            "user_headers": len(_USER_HEADERS),
            "timer_partitions": TIMER_PARTITIONS,
            "target_partitions": target_partitions,
        }
        default = TimerSection()  # its roll window must fit into the slots
        reach_ms = as_millis(default.roll_window + default.margin)
        slots = max(default.slots, reach_ms // precision_ms + 2)
        self._timer = f"precision_ms = {precision_ms}\nslots = {slots}\n"
        if roll_window is not None:
            self._timer += f'roll_window = "{roll_window}"\n'
        self._ingest = f"trigger_ms = {trigger_ms}\n"

    def start(self) -> None:
        self._stack.enter_context(self._broker)
        self.servers = servers = self._broker.bootstrap_servers
        self._config = self._path / "duewheel.toml"
        self._config.write_text(
            f'[app]\nid = "bench"\n[kafka]\nbootstrap_servers = "{servers}"\n'
            f'[timer]\ntopics = ["{TIMERS}"]\nreply_topic = "{REPLIES}"\n{self._timer}'
            f'targets = ["{TARGET}"]\n'
            f"[ingest]\n{self._ingest}"
            f'[storage]\ndata_dir = "{self._path / "data"}"\n'
        )
        self.settings = load(self._config)
        with KafkaAdmin(self.settings.kafka.client_options("admin")) as admin:
            admin.init_topics(self.settings, partitions=TIMER_PARTITIONS)
            admin.create_topic(TARGET, self._target_partitions)
        init_progress(self.settings)
        self._consumer = Child(self.consumer_command())
        self._stack.callback(self._consumer.stop, 5)
        self.resume()
        self._await_running()
        self._stack.callback(self._release_state)

    def consumer_command(self) -> Sequence[str]:
        """What receives the target's records, and writes a receipt for each."""
        consumer = Path(__file__).with_name("kafka_consumer.py")
        arguments = [self.servers, TARGET, str(self._target_partitions), str(self.receipts.path)]
        return [sys.executable, "-P", str(consumer), *arguments]

    def _release_state(self) -> None:
        self._state.release()

    def _await_running(self) -> None:
        data = self.settings.storage.data_dir
        self._wait((data / "state").exists)
        self._wait(lambda: read_status(self.settings, SystemClock()).ingest.state == "running")
        self._state = State.open(data)

    def prepare(self, load: TimerLoad) -> TimerLoad:
        requests = load_requests(load)
        return Encoded(load.first, load.due_ms, load.send_ms, load.kind, requests)

    def send(self, load: TimerLoad) -> Future[SendResult]:
        return self._pool.submit(self.send_now, load)

    def send_now(self, load: TimerLoad) -> SendResult:
        """Returns once all are acknowledged."""
        assert isinstance(load, Encoded), "call `prepare` first"
        connection, unanswered = Connection(self._broker.bootstrap_servers), 0
        begun_ms = _CLOCK.now_ms()
        for at_ms, request in load.requests:
            if (wait_ms := at_ms - _CLOCK.now_ms()) > 0:
                time.sleep(wait_ms / 1000)
            if unanswered == _REQUESTS_MAX:
                connection.acknowledged()
                unanswered -= 1
            connection.produce(request)
            unanswered += 1
        for _ in range(unanswered):
            connection.acknowledged()
        connection.close()
        return SendResult(begun_ms, _CLOCK.now_ms(), failed=0)

    def enqueued(self) -> int:
        return sum(self._state.commit().marks.values())

    def pids(self) -> Mapping[str, Sequence[int]]:
        beat, family = self._state.live.heartbeat, self._processes.family
        ingest, *jvm = family(beat(Role.INGEST).pid)
        return {
            "Kafka": [self._broker.pid],
            "ingest": [ingest],
            "Spark": jvm,
            "dequeue": family(beat(Role.DEQUEUE).pid),
            "load": [os.getpid()],
            "consumer": [self._consumer.pid],
        }

    def disk_bytes(self) -> Mapping[str, int]:
        data = self.settings.storage.data_dir
        return {"local": allocated_bytes(data), "Kafka": allocated_bytes(self._path / "kafka")}

    def halt(self) -> None:
        assert self._run is not None
        run, self._run = self._run, None
        run.stop(60)

    def resume(self) -> None:
        self._run = launch(self._config, "run")

    def lose_files(self) -> None:
        """After `halt`: the data directory is gone, Kafka is all there is."""
        self._state.release()
        shutil.rmtree(self.settings.storage.data_dir)

    def rebuild(self) -> None:
        """After `lose_files`: start, until ingest takes new timers beside what it reads again."""
        self.resume()
        self._await_running()

    def set_timeline(self, kind: TimelineKind) -> None:
        """After `halt`: what the next start has."""
        lines = [
            line
            for line in self._config.read_text().splitlines()
            if not line.startswith("timeline = ")
        ]
        lines.insert(lines.index("[timer]") + 1, f'timeline = "{kind}"')
        self._config.write_text("\n".join(lines) + "\n")
        self.settings = load(self._config)

    @property
    def is_whole(self) -> bool:
        """Whether nothing is left to be read again."""
        return read_status(self.settings, SystemClock()).recovering is None

    def set_ingest(self, command: str) -> None:
        """`pause` or `resume` of ingest: while it pauses, a backlog grows in Kafka."""
        subprocess.run(line(self._config, command, "ingest"), check=True, capture_output=True)

    def stop(self) -> None:
        self._pool.shutdown(cancel_futures=True)
        if self._run is not None:
            self.halt()
        self._stack.close()

    def _wait(self, done: Any) -> None:
        wait_until(done, lambda: tail(self._path / "run.log"), _START_S)


def load_requests(load: TimerLoad) -> list[tuple[int, bytes]]:
    if load.send_ms is None:
        cuts = np.arange(0, len(load), _REQUEST_ROWS)
    else:
        cuts = np.flatnonzero(np.diff(load.send_ms // TICK_MS, prepend=-1))
    ends = [*cuts[1:].tolist(), len(load)]
    return [
        (
            AT_ONCE if load.send_ms is None else int(load.send_ms[begin]),
            _request(load.first + np.arange(begin, end), load.due_ms[begin:end], load.kind),
        )
        for begin, end in zip(cuts.tolist(), ends, strict=True)
    ]


def _request(number: Int64, due_ms: Int64, kind: Kind) -> bytes:
    """The numbered timers, spread over the partitions of the timer topic."""
    rows = np.argsort(number % TIMER_PARTITIONS, kind="stable")
    partition = number[rows] % TIMER_PARTITIONS
    ends = np.flatnonzero(np.diff(partition, append=-1)) + 1
    sizes = [_BATCH_BYTES_MAX] * len(ends)
    batches = split(timer_records(number[rows], due_ms[rows], kind), ends.tolist(), sizes)
    sealed = {}
    for end, (batch,) in zip(ends.tolist(), batches, strict=True):
        whole = seal(batch.body, batch.count, timestamp_ms=_CLOCK.now_ms())
        sealed[int(partition[end - 1])] = bytes(whole)
    return produce_request(TIMERS, sealed)


def timer_records(number: Int64, due_ms: Int64, kind: Kind = Kind.TIMERS) -> Deliveries:
    """Records for the timer topic. As copies: nothing is added to their headers."""
    count = len(number)
    zeros, empty = np.zeros(count, np.int32), binary([b""] * count)
    target = framed_bytes(b"REAL_TOPIC") + framed_bytes(TARGET.encode())
    when = constant(framed_bytes(b"TIMER_DELIVER_MS"))
    headers: list[Any] = [when, *framed(decimals(due_ms)), constant(target + _ENCODED_HEADERS)]
    if (name := _ID_HEADERS[kind]) is not None:
        headers += [constant(framed_bytes(name)), *framed(_padded(number, KEY_BYTES))]
    return Deliveries(
        targets=[TIMERS],
        target=zeros,
        target_partition=np.full(count, NO_PARTITION, np.int32),
        key_hash=zeros,
        due_ms=due_ms,
        source_partitions=[(TIMERS, 0)],
        source_partition=zeros,
        origin_offset=np.zeros(count, np.int64),
        source=empty,
        timer_id=empty,
        key_value=key_values(_padded(number, KEY_BYTES), _padded(number, BODY_BYTES, 2 * MARK)),
        headers=join(*headers),
        header_count=zeros + 2 + len(_USER_HEADERS) + (name is not None),
        roll_times=zeros,
        retries=zeros,
        level=zeros,
        dead_letter=np.zeros(count, np.bool_),
        is_copy=np.ones(count, np.bool_),
        not_before_ms=np.full(count, ANY_TIME),
        policies=[],
        policy=np.full(count, NO_POLICY, np.int32),
        answer=np.zeros(count, np.bool_),
    )


def _padded(number: Int64, size: int, before: bytes = b"") -> Column:
    """Values of `size` bytes with a number of DIGITS digits."""
    cells = np.full((len(number), size), ord("."), np.uint8)
    cells[:, : len(before)] = np.frombuffer(before, np.uint8)
    powers = 10 ** np.arange(DIGITS - 1, -1, -1, dtype=np.int64)
    cells[:, len(before) : len(before) + DIGITS] = number[:, None] // powers % 10 + ord("0")
    return from_parts(np.arange(len(number) + 1) * size, cells.ravel())
