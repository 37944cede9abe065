"""The whole path on a broker of its own: producers, timer topic, `duewheel run`, real topic.

    stream    a steady rate, each timer due 2 to 8 s later: lateness where an independent
              read_committed consumer receives it, memory meanwhile
    enqueue   as fast as it goes, due in an hour: timers placed per second, bytes on disk for each
    cancels   one after the other, beside all of these: how long until it is answered
    spike     timers that are all due in one instant: how long until the last is visible
    hot-slot  one slot of very many, with dequeue alone: its memory, and how long

Everything shares one machine: load, broker, both processes, consumer. Except in stream the load
is written in ready-made batches, so that it costs little. In stream, each message is checked: once,
not early. Visible is what lies below the last stable offset. Prints a line of JSON for each metric.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from kafka import KafkaConsumer, KafkaProducer, TopicPartition

from duewheel.checkpoints.recovery_decision import dequeue_has_decided
from duewheel.checkpoints.role import Role
from duewheel.client import DelayProducer
from duewheel.clock import SystemClock
from duewheel.config.settings import load
from duewheel.dev.broker import DevBroker
from duewheel.kafka.admin import KafkaAdmin
from duewheel.kafka.clients import ClientSettings
from duewheel.kafka.deadline import Deadline
from duewheel.kafka.producer_internals import stop
from duewheel.kafka.publisher_limits import PublisherLimits
from duewheel.kafka.transactional_producer import open_producer, transact, warm_metadata
from duewheel.ops.status import status
from duewheel.osutil.child_process import Child
from duewheel.runtime.dequeue_process import init_progress
from duewheel.schemas.arrays import Int64
from duewheel.schemas.batches import (
    ACCEPTED,
    ANY_OFFSET,
    ANY_TIME,
    NO_PARTITION,
    NO_SLOT,
    Deliveries,
    TimerBatch,
)
from duewheel.schemas.columns import Column, binary, constant, decimals, join
from duewheel.schemas.hashing import key_hashes
from duewheel.schemas.wire.record_batch import split
from duewheel.schemas.wire.record_codec import framed, framed_bytes, key_values
from duewheel.wheel.append.engine import Engine
from duewheel.wheel.recovery.rebuild import apply_recovery
from duewheel.wheel.slots import WheelConfig
from duewheel.wheel.storage.data_directory import DataDirectory

PARTITIONS = 4
BODY_BYTES, KEY_BYTES, NUMBER_DIGITS = 100, 16, 12
LARGEST = 10 ** (NUMBER_DIGITS - 1)
TICK_MS = 10
DEADLINE_S = 300.0
REPLIES = "bench.replies"
CLOCK = SystemClock()
USER_HEADERS = ((b"trace", b"0" * 16), (b"tenant", b"acme"), (b"kind", b"reminder"))
ENCODED_HEADERS = b"".join(framed_bytes(name) + framed_bytes(v) for name, v in USER_HEADERS)


class Rig:
    """A broker, topics and a configuration, as `duewheel init` leaves them."""

    def __init__(self, path: Path, stack: ExitStack, partitions: int = PARTITIONS) -> None:
        """`partitions`: of the timer topic."""
        self.path, self.partitions = path, partitions
        self._broker = stack.enter_context(DevBroker())
        self.servers = self._broker.bootstrap_servers
        self.config = path / "duewheel.toml"
        self.config.write_text(
            '[app]\nid = "bench"\n'
            f'[kafka]\nbootstrap_servers = "{self.servers}"\n'
            f'[timer]\ntopics = ["bench.timers"]\nreply_topic = "{REPLIES}"\n'
            f'[storage]\ndata_dir = "{path / "data"}"\n'
        )
        self.settings = load(self.config)
        self.target = "bench.orders"
        with KafkaAdmin(self.settings.kafka.client_options("admin")) as admin:
            admin.init_topics(self.settings, partitions=partitions)
            admin.create_topic(self.target, PARTITIONS)
        init_progress(self.settings)
        self._producer = KafkaProducer(bootstrap_servers=self.servers, acks="all", linger_ms=5)
        stack.callback(self._producer.close)
        self._bulk_producer = self._open_bulk_producer()
        stack.callback(stop, self._bulk_producer, 5.0)
        self.sent = 0

    def _open_bulk_producer(self) -> KafkaProducer:
        settings = ClientSettings({"bootstrap_servers": self.servers})
        deadline = Deadline(DEADLINE_S)
        limits = PublisherLimits(publish_deadline_s=30.0, transaction_timeout_ms=60_000)
        producer = open_producer(settings, "bench.load", limits, deadline)
        warm_metadata(settings, producer, ["bench.timers"], deadline)
        return producer

    def start(self, command: str, stack: ExitStack) -> None:
        """Start `duewheel run` or `duewheel dequeue`, until it has given a sign of life."""
        log = stack.enter_context((self.path / f"{command}.log").open("wb"))
        line = [sys.executable, "-P", "-m", "duewheel", command, "--config", str(self.config)]
        child = Child(line, stderr=log)
        stack.callback(child.stop, 60)
        role = "ingest" if command == "run" else "dequeue"
        wait((self.path / "data" / "state").exists)
        wait(lambda: status(self.settings)[role]["state"] == "running")

    def pids(self, *roles: str) -> dict[str, int]:
        """Of these roles, and of the broker."""
        found = status(self.settings)
        return {**{role: found[role]["pid"] for role in roles}, "broker": self._broker.pid}

    @property
    def placed(self) -> int:
        found = status(self.settings)
        return int(found["pending"] + found["delivered"])

    def send(self, due_ms: list[int]) -> list[Any]:
        """Send one timer for each due time, as producers do; they are numbered on from the last."""
        futures = []
        for number, due in enumerate(due_ms, self.sent):
            text = b"%d" % (LARGEST + number)
            headers = [("TIMER_DELIVER_MS", b"%d" % due), ("REAL_TOPIC", self.target.encode())]
            futures.append(
                self._producer.send(
                    "bench.timers",
                    text.ljust(BODY_BYTES, b"."),
                    key=text.ljust(KEY_BYTES, b"."),
                    headers=headers + [(name.decode(), value) for name, value in USER_HEADERS],
                )
            )
        self.sent += len(due_ms)
        return futures

    def write(self, due_ms: Int64) -> None:
        """The same in bulk: ready-made batches in one transaction."""
        ready = []
        number = self.sent + np.arange(len(due_ms))
        self.sent += len(due_ms)
        for partition in range(self.partitions):
            rows = slice(partition, None, self.partitions)
            at = TopicPartition("bench.timers", partition)
            messages = requests(number[rows], due_ms[rows], self.target)
            (batches,) = split(messages, [len(messages)], [512 * 1024])
            ready += [(at, batch) for batch in batches]
        outcomes = transact(self._bulk_producer, ready, CLOCK.now_ms(), Deadline(DEADLINE_S))
        errors = [outcome.error for outcome in outcomes if outcome.error]
        if errors:
            raise errors[0]


def requests(number: Int64, due_ms: Int64, target: str) -> Deliveries:
    """Records for the timer topic. As "rolled" ones: nothing is added to their headers."""
    count = len(number)
    key, value = numbered(number, KEY_BYTES), numbered(number, BODY_BYTES)
    when = constant(framed_bytes(b"TIMER_DELIVER_MS"))
    topic = framed_bytes(b"REAL_TOPIC") + framed_bytes(target.encode())
    zeros = np.zeros(count, np.int32)
    empty = binary([b""] * count)
    return Deliveries(
        targets=["bench.timers"],
        target=zeros,
        target_partition=np.full(count, NO_PARTITION, np.int32),
        key_hash=zeros,
        due_ms=due_ms,
        source_partitions=[("bench.timers", 0)],
        source_partition=zeros,
        origin_offset=np.zeros(count, np.int64),
        source=empty,
        timer_id=empty,
        key_value=key_values(key, value),
        headers=join(when, *framed(decimals(due_ms)), constant(topic + ENCODED_HEADERS)),
        header_count=zeros + 5,
        roll_times=zeros,
        retries=zeros,
        level=zeros,
        dead_letter=np.zeros(count, np.bool_),
        is_copy=np.ones(count, np.bool_),
        not_before_ms=np.full(count, ANY_TIME),
        answer=np.zeros(count, np.bool_),
    )


def numbered(number: Int64, size: int) -> Column:
    """Values of `size` bytes that begin with a number."""
    return join(decimals(LARGEST + number), constant(b"." * (size - NUMBER_DIGITS)))


def wait(done: Callable[[], bool], every_s: float = 0.02) -> None:
    end_s = time.monotonic() + DEADLINE_S
    while not done():
        if time.monotonic() > end_s:
            raise TimeoutError("the benchmark does not come to its end")
        time.sleep(every_s)


def report(workload: str, metric: str, unit: str, values: list[float], **config: Any) -> None:
    line = {
        "workload": workload,
        "metric": metric,
        "unit": unit,
        "values": [round(value, 2) for value in values],
        "config": {"body_bytes": BODY_BYTES, "key_bytes": KEY_BYTES, "headers": 3, **config},
    }
    print(json.dumps(line), flush=True)


class Usage:
    """Anonymous memory and processor time of some processes and, each, its children."""

    def __init__(self, **pids: int) -> None:
        processes = {name: psutil.Process(pid) for name, pid in pids.items()}
        self._families = {n: [p, *p.children(recursive=True)] for n, p in processes.items()}
        self.before_mb = self._memory_mb()
        self.peak_mb = dict(self.before_mb)
        self._before_s = self._processor_s()

    def look(self) -> None:
        for name, mb in self._memory_mb().items():
            self.peak_mb[name] = max(self.peak_mb[name], mb)

    def report(self, workload: str, messages: int, **config: Any) -> None:
        after_s = self._processor_s()
        for name, peak_mb in self.peak_mb.items():
            memory = f"anonymous memory of {name}"
            report(workload, f"{memory}, before", "MB", [self.before_mb[name]], **config)
            report(workload, f"{memory}, peak", "MB", [peak_mb], **config)
            each_us = (after_s[name] - self._before_s[name]) / messages * 1e6
            report(workload, f"processor time of {name}", "us/message", [each_us], **config)

    def _memory_mb(self) -> dict[str, float]:
        return {n: sum(anonymous_kb(p.pid) for p in f) / 1e3 for n, f in self._families.items()}

    def _processor_s(self) -> dict[str, float]:
        return {name: sum(map(processor_s, family)) for name, family in self._families.items()}


def anonymous_kb(pid: int) -> int:
    """0 of a process that has ended: the JVM starts short-lived ones."""
    with suppress(FileNotFoundError, ProcessLookupError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("RssAnon:"):
                return int(line.split()[1])
    return 0


def processor_s(process: psutil.Process) -> float:
    with suppress(psutil.Error):
        times = process.cpu_times()
        return float(times.user + times.system)
    return 0.0


@contextmanager
def repeated(step: Callable[[], object], every_s: float) -> Iterator[None]:
    """Do `step` in a thread of its own for the length of a with block."""
    ending = threading.Event()

    def run() -> None:
        while not ending.wait(every_s):
            step()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        ending.set()
        thread.join()


class Receipts:
    """An independent consumer: number and time of receipt of all messages."""

    def __init__(self, rig: Rig) -> None:
        self.numbers: list[int] = []
        self.received_ms: list[int] = []
        self._consumer = KafkaConsumer(
            bootstrap_servers=rig.servers,
            isolation_level="read_committed",
            enable_auto_commit=False,
            max_poll_records=5_000,
        )
        partitions = [TopicPartition(rig.target, p) for p in range(PARTITIONS)]
        self._consumer.assign(partitions)
        for partition, offset in self._consumer.end_offsets(partitions).items():
            self._consumer.seek(partition, offset)

    def poll(self) -> None:
        polled = self._consumer.poll(timeout_ms=100)
        now_ms = CLOCK.now_ms()
        for record in (r for records in polled.values() for r in records):
            self.numbers.append(int(record.value[:NUMBER_DIGITS]) - LARGEST)
            self.received_ms.append(now_ms)

    def close(self) -> None:
        self._consumer.close()


def stream(rig: Rig, rate: int, seconds: int) -> None:
    rng = np.random.default_rng(rate)
    per_tick = rate * TICK_MS // 1_000
    ticks = seconds * 1_000 // TICK_MS
    first, start_ms = rig.sent, CLOCK.now_ms() + 1_000
    sent_ms = start_ms + np.repeat(np.arange(ticks) * TICK_MS, per_tick)
    due_ms = sent_ms + rng.integers(2_000, 8_000, len(sent_ms))
    arrivals = Receipts(rig)
    usage = Usage(**rig.pids("dequeue", "ingest"))
    with repeated(arrivals.poll, 0), repeated(usage.look, 0.1):
        sent = []
        for tick in range(ticks):
            CLOCK.sleep(max(0, start_ms + tick * TICK_MS - CLOCK.now_ms()) / 1_000)
            sent += rig.send(due_ms[tick * per_tick : (tick + 1) * per_tick].tolist())
        for future in sent:
            future.get(timeout=DEADLINE_S)
        sending_s = (CLOCK.now_ms() - start_ms) / 1_000
        wait(lambda: len(arrivals.numbers) >= len(due_ms))
        time.sleep(0.5)
    arrivals.close()
    number = np.array(arrivals.numbers) - first
    late_ms = np.array(arrivals.received_ms) - due_ms[number]
    assert np.array_equal(np.sort(number), np.arange(len(due_ms))), "each exactly once"
    assert late_ms.min() >= 0, "none early"
    workload = f"stream, {rate}/s"
    config = {"seconds": seconds, "delay_ms": [2_000, 8_000], "precision_ms": 50}
    for name, q in (("p50", 50), ("p99", 99), ("p99.9", 99.9), ("max", 100)):
        value = float(np.percentile(late_ms, q))
        report(workload, f"lateness {name}", "ms", [value], **config)
    report(workload, "accepted", "timers/s", [len(due_ms) / sending_s], **config)
    usage.report(workload, len(due_ms), **config)


def fill(rig: Rig, due_ms: Int64) -> float:
    """Have timers placed as fast as it goes; how many seconds it took."""
    placed, begin_s = rig.placed, time.monotonic()
    for first in range(0, len(due_ms), 40_000):
        rig.write(due_ms[first : first + 40_000])
    wait(lambda: rig.placed >= placed + len(due_ms), 0.005)
    return time.monotonic() - begin_s


def used_bytes(*folders: Path) -> int:
    return sum(f.stat().st_blocks * 512 for d in folders for f in d.iterdir() if f.is_file())


def fill_up(rig: Rig, count: int) -> None:
    rng = np.random.default_rng(count)
    data = rig.settings.storage.data_dir
    folders = [data / "timerlog", data / "messages"]
    before = used_bytes(*folders)
    due_ms = CLOCK.now_ms() + 3_600_000 + rng.integers(0, 3_600_000, count)
    usage = Usage(**rig.pids("dequeue", "ingest"))
    with repeated(usage.look, 0.1):
        seconds = fill(rig, due_ms)
    config = {"timers": count, "delay_ms": [3_600_000, 7_200_000]}
    report("enqueue", "placed", "timers/s", [count / seconds], **config)
    on_disk = (used_bytes(*folders) - before) / count
    report("enqueue", "disk per pending timer", "bytes", [on_disk], **config)
    usage.report("enqueue", count, **config)


class Visible:
    """When the real topic's last stable offsets rose."""

    def __init__(self, rig: Rig) -> None:
        self._consumer = KafkaConsumer(
            bootstrap_servers=rig.servers, isolation_level="read_committed"
        )
        self._partitions = [TopicPartition(rig.target, p) for p in range(PARTITIONS)]
        self.at_ms: list[int] = []
        self.total: list[int] = []

    def look(self) -> None:
        self.total.append(sum(self._consumer.end_offsets(self._partitions).values()))
        self.at_ms.append(CLOCK.now_ms())

    def last_rise_ms(self) -> int:
        self._consumer.close()
        return self.at_ms[self.total.index(self.total[-1])]


def burst(rig: Rig, due_ms: int, count: int, workload: str, roles: list[str], **more: Any) -> None:
    """Watch `count` timers of one instant, all of them in the wheel."""
    delivered = status(rig.settings)["delivered"]
    visible = Visible(rig)
    usage = Usage(**rig.pids(*roles))
    CLOCK.sleep(max(0, due_ms - 200 - CLOCK.now_ms()) / 1_000)
    with repeated(visible.look, 0.002), repeated(usage.look, 0.01):
        wait(lambda: status(rig.settings)["delivered"] >= delivered + count, 0.01)
        time.sleep(0.3)
    seconds = (visible.last_rise_ms() - due_ms) / 1_000
    config = {"timers": count, "precision_ms": 50, "partitions": PARTITIONS, **more}
    report(workload, "due → last visible", "s", [seconds], **config)
    report(workload, "delivered", "timers/s", [count / seconds], **config)
    usage.report(workload, count, **config)


def cancels(rig: Rig, count: int) -> None:
    with DelayProducer(
        "bench.timers", bootstrap_servers=rig.servers, reply_topic=REPLIES
    ) as client:
        asked = [
            client.schedule(rig.target, b"", key=b"%d" % number, delay="2h")
            for number in range(count)
        ]
        handles = [timer.result(DEADLINE_S).handle for timer in asked]
        wait(lambda: status(rig.settings)["pending"] >= count)
        wait(lambda: status(rig.settings)["ingest"]["lag"] == 0)
        pending = status(rig.settings)["pending"]
        took_ms = []
        for handle in handles:
            began_s = time.monotonic()
            answer = client.cancel(handle).result(DEADLINE_S).answer(DEADLINE_S)
            took_ms.append((time.monotonic() - began_s) * 1_000)
            assert answer == "cancelled"
    for name, q in (("p50", 50), ("p95", 95), ("max", 100)):
        value = float(np.percentile(took_ms, q))
        report("cancels", f"until answered {name}", "ms", [value], count=count, pending=pending)


def spike(rig: Rig, count: int, lead_s: float) -> None:
    due_ms = CLOCK.now_ms() + int(lead_s * 1_000)
    fill(rig, np.full(count, due_ms))
    assert due_ms > CLOCK.now_ms() + 500, "the timers were placed too late"
    burst(rig, due_ms, count, f"spike, {count} timers", ["dequeue", "ingest"])


def hot_slot(rig: Rig, count: int, body_bytes: int) -> None:
    """Place the timers from here, without Spark: dequeue runs alone."""
    timer = rig.settings.timer
    directory = DataDirectory.start(
        rig.settings.storage.data_dir, WheelConfig(timer.precision_ms, timer.slots), Role.INGEST
    )
    while (record := dequeue_has_decided(directory.state, directory.path)) is None:
        CLOCK.sleep(0.1)
    apply_recovery(directory, record, lambda _: {})
    engine = Engine(directory, CLOCK)
    due_ms = CLOCK.now_ms() + 5_000 + count * (body_bytes + 200) // 50_000
    for first in range(0, count, 50_000):
        number = np.arange(first, first + 50_000)
        batch = placed_directly(number, due_ms, rig.target, body_bytes)
        ends = {p: int(number[-1]) // PARTITIONS + 1 for p in batch.partitions}
        engine.append(batch, ends)
    assert due_ms > CLOCK.now_ms() + 500, "the timers were placed too late"
    workload = f"hot slot, {count} timers of {body_bytes} bytes"
    burst(rig, due_ms, count, workload, ["dequeue"], body_bytes=body_bytes)
    directory.stop()


def placed_directly(number: Int64, due_ms: int, target: str, body_bytes: int) -> TimerBatch:
    """What ingest would have made of the numbered timers."""
    count = len(number)
    zeros = np.zeros(count, np.int32)
    key, value = numbered(number, KEY_BYTES), numbered(number, body_bytes)
    return TimerBatch(
        partitions=[("bench.timers", p) for p in range(PARTITIONS)],
        partition=(number % PARTITIONS).astype(np.int32),
        offset=number // PARTITIONS,
        origin_offset=number // PARTITIONS,
        due_ms=np.full(count, due_ms),
        not_before_ms=np.full(count, ANY_TIME, np.int64),
        codes=[],
        code=np.full(count, ACCEPTED, np.int32),
        timer=np.ones(count, np.bool_),
        cancels=np.zeros(count, np.bool_),
        named_offset=np.full(count, ANY_OFFSET),
        chase_slot=np.full(count, NO_SLOT),
        chase_flags=np.zeros(count, np.int32),
        targets=[target],
        target=zeros,
        target_partition=np.full(count, NO_PARTITION, np.int32),
        key_hash=key_hashes(key),
        id_hash=number,
        timer_id=binary([b""] * count),
        key_value=key_values(key, value),
        headers=join(binary([b""] * count), constant(ENCODED_HEADERS)),
        header_count=zeros + 3,
        roll_times=zeros,
        retries=zeros,
        level=zeros,
        timestamp_ms=np.full(count, due_ms),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dir", type=Path, help="below which data directories are made")
    parser.add_argument("--rates", type=int, nargs="*", default=[1_000, 5_000])
    parser.add_argument("--seconds", type=int, default=20, help="of each stream")
    parser.add_argument("--enqueue", type=int, default=500_000)
    parser.add_argument("--cancels", type=int, default=50)
    parser.add_argument("--spike", type=int, default=100_000)
    parser.add_argument("--spikes", type=int, default=3)
    parser.add_argument("--hot-slot", type=int, default=2_000_000)
    parser.add_argument("--hot-slot-body-bytes", type=int, default=BODY_BYTES)
    args = parser.parse_args()
    if args.rates or args.enqueue or args.spikes or args.cancels:
        with tempfile.TemporaryDirectory(dir=args.dir) as path, ExitStack() as stack:
            rig = Rig(Path(path), stack)
            rig.start("run", stack)
            fill(rig, np.full(20_000, CLOCK.now_ms()))  # warm: JIT, caches, connections
            wait(lambda: status(rig.settings)["pending"] == 0)
            for rate in args.rates:
                stream(rig, rate, args.seconds)
            for _ in range(args.spikes):
                spike(rig, args.spike, 5 + args.spike / 20_000)
            if args.enqueue:
                fill_up(rig, args.enqueue)
            if args.cancels:
                cancels(rig, args.cancels)
    if args.hot_slot:
        with tempfile.TemporaryDirectory(dir=args.dir) as path, ExitStack() as stack:
            rig = Rig(Path(path), stack)
            rig.start("dequeue", stack)
            hot_slot(rig, args.hot_slot, args.hot_slot_body_bytes)


if __name__ == "__main__":
    main()
