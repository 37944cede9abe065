"""Test doubles that ship with the package: a clock that a test sets, publishers that keep what is
committed in memory or in a file, and a shard without Kafka and Spark, with batches of timers.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from duewheel.checkpoints.fs import HOST_FS, FileSystem
from duewheel.checkpoints.progress import Progress
from duewheel.checkpoints.recovery_decision import RecoveryRecord
from duewheel.checkpoints.role import Role
from duewheel.clock import Clock
from duewheel.errors import PublishDoubt
from duewheel.schemas import header_names as names
from duewheel.schemas.batches import (
    ACCEPTED,
    ANY_OFFSET,
    ANY_TIME,
    NO_LEVEL,
    NO_PARTITION,
    NO_SLOT,
    Deliveries,
    TimerBatch,
    TopicPartition,
)
from duewheel.schemas.columns import binary
from duewheel.schemas.hashing import id_hashes, key_hashes
from duewheel.schemas.header_names import NAME_OF, Request
from duewheel.schemas.name_patterns import NONE
from duewheel.schemas.wire.record_codec import framed_bytes, key_values
from duewheel.schemas.wire.varint import read_varint
from duewheel.wheel.append.cancel_lookup import CancelLimits
from duewheel.wheel.append.engine import Appended, Engine
from duewheel.wheel.dequeue.lifecycle import Dequeue
from duewheel.wheel.dequeue_config import DequeueConfig
from duewheel.wheel.encoded import Aside
from duewheel.wheel.publisher_protocol import Prepared, Publisher, Seen
from duewheel.wheel.recovery.rebuild import OffsetsAt, apply_recovery
from duewheel.wheel.recovery.startup import first_progress
from duewheel.wheel.slots import WheelConfig
from duewheel.wheel.storage.data_directory import DataDirectory


def suite_parameters(**given: Any) -> dict[str, Any]:
    """Parameters of the suite that allow long delays and nearly all targets; `given` overrides."""
    return {"max_delay_ms": 10**12, "forbidden_targets": [], "timer_topics": NONE, **given}


class ManualClock:
    """A clock that only the test moves. Not thread-safe.

    Time passes (`sleep`, `set` to a later time) for the host and for the brokers; a step
    (`step`, `set` to an earlier time) is the host's own error.
    """

    def __init__(self, now_ms: int = 1_800_000_000_000) -> None:
        self._started_ms = now_ms
        self._true_ms = now_ms
        self._error_ms = 0

    def now_ms(self) -> int:
        return self._true_ms + self._error_ms

    def boottime_ms(self) -> int:
        return self._true_ms - self._started_ms

    @property
    def true_ms(self) -> int:
        """Returns the time without steps: that of the brokers."""
        return self._true_ms

    def sleep(self, seconds: float) -> None:
        self._true_ms += round(seconds * 1000)

    def set(self, now_ms: int) -> None:
        """Lets time pass until `now_ms`; steps back if that is earlier."""
        passed_ms = now_ms - self._true_ms - self._error_ms
        if passed_ms < 0:
            self.step(passed_ms)
        else:
            self._true_ms += passed_ms

    def step(self, ms: int) -> None:
        """Sets the host's clock forward or back by `ms`, without time passing."""
        self._error_ms += ms


class RecordingPublisher:
    """Keeps committed transactions in memory, as a state topic and real topics would. Also the
    ProgressReader of its transactions.

    Attributes:
        aside: rows of the last transaction; none, for its targets always take writes.
        clock: the host's; the brokers' is the same without steps, and `broker_error_ms` off.
        committed: every committed transaction: its deliveries and its progress.
        fate: called before each transaction: "commit", "lose" (PublishDoubt, not committed) or
            "doubt" (PublishDoubt, committed).
        stamps: whether transactions return the brokers' time.
        ends: of timer partitions, by default 0: no copy is in flight.
        silent_ms: how old the newest progress is.
    """

    def __init__(self, clock: ManualClock, fate: Callable[[], str] = lambda: "commit") -> None:
        self.clock = clock
        self.broker_error_ms = 0
        self.committed: list[tuple[Deliveries | None, Progress]] = []
        self._written_ms = 0
        self.silent_ms = 0
        self.aside, self.letters_wait = Aside(), False
        self.fate = fate
        self.stamps = True
        self.ends: dict[TopicPartition, int] = {}

    def peek(self) -> Progress | None:
        return self.committed[-1][1] if self.committed else None

    def newest(self) -> Seen | None:
        progress = self.peek()
        return None if progress is None else Seen(progress, self._written_ms)

    def require_coordinator(self) -> None:
        pass

    def age_ms(self) -> int:
        return self.silent_ms

    def start(self) -> Progress | None:
        return self.peek()

    def prepare(self, deliveries: Deliveries) -> Prepared:
        return Prepared(deliveries)

    def log_ends(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        return {partition: self.ends.get(partition, 0) for partition in partitions}

    def publish(self, prepared: Prepared | None, progress: Progress) -> int | None:
        fate = self.fate()
        if fate != "lose":
            deliveries = None if prepared is None else prepared.deliveries
            # Encoded and decoded: a read must return the written value.
            self.committed.append((deliveries, Progress.decode(progress.encode())))
            self._written_ms = self.clock.true_ms
        if fate != "commit":
            raise PublishDoubt(fate)
        return self.clock.true_ms + self.broker_error_ms if self.stamps else None

    def close(self) -> None:
        pass

    def sources(self) -> list[bytes]:
        """Sources "topic-partition@offset" of all deliveries, in publishing order."""
        return [
            source
            for deliveries, _ in self.committed
            if deliveries is not None
            for source, answer in zip(_texts(deliveries.source), deliveries.answer, strict=True)
            if not answer
        ]


def _texts(column: pa.LargeBinaryArray) -> list[bytes]:
    return [value for value in column.to_pylist() if value is not None]


@dataclass(frozen=True, slots=True)
class Delivered:
    """One message in a JournalPublisher's file.

    Attributes:
        transaction: number of the one in which it left.
        source: of the timer, or of the cancel or reschedule that is answered.
        due_ms, published_ms: when it was due, and when it left.
        dead_letter: whether it is a dead letter.
        answer: the outcome in a reply, else "".
    """

    transaction: int
    source: str
    due_ms: int
    published_ms: int
    dead_letter: bool
    answer: str


class JournalPublisher:
    """Keeps committed transactions in a file, a line each: they outlive the process.

    Its brokers have the host's clock.

    A last line without its end is a transaction that a kill cut short: the next one is written over
    it.

    Attributes:
        aside: rows of the last transaction; none, for its targets always take writes.
        ends: of timer partitions, by default 0: no copy is in flight.
    """

    def __init__(self, path: Path, clock: Clock, fs: FileSystem = HOST_FS) -> None:
        self.aside, self.letters_wait = Aside(), False
        self.ends: dict[TopicPartition, int] = {}
        self._path = path
        self._clock = clock
        self._fs = fs
        self._fd = fs.open_file(path)
        self._bytes = 0

    def peek(self) -> Progress | None:
        return self.start()

    def age_ms(self) -> int:
        return 0

    def start(self) -> Progress | None:
        self._bytes = self._path.read_bytes().rfind(b"\n") + 1
        lines = self._path.read_bytes()[: self._bytes].splitlines()
        return (
            Progress.decode(json.loads(lines[-1])["progress"].encode("latin-1")) if lines else None
        )

    def prepare(self, deliveries: Deliveries) -> Prepared:
        return Prepared(deliveries)

    def log_ends(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        return {partition: self.ends.get(partition, 0) for partition in partitions}

    def publish(self, prepared: Prepared | None, progress: Progress) -> int:
        rows: list[tuple[str, int, int, bool, str]] = []
        chases: list[TimerRow] = []
        if prepared is not None:
            chases = chases_in(prepared.deliveries)
            is_chase = prepared.deliveries.answer & prepared.deliveries.is_copy
            deliveries = prepared.deliveries.take(np.flatnonzero(~is_chase))
            now_ms = self._clock.now_ms()
            rows = [
                (source.decode(), due_ms, now_ms, dead_letter, answer)
                for source, due_ms, dead_letter, answer in zip(
                    _texts(deliveries.source),
                    deliveries.due_ms.tolist(),
                    deliveries.dead_letter.tolist(),
                    _words(deliveries),
                    strict=True,
                )
            ]
        fields = {
            "rows": rows,
            "chases": [asdict(each) | {"timer_id": _text(each.timer_id)} for each in chases],
            "progress": progress.encode().decode("latin-1"),
        }
        line = json.dumps(fields).encode() + b"\n"
        self._fs.write_at(self._fd, line, self._bytes)
        self._bytes += len(line)
        return self._clock.now_ms()

    def close(self) -> None:
        self._fs.close(self._fd)

    def chases(self) -> list[TimerRow]:
        """All committed chases, without their offsets in the timer topic."""
        lines = self._path.read_bytes()[: self._bytes].splitlines()
        rows = [row for line in lines for row in json.loads(line)["chases"]]
        return [TimerRow(**row | {"timer_id": row["timer_id"].encode()}) for row in rows]

    def delivered(self) -> list[Delivered]:
        """All committed messages but chases, in publishing order."""
        lines = self._path.read_bytes()[: self._bytes].splitlines()
        return [
            Delivered(number, *row)
            for number, line in enumerate(lines)
            for row in json.loads(line)["rows"]
        ]


def _text(timer_id: bytes | None) -> str:
    return (timer_id or b"").decode()


def _words(deliveries: Deliveries) -> list[str]:
    """Returns the outcome in each row that is a reply, else ""."""
    words = [""] * len(deliveries)
    for row in np.flatnonzero(deliveries.answer & ~deliveries.is_copy).tolist():
        words[row] = answer_value(deliveries.key_value[row].as_py())[names.ANSWER_NAME]
    return words


def answer_value(key_value: bytes) -> dict[str, str]:
    """Extracts the value of a reply, a JSON object, from its framed key and value."""
    size, at = read_varint(key_value, 0)
    size, at = read_varint(key_value, at + max(size, 0))
    value: dict[str, str] = json.loads(key_value[at : at + size])
    return value


def headers_of(encoded: bytes, count: int) -> list[tuple[str, bytes]]:
    """Names and values of so many headers as they stand in a record; none is null."""
    found, at = [], 0
    for _ in range(count):
        parts = []
        for _ in range(2):
            size, at = read_varint(encoded, at)
            parts.append(encoded[at : at + size])
            at += size
        found.append((parts[0].decode(), parts[1]))
    return found


def chases_in(deliveries: Deliveries) -> list[TimerRow]:
    """The chases among the rows of a transaction, without their offsets in the timer topic."""
    found = []
    for row in np.flatnonzero(deliveries.answer & deliveries.is_copy).tolist():
        encoded, count = deliveries.headers[row].as_py(), int(deliveries.header_count[row])
        headers = dict(headers_of(encoded, count))
        found.append(
            TimerRow(
                int(deliveries.target_partition[row]),
                offset=-1,
                due_ms=0,
                timer_id=headers[NAME_OF[Request.CANCEL]],
                request="cancel",
                origin=int(headers[names.ORIGIN]),
                chase_slot=int(headers[names.CHASE_SLOT]),
                chase_flags=int(headers[names.CHASE_FLAGS]),
            )
        )
    return found


@dataclass(frozen=True, slots=True)
class TimerRow:
    """One row for `timer_batch`. Its position in Kafka determines its message.

    Attributes:
        partition, offset: its position.
        due_ms: its due time.
        rejected: whether it is a dead letter.
        level: requested delay level, 0 for none.
        timer_id: its id; None: derived from its position, too.
        request: "cancel" or "reschedule" with this id, or "".
        origin: offset of its first copy, if it is another one.
        timestamp_ms: of its record; its due time if none is given.
        chase_slot, chase_flags: of a cancel that dequeue has written again, with its `origin`.
    """

    partition: int
    offset: int
    due_ms: int
    rejected: bool = False
    level: int = NO_LEVEL
    timer_id: bytes | None = None
    request: str = ""
    origin: int | None = None
    timestamp_ms: int | None = None
    chase_slot: int = NO_SLOT
    chase_flags: int = 0

    @property
    def source(self) -> str:
        """The timer's name in deliveries."""
        return f"{TIMER_TOPIC}-{self.partition}@{self.offset}"


TIMER_TOPIC = "timers"


def timer_batch(timers: Sequence[TimerRow]) -> TimerBatch:
    """A batch of the given rows, with messages of all kinds: keys and values null, empty and long,
    no headers and several, with and without id, with and without a requested partition.
    """
    numbers = sorted({timer.partition for timer in timers})
    offset = np.array([timer.offset for timer in timers], np.int64)
    rejected = np.array([timer.rejected for timer in timers], np.bool_)
    keys = (None, b"", b"key")
    key = binary(keys[o % 3] for o in offset.tolist())
    value = binary(
        None if timer.offset % 11 == 7 else timer.source.encode() * (timer.offset % 13)
        for timer in timers
    )
    given = [b"" if t.offset % 2 else b"id of " + t.source.encode() for t in timers]
    ids = [own if t.timer_id is None else t.timer_id for t, own in zip(timers, given, strict=True)]
    timer_id = binary(ids)
    origin = [t.offset if t.origin is None else t.origin for t in timers]
    header = framed_bytes(b"h") + framed_bytes(b"\xff\0")
    count = (offset % 3).astype(np.int32)
    return TimerBatch(
        partitions=[(TIMER_TOPIC, number) for number in numbers],
        partition=np.searchsorted(numbers, [t.partition for t in timers]).astype(np.int32),
        offset=offset,
        origin_offset=np.array(origin, np.int64),
        due_ms=np.array([timer.due_ms for timer in timers], np.int64),
        not_before_ms=np.full(len(timers), ANY_TIME, np.int64),
        codes=["bad_header"],
        code=np.where(rejected, 0, ACCEPTED).astype(np.int32),
        timer=np.array([t.request != "cancel" for t in timers], np.bool_),
        cancels=np.array([t.request != "" for t in timers], np.bool_),
        named_offset=np.full(len(timers), ANY_OFFSET),
        targets=["orders", "bills", "dead"],
        target=np.where(rejected, 2, offset % 2).astype(np.int32),
        target_partition=np.where(offset % 5, NO_PARTITION, offset % 4).astype(np.int32),
        key_hash=key_hashes(key),
        id_hash=id_hashes(
            binary(own or t.source.encode() for t, own in zip(timers, ids, strict=True))
        ),
        timer_id=timer_id,
        key_value=key_values(key, value),
        headers=binary(header * times for times in count.tolist()),
        header_count=count,
        roll_times=np.zeros(len(timers), np.int32),
        retries=np.zeros(len(timers), np.int32),
        level=np.array([timer.level for timer in timers], np.int32),
        timestamp_ms=np.array(
            [t.due_ms if t.timestamp_ms is None else t.timestamp_ms for t in timers], np.int64
        ),
        chase_slot=np.array([t.chase_slot for t in timers], np.int64),
        chase_flags=np.array([t.chase_flags for t in timers], np.int32),
        forged=np.zeros(len(timers), np.bool_),
    )


class LocalShard:
    """Both processes of one shard in this process, without Kafka and Spark. Not thread-safe.

    Attributes:
        path: the data directory.
        config: of the loop, from its next start on.
        ingest: the engine, None while ingest does not run.
        dequeue: the loop, None while it does not run.
        offsets_at: where a time begins in Kafka; see `apply_recovery`.
        cancel_limits: of the engine, from its next start on.
    """

    def __init__(
        self,
        path: Path,
        wheel: WheelConfig,
        publisher: Publisher,
        clock: Clock,
        config: DequeueConfig,
        stopping: Callable[[], bool] = lambda: False,
        fs: FileSystem = HOST_FS,
    ) -> None:
        self.path = path
        self.ingest: Engine | None = None
        self.dequeue: Dequeue | None = None
        self.offsets_at: OffsetsAt = lambda _: {}
        self.cancel_limits = CancelLimits()
        self.wheel = wheel
        self._publisher = publisher
        self._clock = clock
        self.config = config
        self._stopping = stopping
        self._fs = fs
        self._directories: dict[Role, DataDirectory] = {}

    def directory(self, role: Role) -> DataDirectory:
        """The directory that a running process has opened."""
        return self._directories[role]

    def start_dequeue(
        self, starts: Mapping[TopicPartition, int] | None = None, *, take_over: bool = False
    ) -> Dequeue:
        """Start the loop; `starts` are the first offsets of a shard that never had any progress."""
        directory = self._directories[Role.DEQUEUE] = DataDirectory.start(
            self.path, self.wheel, Role.DEQUEUE, fs=self._fs
        )
        self.dequeue = Dequeue(
            directory,
            self._publisher,
            self._clock,
            self.config,
            self._stopping,
        )
        first = None
        if starts is not None:
            first = first_progress(directory, self.config, starts, self._clock.now_ms())
        self.dequeue.start(first, take_over=take_over)
        return self.dequeue

    def start_ingest(self, topic_ids: Mapping[str, str] | None = None) -> Engine:
        """Starts the engine, after applying the decision of dequeue's last start."""
        directory = self._directories[Role.INGEST] = DataDirectory.start(
            self.path, self.wheel, Role.INGEST, fs=self._fs
        )
        record = RecoveryRecord.read(self.path)
        assert record is not None, "dequeue must have started here once"
        apply_recovery(directory, record, self.offsets_at)
        self.ingest = Engine(directory, self._clock, topic_ids, self.cancel_limits)
        return self.ingest

    def append(self, timers: Sequence[TimerRow], ends: Mapping[TopicPartition, int]) -> Appended:
        """Appends the rows of a batch that the engine does not have yet."""
        assert self.ingest is not None
        known = self.ingest.marks
        fresh = [t for t in timers if t.offset >= known.get((TIMER_TOPIC, t.partition), 0)]
        marks = {partition: max(end, known.get(partition, 0)) for partition, end in ends.items()}
        return self.ingest.append(timer_batch(fresh), marks)

    def kill(self, role: Role) -> None:
        """Kills a process; has no effect if it does not run."""
        self._forget(role)
        directory = self._directories.pop(role, None)
        if directory is not None:
            directory.close()

    def stop(self, role: Role) -> None:
        """Stops a process cleanly."""
        self._forget(role)
        self._directories.pop(role).stop()

    def _forget(self, role: Role) -> None:
        if role is Role.INGEST:
            self.ingest = None
        elif self.dequeue is not None:
            self.dequeue.close()
            self.dequeue = None
