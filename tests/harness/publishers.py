"""Publishers that keep what is committed in memory, or in a file that outlives the process."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
from tests.harness.timer_rows import TimerRow, answer_value, chases_in

from duewheel.checkpoints.fs import HOST_FS, FileSystem
from duewheel.checkpoints.progress import Progress
from duewheel.clock import Clock
from duewheel.errors import PublishDoubt
from duewheel.schemas import header_names as names
from duewheel.schemas.batches import Deliveries, TopicPartition
from duewheel.testing.clock import ManualClock
from duewheel.wheel.encoded import Aside
from duewheel.wheel.policies.policy import returning
from duewheel.wheel.publisher_protocol import Prepared, PublishAttempt, Seen


class PlainPublisher:
    """The steps before a transaction, without encoding.

    Attributes:
        ends: of timer partitions, by default 0: no copy is in flight.
    """

    ends: dict[TopicPartition, int]

    def prepare(self, deliveries: Deliveries) -> Prepared:
        return Prepared(deliveries)

    def renew(self, prepared: Prepared, progress: Progress) -> Prepared:
        return prepared

    def compose(self, prepared: Prepared | None, progress: Progress) -> PublishAttempt:
        return PublishAttempt(progress, prepared)

    def log_ends(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        return {partition: self.ends.get(partition, 0) for partition in partitions}


class RecordingPublisher(PlainPublisher):
    """Keeps committed transactions in memory, as a state topic and real topics would. Also the
    ProgressReader of its transactions.

    Attributes:
        clock: the host's; the brokers' is the same without steps, and `broker_error_ms` off.
        committed: every committed transaction: its deliveries and its progress.
        fate: called before each transaction: "commit", "lose" (PublishDoubt, not committed) or
            "doubt" (PublishDoubt, committed).
        stamps: whether transactions return the brokers' time.
        silent_ms: how old the newest progress is.
    """

    def __init__(self, clock: ManualClock, fate: Callable[[], str] = lambda: "commit") -> None:
        self.clock = clock
        self.broker_error_ms = 0
        self.committed: list[tuple[Deliveries | None, Progress]] = []
        self._written_ms = 0
        self.silent_ms = 0
        self.letters_wait = False
        self.fate = fate
        self.stamps = True
        self.ends = {}

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

    def compose(self, prepared: Prepared | None, progress: Progress) -> PublishAttempt:
        attempt = super().compose(prepared, progress)
        if prepared is None:
            return attempt
        postponed = np.flatnonzero(returning(prepared.deliveries))
        return replace(attempt, aside=Aside(postponed=postponed))

    def publish(self, attempt: PublishAttempt) -> int | None:
        fate = self.fate()
        if fate != "lose":
            deliveries = None if attempt.prepared is None else attempt.prepared.deliveries
            # Encoded and decoded: a read must return the written value.
            self.committed.append((deliveries, Progress.decode(attempt.progress.encode())))
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


class JournalPublisher(PlainPublisher):
    """Keeps committed transactions in a file, a line each: they outlive the process.

    Its brokers have the host's clock.

    A last line without its end is a transaction that a kill cut short: the next one is written over
    it.
    """

    def __init__(self, path: Path, clock: Clock, fs: FileSystem = HOST_FS) -> None:
        self.letters_wait = False
        self.ends = {}
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

    def publish(self, attempt: PublishAttempt) -> int:
        prepared, rows = attempt.prepared, list[tuple[str, int, int, bool, str]]()
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
            "progress": attempt.progress.encode().decode("latin-1"),
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
