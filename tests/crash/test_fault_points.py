"""kill -9 of the real processes at named places: nothing lost, doubled, early or out of order.

Real Kafka and Spark, `duewheel ingest` and `duewheel dequeue` by way of fault_points.py, and a
read_committed consumer that knows nothing of them. `make test` meets every point of dequeue's and
one of ingest's, one after the other, with no quiet start between; `make crash-matrix` meets all of
them, both processes in turn, and judges everything after each.
"""

from __future__ import annotations

import random
import runpy
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaConsumer, KafkaProducer, TopicPartition

from duewheel.checkpoints.durable import Durable
from duewheel.checkpoints.state import State
from duewheel.child import Child
from duewheel.clock import SystemClock
from duewheel.config import load
from duewheel.dev_broker import DevBroker
from duewheel.kafka_admin import KafkaAdmin
from duewheel.status import status as read_status
from duewheel.wheel.check import check
from duewheel.wheel.layout import HOUR_MS, hour_name, hour_of

SCRIPT = Path(__file__).with_name("fault_points.py")
FAULTS = runpy.run_path(str(SCRIPT))
POINTS: dict[str, Any] = FAULTS["POINTS"]

# These need more than a load of timers, and have tests of their own.
RING_FULL, HALF_REDONE, IDLE = "ingest.ring_full", "dequeue.half_redone", "dequeue.idle_committed"
COLLECT = ["collect.locked", "collect.gc_hour_raised", "collect.log_unlinked", "collect.unlinked"]
# These come without timers, in this order.
STARTING = [
    f"dequeue.{step}"
    for step in ("role_taken", "id_taken", "progress_read", "undecided", "deciding", "decided")
]
CLOSING = ["dequeue.closing", "dequeue.close_page_half", "dequeue.floor_set"]

DEQUEUE = [
    name for name in POINTS if name.startswith("dequeue.") and name not in {HALF_REDONE, IDLE}
]
DELIVERING = [name for name in DEQUEUE if name not in {*STARTING, *CLOSING}]
INGEST = [name for name in POINTS if name.startswith(("ingest.", "durable.")) and name != RING_FULL]
# Every point of both processes, a pair at a time.
ROUNDS = [
    (INGEST[number % len(INGEST)], DEQUEUE[number % len(DEQUEUE)])
    for number in range(max(len(INGEST), len(DEQUEUE)))
]
TWICE = {"ingest.appended", "ingest.commit_page_written", "dequeue.commit_answered"}

PARTITIONS = 3
PRECISION_MS = 50
WINDOW_MS = 2_000
LOAD = 60
DEADLINE_S = 180.0
CLOCK = SystemClock()

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.usefixtures("spark_jars"),
]

Headers = list[tuple[str, bytes]]
USERS: list[Headers] = [[], [("n", b"1"), ("n", b""), ("binary", bytes(range(256)))]]


@dataclass(frozen=True)
class Sent:
    """A timer and what must come of it.

    Attributes:
        due_ms: None if it is to be rejected, with `code`.
        source: topic-partition@offset.
    """

    key: bytes | None
    request: Headers
    users: Headers
    due_ms: int | None
    code: bytes
    source: str
    partition: int
    offset: int

    @property
    def rolled(self) -> bool:
        """Whether it goes back to its timer topic first."""
        delay = dict(self.request).get("TIMER_DELAY_MS", b"0")
        return delay.isdigit() and int(delay) > WINDOW_MS


@dataclass(frozen=True)
class Seen:
    """A record as the consumer got it, and when."""

    value: bytes
    key: bytes | None
    headers: Headers
    topic: str
    partition: int
    at_ms: int


def a_request(number: int, now_ms: int, target: str) -> tuple[Headers, int | None, bytes]:
    """Request headers; a due time, or a delay when negative, or None and the reason."""
    kind = number % 10
    if kind < 4:  # many in one slot: they leave in several transactions
        return [("TIMER_DELIVER_MS", b"%d" % (now_ms + 300))], now_ms + 300, b""
    if kind < 6:
        due_ms = now_ms - 2 * HOUR_MS - number
        return [("TIMER_DELIVER_MS", b"%d" % due_ms)], due_ms, b""
    if kind < 8:
        partition = b"%d" % (number % PARTITIONS)
        routed: Headers = [("REAL_TOPIC", target.encode()), ("REAL_QID", partition)]
        return [("TIMER_DELAY_MS", b"%d" % (10 * number)), *routed], -10 * number, b""
    if kind == 8:  # goes back to its topic first
        delay_ms = WINDOW_MS + 500 + number
        return [("TIMER_DELAY_MS", b"%d" % delay_ms)], -delay_ms, b""
    if number % 20 == 9:
        return [("TIMER_DELAY_MS", b"soon")], None, b"bad_header"
    return [], None, b"no_due_time"


class Shard:
    """Topics, a configuration, the two processes, and a consumer that knows nothing of them."""

    def __init__(self, path: Path, servers: str, name: str, *, slots: int, margin: str) -> None:
        self.path, self.servers = path, servers
        self.timers, self.target = f"{name}.timers", f"{name}.orders"
        self.dead_letters = f"{name}.dead-letter"
        self.config = path / "duewheel.toml"
        self.config.write_text(
            f'[app]\nid = "{name}"\n'
            f'[kafka]\nbootstrap_servers = "{servers}"\n'
            f'[timer]\ntopics = ["{self.timers}"]\nprecision_ms = {PRECISION_MS}\nslots = {slots}\n'
            f'roll_window = "{WINDOW_MS}ms"\nmargin = "{margin}"\n'
            f'mapping = {{ "{self.timers}" = "{self.target}" }}\n'
            f'[storage]\ndata_dir = "{path / "data"}"\ndurable_interval = "1s"\n'
            '[ingest]\ndriver_memory = "1g"\nmax_offsets_per_trigger = 40\n'
            "[dequeue]\nchunk_records = 15\n"
        )
        self.settings = load(self.config)
        with KafkaAdmin(self.settings.kafka.client_options("admin")) as admin:
            admin.create_topic(self.target, PARTITIONS)
        self.processes: dict[str, Child] = {}
        self.sent: dict[bytes, Sent] = {}
        self.loads = 0
        self.seen: list[Seen] = []
        self._producer = KafkaProducer(bootstrap_servers=servers, linger_ms=5)
        self._stop = threading.Event()
        self._consumer = threading.Thread(target=self._consume)

    # ---- processes -------------------------------------------------------------------------

    def line(self, *words: str, point: str | None = None, hour_behind: bool = False) -> list[str]:
        faults = ["--point", point, "--mark", str(self.path / point)] if point else []
        behind = ["--hour-behind"] if hour_behind else []
        command = [*words, "--config", str(self.config)]
        return [sys.executable, "-P", str(SCRIPT), *faults, *behind, "--", *command]

    def init(self, *, hour_behind: bool = False) -> None:
        line = self.line("init", "--partitions", str(PARTITIONS), hour_behind=hour_behind)
        subprocess.run(line, capture_output=True, timeout=DEADLINE_S, check=True)
        self._consumer.start()

    def start(self, name: str, point: str | None = None, *, hour_behind: bool = False) -> None:
        assert name not in self.processes
        with (self.path / f"{name}.log").open("ab") as log:
            line = self.line(name, point=point, hour_behind=hour_behind)
            self.processes[name] = Child(line, stdout=log, stderr=log)

    def kill(self, name: str) -> None:
        """kill -9, wherever it is."""
        assert self.processes.pop(name).end(signal.SIGKILL, DEADLINE_S)

    def dies_at(self, point: str) -> None:
        """Wait until the process of this point has killed itself there."""
        name = process_of(point)
        ended = self.processes[name].wait(DEADLINE_S)
        code = self.processes[name].exit_code
        assert ended, f"{point} was not reached\n{self.log(name)}"
        mark = self.path / point
        assert (code, mark.exists()) == (-signal.SIGKILL, True), self.log(name)
        mark.unlink()
        del self.processes[name]

    def die_at(self, point: str, *, hour_behind: bool = False) -> None:
        """Start the process of this point and wait until it has killed itself there."""
        self.start(process_of(point), point, hour_behind=hour_behind)
        self.dies_at(point)

    def log(self, name: str) -> str:
        return (self.path / f"{name}.log").read_text()[-6000:]

    def close(self) -> None:
        for name in list(self.processes):
            self.kill(name)
        self._stop.set()
        if self._consumer.ident is not None:
            self._consumer.join()
        self._producer.close()

    def wait(self, done: Callable[[], object]) -> None:
        end_s = time.monotonic() + DEADLINE_S
        while not done():
            for name, child in self.processes.items():
                assert child.exit_code is None, f"{name} has ended\n{self.log(name)}"
            assert time.monotonic() < end_s, (
                f"{len(self.seen)} delivered of {len(self.sent)}; {read_status(self.settings)}\n"
                + self.log("ingest")
                + self.log("dequeue")
            )
            time.sleep(0.05)

    # ---- messages --------------------------------------------------------------------------

    def send(self, count: int = LOAD) -> None:
        """Timers that are due at once, in one instant, soon, or beyond the window; bad ones."""
        self.loads += 1
        dice, now_ms = random.Random(self.loads), CLOCK.now_ms()
        waiting = []
        for number in range(count):
            request, due_ms, code = a_request(number, now_ms, self.target)
            key = None if dice.random() < 0.2 else b"key-%d" % dice.randrange(20)
            users, value = dice.choice(USERS), b"load %d, %d" % (self.loads, number)
            future = self._producer.send(
                self.timers, value, key, [*users, *request], dice.randrange(PARTITIONS)
            )
            waiting.append((value, key, request, users, due_ms, code, future))
        self._producer.flush(timeout=DEADLINE_S)
        for value, key, request, users, due_ms, code, future in waiting:
            place = future.get(timeout=1)
            if due_ms is not None and due_ms <= 0:
                due_ms = place.timestamp - due_ms
            source = f"{place.topic}-{place.partition}@{place.offset}"
            at = (place.partition, place.offset)
            self.sent[value] = Sent(key, request, users, due_ms, code, source, *at)

    def _consume(self) -> None:
        consumer = KafkaConsumer(
            bootstrap_servers=self.servers,
            isolation_level="read_committed",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
        )
        counts = {self.target: PARTITIONS, self.dead_letters: 4}
        consumer.assign([TopicPartition(t, p) for t, n in counts.items() for p in range(n)])
        while not self._stop.is_set():
            polled = consumer.poll(timeout_ms=100)
            now_ms = CLOCK.now_ms()
            self.seen += [
                Seen(r.value, r.key, r.headers, r.topic, r.partition, now_ms)
                for records in polled.values()
                for r in records
            ]
        consumer.close()

    # ---- verdicts --------------------------------------------------------------------------

    def judge(self) -> None:
        """What has been delivered so far: each once, byte for byte, none early, in order."""
        seen = list(self.seen)
        counts = Counter(record.value for record in seen)
        assert {value: n for value, n in counts.items() if n > 1} == {}
        assert counts.keys() <= self.sent.keys()
        last: dict[tuple[int, int | None, str, int], int] = {}
        for record in seen:
            sent = self.sent[record.value]
            assert record.key == sent.key
            if sent.due_ms is None:
                require_dead_letter(record, sent)
            else:
                require_delivery(record, sent, sent.due_ms)
            if sent.rolled:  # counts as its copy, whose offset nobody here knows
                continue
            slot = None if sent.due_ms is None else -(-sent.due_ms // PRECISION_MS)
            run = (sent.partition, slot, record.topic, record.partition)
            assert last.get(run, -1) < sent.offset, f"{record.value!r} is out of order"
            last[run] = sent.offset

    def judge_all(self) -> None:
        """Everything has been delivered, and everything on disk is whole."""
        self.wait(lambda: len(self.seen) >= len(self.sent))
        self.wait(lambda: read_status(self.settings)["pending"] == 0)
        time.sleep(0.5)  # a double would come with the next chunk
        self.judge()
        assert {record.value for record in self.seen} == self.sent.keys()
        report = check(self.settings.storage.data_dir, self.settings.wheel)
        assert report.findings == []


def process_of(point: str) -> str:
    return "ingest" if point.startswith(("ingest.", "durable.")) else "dequeue"


def require_dead_letter(record: Seen, sent: Sent) -> None:
    kept = [*sent.users, *sent.request]
    assert record.headers[: len(kept)] == kept
    added = dict(record.headers[len(kept) :])
    assert (added["TIMER_ERROR_CODE"], added["TIMER_SOURCE"]) == (sent.code, sent.source.encode())


def require_delivery(record: Seen, sent: Sent, due_ms: int) -> None:
    assert record.at_ms >= due_ms, f"{record.value!r} is early"
    expected: Headers = [
        *sent.users,
        ("TIMER_SOURCE", sent.source.encode()),
        ("TIMER_DUE_MS", b"%d" % due_ms),
        ("UNIQ_KEY", sent.source.encode()),
    ]
    assert record.headers[: len(expected)] == expected
    rolls = record.headers[len(expected) :]
    assert [name for name, _ in rolls] == ["TIMER_ROLL_TIMES"] * sent.rolled
    asked = dict(sent.request).get("REAL_QID")
    assert asked in (None, b"%d" % record.partition)


def test_every_point_is_at_a_method_that_exists() -> None:
    for point in POINTS.values():
        for place in (point.place, point.inside, point.stall, *point.since):
            assert not place or callable(FAULTS["found"](place)[2])


# ---- one after the other ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def shard(broker: DevBroker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shard]:
    """Ingest is starting, and the shard began an hour ago."""
    path = tmp_path_factory.mktemp("points")
    name = f"points-{CLOCK.now_ms()}"
    shard = Shard(path, broker.bootstrap_servers, name, slots=100_000, margin="5m")
    try:
        shard.init(hour_behind=True)
        shard.start("ingest")
        yield shard
    finally:
        shard.close()


@pytest.mark.parametrize("point", STARTING)
def test_dequeue_killed_at_its_start(shard: Shard, point: str) -> None:
    """Its first starts, while Spark starts beside it."""
    shard.die_at(point, hour_behind=True)


def test_garbage_collection_killed_at_every_step(shard: Shard) -> None:
    """An hour of the past is given up, then its log is unlinked, then its messages are."""
    shard.send()
    shard.start("dequeue", hour_behind=True)
    shard.wait(lambda: len(shard.seen) == 3 * LOAD // 10)  # due two hours ago, or rejected
    shard.kill("dequeue")
    past = hours(shard, "timerlog")[0]
    shard.start("dequeue")
    shard.wait(lambda: hour_to_come(mirrored_slot(shard)) > past)
    shard.kill("dequeue")
    shard.wait(lambda: hour_to_come(durable_slot(shard)) > past)
    left = []
    for point in COLLECT:
        shard.die_at(point)
        left.append([past in hours(shard, folder) for folder in ("timerlog", "messages")])
    assert left == [[True, True], [True, True], [False, True], [False, False]]
    shard.judge()


@pytest.mark.parametrize("point", DELIVERING)
def test_dequeue_killed(shard: Shard, point: str) -> None:
    """No quiet start between: what one start leaves is what the next one is killed on."""
    shard.send()
    shard.die_at(point)
    shard.judge()


@pytest.mark.crash_matrix
def test_ingest_killed_too_and_everything_delivered(shard: Shard) -> None:
    """Dequeue is killed while Spark starts, then ingest; then both may run, and all comes out."""
    shard.kill("ingest")
    shard.send()
    shard.start("ingest", "ingest.half_applied")
    for point in CLOSING:
        shard.die_at(point)
    shard.start("dequeue")
    shard.dies_at("ingest.half_applied")
    shard.judge()
    shard.start("ingest")
    shard.kill("dequeue")
    shard.die_at(IDLE)
    shard.start("dequeue")
    shard.judge_all()


def hours(shard: Shard, folder: str) -> list[str]:
    """The hours that have a file."""
    return sorted(path.name for path in (shard.path / "data" / folder).iterdir())


def hour_to_come(delivered_slot: int) -> str:
    return hour_name(hour_of(delivered_slot + 1, PRECISION_MS))


def mirrored_slot(shard: Shard) -> int:
    state = State.open(shard.path / "data")
    mirror = state.mirror()
    state.release()
    return mirror[0] if mirror else 0


def durable_slot(shard: Shard) -> int:
    durable = Durable.read(shard.path / "data")
    return durable.r if durable else 0


# ---- each on its own, and judged: make crash-matrix ---------------------------------------------


@pytest.fixture(scope="module")
def small_shard(broker: DevBroker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shard]:
    """The ring is eight seconds: many laps, and full while dequeue is away."""
    path = tmp_path_factory.mktemp("matrix")
    name = f"matrix-{CLOCK.now_ms()}"
    shard = Shard(path, broker.bootstrap_servers, name, slots=80, margin="1s")
    try:
        shard.init()
        yield shard
    finally:
        shard.close()


@pytest.fixture
def small(small_shard: Shard) -> Shard:
    """Both processes run, whatever a test before has left."""
    for name in ("dequeue", "ingest"):
        child = small_shard.processes.get(name)
        if child is not None and child.exit_code is not None:
            del small_shard.processes[name]
        if name not in small_shard.processes:
            small_shard.start(name)
    return small_shard


def kill_ingest_at(shard: Shard, point: str) -> None:
    """Ingest dies at the point, dequeue lives."""
    for _ in range(1 + (point in TWICE)):
        shard.send()
        shard.die_at(point)


def kill_dequeue_at(shard: Shard, point: str) -> None:
    """Dequeue dies at the point; the timers that lead it there come in meanwhile."""
    for _ in range(1 + (point in TWICE)):
        shard.send()
        shard.die_at(point)
    shard.start("dequeue")


@pytest.mark.crash_matrix
@pytest.mark.parametrize(("ingest", "dequeue"), ROUNDS)
def test_both_killed_in_turn(small: Shard, ingest: str, dequeue: str) -> None:
    small.kill("ingest")
    kill_ingest_at(small, ingest)
    small.start("ingest")
    small.kill("dequeue")
    kill_dequeue_at(small, dequeue)
    small.judge_all()


@pytest.mark.crash_matrix
def test_ingest_killed_while_the_ring_is_full(small: Shard) -> None:
    small.kill("ingest")
    small.start("ingest", RING_FULL)
    small.kill("dequeue")
    small.start("dequeue")  # its decision lets ingest start
    pause(small, on=True)
    small.wait(lambda: (read_status(small.settings)["dequeue"]["behind_ms"] or 0) > 7_000)
    small.send()
    small.dies_at(RING_FULL)
    pause(small, on=False)
    small.start("ingest")
    small.judge_all()


@pytest.mark.crash_matrix
def test_dequeue_killed_while_it_redoes_the_batch_on_which_ingest_was_killed(small: Shard) -> None:
    for point in ("ingest.commit_page_written", "ingest.half_applied"):
        small.kill("ingest")
        small.kill("dequeue")
        small.send()
        small.start("dequeue", HALF_REDONE)
        small.die_at(point)
        small.dies_at(HALF_REDONE)
        small.start("dequeue")
        small.start("ingest")
        small.judge_all()


@pytest.mark.crash_matrix
def test_dequeue_killed_when_nothing_is_due(small: Shard) -> None:
    small.judge_all()
    small.kill("dequeue")
    small.die_at(IDLE)
    small.send()
    small.start("dequeue")
    small.judge_all()


def pause(shard: Shard, *, on: bool) -> None:
    subprocess.run(
        shard.line("pause" if on else "resume", "dequeue"),
        capture_output=True,
        timeout=DEADLINE_S,
        check=True,
    )
