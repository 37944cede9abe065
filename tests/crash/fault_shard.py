"""A shard on real Kafka and Spark whose processes die at chosen points, and its verdict.

What is sent are timers of all kinds, and cancels and reschedules of some of them: at once, and with
the next load, when most have left. A read_committed consumer that knows nothing of the processes
says what arrives; the brokers say when, for they stamp what they take.
"""

from __future__ import annotations

import json
import random
import runpy
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kafka import KafkaProducer
from tests.harness.config_file import write_config
from tests.harness.launcher import tail
from tests.harness.reader import TopicReader
from tests.harness.topics import alter

from duewheel.checkpoints.durable_checkpoint import Durable
from duewheel.checkpoints.state_file import State
from duewheel.clock import SystemClock
from duewheel.config.settings import load
from duewheel.errors import RecoveryPending
from duewheel.kafka.topics.admin import KafkaAdmin
from duewheel.ops.shard.status import read_status
from duewheel.osutil.child_process import Child
from duewheel.prove.cancel_judge import (
    Fault,
    RequestOutcome,
    Source,
    TimerRequest,
    cancel_faults,
)
from duewheel.wheel.slots import HOUR_MS
from duewheel.wheel.storage.full_check import check

SCRIPT = Path(__file__).with_name("fault_points.py")
FAULTS = runpy.run_path(str(SCRIPT))
POINTS: dict[str, Any] = FAULTS["POINTS"]

PARTITIONS = 3
PRECISION_MS = 50
WINDOW_MS = 2_000
LOAD = 60  # timers
REPLACING = LOAD // 10  # more of them: reschedules
DEADLINE_S = 180.0
CLOCK = SystemClock()
MAY_STILL_COME = {"lost", "unanswered", "untrue"}  # faults, if it does not

CANCEL, RESCHEDULE = "TIMER_DEL_UNIQKEY", "TIMER_RESCHEDULE"
CANCELS = {CANCEL, RESCHEDULE}
# Of each ten timers of a load these have an id, and are cancelled at once, replaced at once, or
# cancelled with the next load.
AT_ONCE, REPLACED, LATE = {0, 6, 8}, {1}, {2, 7}
NAMED = AT_ONCE | REPLACED | LATE

Headers = list[tuple[str, bytes]]
USERS: list[Headers] = [[], [("n", b"1"), ("n", b""), ("binary", bytes(range(256)))]]


@dataclass(frozen=True)
class CrashRecord:
    """What is to be written; a `due_ms` up to 0 is a delay with its sign turned."""

    value: bytes
    key: bytes | None
    request: Headers
    users: Headers
    due_ms: int | None
    code: bytes
    partition: int


@dataclass(frozen=True)
class CrashRequest:
    """A timer, or a cancel, and what must come of it.

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
    def place(self) -> Source:
        """Where it lies in the timer topic."""
        return self.partition, self.offset

    @property
    def timer_id(self) -> bytes:
        """Its own, or that of the timers that it is to meet."""
        asked = dict(self.request)
        return asked.get(CANCEL) or asked.get("UNIQ_KEY") or self.source.encode()

    @property
    def asked(self) -> TimerRequest:
        """For the verdict on cancels."""
        names = dict(self.request).keys()
        return TimerRequest(self.place, self.timer_id, CANCEL not in names, bool(names & CANCELS))

    @property
    def rolled(self) -> bool:
        """Whether it goes back to its timer topic first."""
        delay = dict(self.request).get("TIMER_DELAY_MS", b"0")
        return delay.isdigit() and int(delay) > WINDOW_MS


@dataclass(frozen=True)
class Seen:
    """A record as the consumer got it, and when; and when the broker did."""

    value: bytes
    key: bytes | None
    headers: Headers
    topic: str
    partition: int
    at_ms: int
    taken_ms: int


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


def cancel_of(timer: CrashRequest) -> CrashRecord:
    request: Headers = [(CANCEL, timer.timer_id)]
    return CrashRecord(b"", timer.key, request, timer.users, None, b"", timer.partition)


def replacing(timer: CrashRequest, due_ms: int) -> CrashRecord:
    """The same timer, due at another time."""
    request: Headers = [
        ("TIMER_DELIVER_MS", b"%d" % due_ms),
        ("UNIQ_KEY", timer.timer_id),
        (RESCHEDULE, b"true"),
    ]
    value = timer.timer_id + b", again"
    return CrashRecord(value, timer.key, request, timer.users, due_ms, b"", timer.partition)


class FaultShard:
    """Topics, a configuration, the two processes, and a consumer that knows nothing of them."""

    def __init__(self, path: Path, servers: str, name: str, *, slots: int, margin: str) -> None:
        self.path, self.servers = path, servers
        self.timers, self.target = f"{name}.timers", f"{name}.orders"
        self.dead_letters, self.replies = f"{name}.dead-letter", f"{name}.replies"
        self.config = write_config(
            path,
            servers,
            name,
            timer={
                "reply_topic": self.replies,
                "precision_ms": PRECISION_MS,
                "slots": slots,
                "roll_window": f"{WINDOW_MS}ms",
                "margin": margin,
                "mapping": {self.timers: self.target},
            },
            storage={"durable_interval": "1s"},
            ingest={"max_offsets_per_trigger": 40},
            dequeue={"chunk_records": 15},
        )
        self.settings = load(self.config)
        with KafkaAdmin(self.settings.kafka.client_options("admin")) as admin:
            admin.create_topic(self.target, PARTITIONS)
        self.processes: dict[str, Child] = {}
        self.sent: dict[bytes, CrashRequest] = {}
        self.requests: dict[str, CrashRequest] = {}  # what is to be answered
        self.loads = 0
        self.seen: list[Seen] = []
        self.answers: list[Seen] = []
        self._late: list[CrashRequest] = []
        self._producer = KafkaProducer(bootstrap_servers=servers, linger_ms=5)
        self._reader = TopicReader(
            servers, (self.target, self.dead_letters, self.replies), self._hear
        )

    # ---- processes -------------------------------------------------------------------------

    def line(self, *words: str, point: str | None = None, hour_behind: bool = False) -> list[str]:
        faults = ["--point", point, "--mark", str(self.path / point)] if point else []
        behind = ["--hour-behind"] if hour_behind else []
        always = self.always(words[0])
        command = [*words, "--config", str(self.config)]
        return [sys.executable, "-P", str(SCRIPT), *faults, *behind, *always, "--", *command]

    def always(self, name: str) -> list[str]:
        """Options of fault_points.py with which this command is always run."""
        return []

    def init(self, *, hour_behind: bool = False) -> None:
        line = self.line("init", "--partitions", str(PARTITIONS), hour_behind=hour_behind)
        subprocess.run(line, capture_output=True, timeout=DEADLINE_S, check=True)
        stamped = {"message.timestamp.type": "LogAppendTime"}
        for topic in (self.target, self.dead_letters, self.replies):
            alter(self.servers, topic, stamped)
        self._reader.start()

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

    def die_under_load_at(self, point: str) -> None:
        """The same, with more loads meanwhile: what is to die may come with none of the first."""
        name, end_s = process_of(point), time.monotonic() + DEADLINE_S
        self.start(name, point)
        while not self.processes[name].wait(20.0) and time.monotonic() < end_s:
            self.send()
        self.dies_at(point)

    def log(self, name: str) -> str:
        return tail(self.path / f"{name}.log")

    def close(self) -> None:
        for name in list(self.processes):
            self.kill(name)
        self._reader.stop()
        self._producer.close()

    def wait(self, done: Callable[[], object]) -> None:
        end_s = time.monotonic() + DEADLINE_S
        while not done():
            for name, child in list(self.processes.items()):
                if name == "ingest" and child.exit_code == RecoveryPending.exit_code:
                    # It met a dequeue that was killed while it started: `run` does the same.
                    del self.processes[name]
                    self.start(name)
                    continue
                assert child.exit_code is None, f"{name} has ended\n{self.log(name)}"
            assert time.monotonic() < end_s, (
                f"{len(self.seen)} delivered of {len(self.sent)}; "
                f"{read_status(self.settings, SystemClock())}\n"
                + self.log("ingest")
                + self.log("dequeue")
            )
            time.sleep(0.05)

    # ---- messages --------------------------------------------------------------------------

    def send(self, count: int = LOAD, *, now_ms: int | None = None) -> None:
        """Timers that are due at once, in one instant, soon, or beyond the window; bad ones; and
        what cancels some of them, and some of the load before.

        Args:
            count: of timers.
            now_ms: what due times count from; None: from now.
        """
        self.loads += 1
        dice = random.Random(self.loads)
        now_ms = CLOCK.now_ms() if now_ms is None else now_ms
        timers = []
        for number in range(count):
            request, due_ms, code = a_request(number, now_ms, self.target)
            if number % 10 in NAMED:
                request = [*request, ("UNIQ_KEY", b"id %d, %d" % (self.loads, number))]
            key = None if dice.random() < 0.2 else b"key-%d" % dice.randrange(20)
            users, value = dice.choice(USERS), b"load %d, %d" % (self.loads, number)
            partition = dice.randrange(PARTITIONS)
            timers.append(CrashRecord(value, key, request, users, due_ms, code, partition))
        late, sent = self._late, self._write(timers)
        at_once = [sent[number] for number in range(count) if number % 10 in AT_ONCE]
        again = [sent[number] for number in range(count) if number % 10 in REPLACED]
        self._late = [sent[number] for number in range(count) if number % 10 in LATE]
        self._write([cancel_of(timer) for timer in (*late, *at_once)])
        self._write([replacing(timer, now_ms + 600) for timer in again])

    def _write(self, records: list[CrashRecord]) -> list[CrashRequest]:
        """Have them in the timer topic."""
        waiting = [
            self._producer.send(
                *(self.timers, each.value, each.key),
                headers=[*each.users, *each.request],
                partition=each.partition,
            )
            for each in records
        ]
        self._producer.flush(timeout=DEADLINE_S)
        written = []
        for record, future in zip(records, waiting, strict=True):
            place, due_ms = future.get(timeout=1), record.due_ms
            if due_ms is not None and due_ms <= 0:
                due_ms = place.timestamp - due_ms
            source = f"{place.topic}-{place.partition}@{place.offset}"
            at = (place.partition, place.offset)
            sent = CrashRequest(
                record.key, record.request, record.users, due_ms, record.code, source, *at
            )
            written.append(sent)
            if sent.asked.is_timer:
                self.sent[record.value] = sent
            if sent.asked.cancels:
                self.requests[source] = sent
        return written

    def _hear(self, records: Sequence[Any]) -> None:
        now_ms = CLOCK.now_ms()
        for r in records:
            heard = self.answers if r.topic == self.replies else self.seen
            place = (r.topic, r.partition)
            heard.append(Seen(r.value, r.key, r.headers, *place, now_ms, r.timestamp))

    # ---- verdicts --------------------------------------------------------------------------

    def judge(self) -> None:
        """What has come so far: each once, byte for byte, none early, in order, none that was to
        stay away.
        """
        seen, answers = list(self.seen), list(self.answers)
        counts = Counter(record.value for record in seen)
        assert {value: n for value, n in counts.items() if n > 1} == {}
        assert counts.keys() <= self.sent.keys()
        for answer in answers:
            require_answer(answer, self.requests)
        faults = [fault for fault in self.verdict(seen, answers) if fault[0] not in MAY_STILL_COME]
        assert faults == []
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

    def verdict(self, seen: list[Seen], answers: list[Seen]) -> list[Fault]:
        """On cancels, and on what they meet and do not meet."""
        asked = {sent.place: sent.asked for sent in (*self.sent.values(), *self.requests.values())}
        came = [RequestOutcome(self.sent[record.value].place, record.taken_ms) for record in seen]
        for answer in answers:
            said = json.loads(answer.value)
            place = self.requests[said["source"]].place
            came.append(RequestOutcome(place, answer.taken_ms, said["answer"]))
        return cancel_faults(asked.values(), came)

    def judge_all(self) -> None:
        """Everything has come that was to come, and everything on disk is whole."""
        self.wait(lambda: len(self.answers) >= len(self.requests))
        self.wait(lambda: read_status(self.settings, SystemClock()).pending == 0)
        self.wait(lambda: self.verdict(list(self.seen), list(self.answers)) == [])
        time.sleep(0.5)  # a double would come with the next chunk
        self.judge()
        assert self.verdict(self.seen, self.answers) == []
        report = check(self.settings.storage.data_dir, self.settings.wheel)
        assert report.findings == []


def process_of(point: str) -> str:
    return "ingest" if point.startswith(("ingest.", "durable.")) else "dequeue"


def require_dead_letter(record: Seen, sent: CrashRequest) -> None:
    kept = [*sent.users, *sent.request]
    assert record.headers[: len(kept)] == kept
    added = dict(record.headers[len(kept) :])
    assert (added["TIMER_ERROR_CODE"], added["TIMER_SOURCE"]) == (sent.code, sent.source.encode())


def require_answer(record: Seen, requests: Mapping[str, CrashRequest]) -> None:
    """That it is one, and has what its request had."""
    said = json.loads(record.value)
    sent = requests[said["source"]]
    assert record.key == sent.key
    assert said["id"].encode() == sent.timer_id
    assert record.headers == [
        *sent.users,
        ("TIMER_ANSWER", said["answer"].encode()),
        ("UNIQ_KEY", sent.timer_id),
        ("TIMER_SOURCE", sent.source.encode()),
    ]


def require_delivery(record: Seen, sent: CrashRequest, due_ms: int) -> None:
    assert record.at_ms >= due_ms, f"{record.value!r} is early"
    expected: Headers = [
        *sent.users,
        ("TIMER_SOURCE", sent.source.encode()),
        ("TIMER_DUE_MS", b"%d" % due_ms),
        ("UNIQ_KEY", sent.timer_id),
    ]
    assert record.headers[: len(expected)] == expected
    rolls = record.headers[len(expected) :]
    assert [name for name, _ in rolls] == ["TIMER_ROLL_TIMES"] * sent.rolled
    asked = dict(sent.request).get("REAL_QID")
    assert asked in (None, b"%d" % record.partition)


COLLECT_CANCELS = [
    "collect.segment_over",
    "collect.segment_given_up",
    "collect.segment_half_unlinked",
    "collect.segment_unlinked",
]


def hours(shard: FaultShard, folder: str) -> list[str]:
    """The hours that have a file."""
    return sorted(path.name for path in (shard.path / "data" / folder).iterdir())


def mirrored_slot(shard: FaultShard) -> int:
    state = State.open(shard.path / "data")
    mirror = state.mirror()
    state.release()
    return mirror.delivered_slot if mirror else 0


def durable_slot(shard: FaultShard) -> int:
    durable = Durable.read(shard.path / "data")
    return durable.delivered_slot if durable else 0
