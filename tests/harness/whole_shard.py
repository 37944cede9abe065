"""`duewheel run` on topics of its own, and a consumer that shares no code with it."""

from __future__ import annotations

import json
import os
import random
import signal
import urllib.request
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kafka import KafkaProducer
from prometheus_client.parser import text_string_to_metric_families
from tests.harness.config_file import write_config
from tests.harness.launcher import events, launch, run, tail, wait_until
from tests.harness.random_timers import PARTITIONS, Headers, Sent, a_timer
from tests.harness.reader import TopicReader, read_topic

from duewheel.clock import SystemClock
from duewheel.config.settings import load
from duewheel.kafka.topics.admin import KafkaAdmin
from duewheel.ops.shard.status import read_status
from duewheel.osutil.child_process import Child
from duewheel.schemas.receipts import Receipt
from duewheel.streaming.batch_attempt import SPARK_DIR
from duewheel.streaming.early_ends import offsets_from

CLOCK = SystemClock()


@dataclass
class Arrivals:
    """Everything a read_committed consumer has seen in some topics, by value.

    Attributes:
        count: how often each value came.
        first: key, headers, partition, time of receipt of each value's first arrival.
    """

    count: Counter[bytes] = field(default_factory=Counter)
    first: dict[bytes, tuple[bytes | None, Headers, int, int]] = field(default_factory=dict)


class WholeShard:
    """Topics, a configuration, `duewheel run`, and a consumer that knows nothing of it.

    Attributes:
        supervisor: the newest `duewheel run`; None: it has been stopped, or was never started.
    """

    def __init__(
        self,
        path: Path,
        servers: str,
        name: str,
        window: str = "1h",
        **sections: dict[str, Any],
    ) -> None:
        self.path, self.servers = path, servers
        self.timers, self.target = f"{name}.timers", f"{name}.orders"
        self.dead_letters = f"{name}.dead-letter"
        self.config = write_config(
            path,
            servers,
            name,
            timer={
                "roll_window": window,
                "mapping": {self.timers: self.target},
                "reply_topic": f"{name}.replies",
                "receipts_topic": f"{name}.receipts",
                "topics_pattern": f"{name}[.]later.*",
                "topic": {
                    self.timers: {"recurring": True, "quota_per_second": 1_000_000},
                    f"{name}.later.right": {"headers": "etf1"},
                    f"{name}.later.quota": {"quota_per_second": 20},
                },
            },
            ingest={"topics_interval": "500ms"} | sections.pop("ingest", {}),
            metrics={"ingest_port": 0, "dequeue_port": 0},
            log={"format": "json"},
            **sections,
        )
        self.settings = load(self.config)
        with KafkaAdmin(self.settings.kafka.client_options("admin")) as admin:
            admin.create_topic(self.target, PARTITIONS)
        self.command("init", "--partitions", str(PARTITIONS))
        self.arrivals = Arrivals()
        heard = (self.target, self.dead_letters)
        self._reader = TopicReader(servers, heard, self._hear, max_poll_records=5000)
        self._reader.start()
        self.supervisor: Child | None = None
        self.probes = 0

    def command(self, *words: str, code: int = 0) -> Any:
        """Run a duewheel command; its stdout, decoded if it is one JSON object."""
        done = run(self.config, *words)
        assert done.returncode == code, done.stderr
        return json.loads(done.stdout) if "--output" in words else done.stdout

    def launch(self, niceness: int = 0) -> None:
        """Start `duewheel run`."""
        self.supervisor = launch(self.config, "run", niceness=niceness)

    def start(self) -> None:
        """Start `duewheel run` and wait until a timer has gone all the way."""
        self.launch()
        self.probes += 1
        value = b"probe %d" % self.probes
        self.deliver_one(value)
        del self.arrivals.first[value], self.arrivals.count[value]

    def deliver_one(self, value: bytes) -> None:
        """All the way, through both processes."""
        producer = KafkaProducer(bootstrap_servers=self.servers)
        producer.send(self.timers, value, headers=[("TIMER_DELAY_MS", b"0")]).get(timeout=30)
        producer.close()
        self.wait(lambda: value in self.arrivals.first)

    def forget(self) -> None:
        """Begin to count anew."""
        self.arrivals = Arrivals()

    def status(self) -> dict[str, Any]:
        return read_status(self.settings, SystemClock()).as_json()

    def events(self, event: str) -> list[dict[str, Any]]:
        """Log lines with this text."""
        return events(self.path / "run.log", event)

    def scrape(self, name: str) -> dict[str, float]:
        """The newest metrics of one of the two processes: by name and the value of the label."""
        pid = self.status()[name]["pid"]
        (url,) = [each["url"] for each in self.events("metrics served") if each["pid"] == pid]
        with urllib.request.urlopen(url, timeout=30) as answer:
            families = list(text_string_to_metric_families(answer.read().decode()))
        return {
            ":".join([sample.name.removeprefix("duewheel_"), *sample.labels.values()]): sample.value
            for family in families
            for sample in family.samples
        }

    def has_ended_early(self) -> bool:
        """Whether one of the last batches has ended before its planned end, by its bytes."""
        offsets = self.settings.storage.data_dir / SPARK_DIR / "checkpoint" / "offsets"
        lines = [path.read_text().splitlines()[2] for path in offsets.glob("[0-9]*")]
        return any(offsets_from(json.loads(line))[1] for line in lines)

    def await_taken(self) -> None:
        """Until all that is in the timer topics by now is in the wheel."""
        now_ms = CLOCK.now_ms()

        def taken() -> bool:
            known = self.status()["ingest"]
            return bool((known["lag_asked_ms"] or 0) > now_ms and known["lag"] == 0)

        self.wait(taken)

    def kill(self, name: str) -> None:
        """kill -9 one of the two processes; the supervisor starts it again."""
        found: list[int] = []  # none while its supervisor starts it again

        def has_pid() -> bool:
            found[:] = [self.status()[name]["pid"] or 0]
            return found[0] > 0

        self.wait(has_pid)
        os.kill(found[0], signal.SIGKILL)

    def wait(self, done: Callable[[], bool]) -> None:
        wait_until(done, lambda: tail(self.path / "run.log"), every_s=0.2)

    @property
    def supervisor_pid(self) -> int:
        """Process id of `duewheel run`."""
        assert self.supervisor is not None
        return self.supervisor.pid

    def stop(self) -> int | None:
        """SIGTERM to the supervisor; its exit code."""
        if self.supervisor is None:
            return None
        supervisor, self.supervisor = self.supervisor, None
        supervisor.stop(30)
        return supervisor.exit_code

    def close(self) -> None:
        self.stop()
        self._reader.stop()

    def _hear(self, records: Sequence[Any]) -> None:
        now_ms = CLOCK.now_ms()
        for record in records:
            seen = (record.key, record.headers, record.partition, now_ms)
            self.arrivals.first.setdefault(record.value, seen)
            self.arrivals.count[record.value] += 1


def schedule(
    shard: WholeShard, count: int, seed: int, prefix: bytes = b"value"
) -> dict[bytes, tuple[Sent, int, str]]:
    """Send timers; by value: what was sent, its timestamp, its source."""
    dice = random.Random(seed)
    producer = KafkaProducer(bootstrap_servers=shard.servers, linger_ms=20)
    sent = {}
    for number in range(count):
        timer, value = a_timer(dice, shard.target), b"%s %d" % (prefix, number)
        headers = [*timer.users, *timer.request]
        sent[value] = (timer, producer.send(shard.timers, value, timer.key, headers=headers))
    producer.flush(timeout=120)
    known = {}
    for value, (timer, future) in sent.items():
        record = future.get(timeout=1)
        source = f"{record.topic}-{record.partition}@{record.offset}"
        known[value] = (timer, record.timestamp, source)
    producer.close()
    return known


def judge(shard: WholeShard, known: dict[bytes, tuple[Sent, int, str]]) -> None:
    """Each exactly once, byte for byte, none early, rejected ones with their reason."""
    doubled = {value: n for value, n in shard.arrivals.count.items() if n != 1}
    assert not doubled
    assert shard.arrivals.first.keys() == known.keys()
    for value, (timer, timestamp_ms, source) in known.items():
        key, headers, partition, seen_ms = shard.arrivals.first[value]
        assert key == timer.key
        if timer.due_ms is None:
            kept = [*timer.users, *timer.request]
            assert headers[: len(kept)] == kept
            added = dict(headers[len(kept) :])
            assert added["TIMER_ERROR_CODE"] == timer.code
            assert added["TIMER_SOURCE"] == source.encode()
        else:
            due_ms = timer.due_ms(timestamp_ms)
            assert seen_ms >= due_ms
            assert headers == [
                *timer.users,
                ("TIMER_SOURCE", source.encode()),
                ("TIMER_DUE_MS", b"%d" % due_ms),
                ("UNIQ_KEY", source.encode()),
            ]
            assert timer.partition in (None, partition)


def judge_receipts(shard: WholeShard, known: dict[bytes, tuple[Sent, int, str]]) -> None:
    """Each delivered timer has exactly one receipt, which names its message; others have none."""
    topic = shard.settings.timer.receipts_topic
    assert topic is not None
    parsed = [
        Receipt.parse(record.key, record.value, record.timestamp)
        for record in read_topic(shard.servers, topic)
    ]
    sources = {source for *_, source in known.values()}
    found = [each for each in parsed if each is not None and each.source in sources]
    expected = {
        source: (source, shard.target, shard.arrivals.first[value][2], timer.due_ms(timestamp_ms))
        for value, (timer, timestamp_ms, source) in known.items()
        if timer.due_ms is not None
    }
    assert Counter(each.source for each in found) == Counter(expected.keys())
    for each in found:
        written = (each.timer_id, each.target, each.target_partition, each.due_ms)
        assert written == expected[each.source]
        assert each.lateness_ms >= 0


def judge_levels(shard: WholeShard, known: dict[bytes, tuple[Sent, int, str]]) -> int:
    """First in, first out: of a level, from each timer partition to each partition of the target.
    Returns how many timers with a level there were.
    """
    last: dict[tuple[str, bytes, int], int] = {}
    count = 0
    for value, (_, _, partition, _) in shard.arrivals.first.items():
        timer, _, source = known[value]
        level = dict(timer.request).get("DELAY")
        if level is None or timer.due_ms is None:
            continue
        written, _, offset = source.rpartition("@")
        lane = written, level, partition
        assert int(offset) > last.get(lane, -1), f"{source} of level {level!r} was overtaken"
        last[lane] = int(offset)
        count += 1
    return count
