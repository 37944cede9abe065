"""A steady load: timers with random delays and contents, written by an independent producer.

    at once   due when written: the first to arrive shows that deliveries flow again
    spread    random delays within the roll window, in each form of a due time
    spike     one due instant for all timers of a window
    level     the levels of RocketMQ
    far       due beyond the roll window, so they roll
    broken    without a due time: they must become dead letters

Each fifth timer has an id, and is cancelled or replaced halfway through its delay, or cancelled too
late. Some have expired when they are written: they must become dead letters, too. Others expire
soon after their due time, and so if a kill makes them late.
"""

from __future__ import annotations

import contextlib
import heapq
import random
import time
from dataclasses import dataclass, field
from typing import Any

from kafka import KafkaProducer
from kafka.errors import KafkaError, KafkaTimeoutError

from duewheel.clock import Clock
from duewheel.deadline import Deadline
from duewheel.kafka.connect.clients import KafkaClients
from duewheel.prove.cancel_judge import Source
from duewheel.prove.records import LEVELS_MS, NUMBER
from duewheel.threads import Worker

_SHARES = {"at once": 25, "spread": 38, "spike": 8, "level": 8, "far": 18, "broken": 3}
FAR_WINDOWS = 2.5  # the longest delay
_VALUE_BYTES = (0, 20, 200, 3_000)  # after the number
_WITH_ID_EVERY = 5
_CHANGES = {"cancel": 50, "replace": 25, "too late": 25}
_TOO_LATE_MS = 1_000  # after the due time
_EXPIRED, _EXPIRES_SOON = 0.02, 0.06  # shares of the timers
_SOON_MS = 500  # after the due time
_SOONEST_MS = 1_000  # an absolute due time must not pass before its record is written
_TURN_S = 0.02
_FLUSH_S = 120.0  # for the last acknowledgements
_CLOSE_S = 5.0
_CONNECT_S = 120.0
_BURST_S = 1.0  # after a pause of the producer, at most this much of the load is made up for

DueHeader = tuple[str, bytes]


@dataclass(frozen=True)
class LoadRecord:
    """A record to be written."""

    number: int
    key: bytes | None
    value: bytes
    headers: list[tuple[str, bytes]]
    partition: int | None = None  # None: the key decides


@dataclass(order=True)
class _Change:
    """A cancel or reschedule that is still to be written."""

    at_s: float  # monotonic
    number: int
    kind: str = field(compare=False)
    timer: LoadRecord = field(compare=False)


class ProofLoad(Worker):
    """Writes from `start` to `stop`. Each value begins with the number of its record.

    Attributes:
        number: the next record's.
        acknowledged: by number; Kafka has lost those that are missing in the topic later.
        doubtful: how many records Kafka may have or not.
        requests: numbers of cancels and reschedules.
        awaited: numbers of timers that are never cancelled.
    """

    def __init__(
        self,
        client: KafkaClients,
        topic: str,
        partitions: int,
        rate: float,
        window_ms: int,
        seed: int,
        clock: Clock,
    ) -> None:
        """`rate` is in timers a second."""
        super().__init__("load", self._write_all)
        self.number = 0
        self.acknowledged: dict[int, Source] = {}
        self.doubtful = 0
        self.requests: set[int] = set()
        self.awaited: set[int] = set()
        self._client, self._topic, self._partitions = client, topic, partitions
        self._every_s, self._window_ms, self._clock = 1 / rate, window_ms, clock
        self._random = random.Random(seed)
        self._changes: list[_Change] = []
        self._pending: dict[int, Any] = {}  # futures
        self._flush_s = _FLUSH_S

    def stop(self, flush_s: float = _FLUSH_S) -> None:
        """Waits for acknowledgements, so long at most; other records are doubtful then."""
        self._flush_s = flush_s
        self.end()

    def _write_all(self) -> None:
        producer = self._producer()
        next_s = time.monotonic()
        while not self.ending.wait(_TURN_S):
            now_s = time.monotonic()
            next_s = max(next_s, now_s - _BURST_S)
            while next_s <= now_s:
                next_s += self._every_s
                producer = self._write(producer, self._timer(self._next()))
            while self._changes and self._changes[0].at_s <= now_s:
                producer = self._write(producer, self._request(heapq.heappop(self._changes)))
            self._collect()
        with contextlib.suppress(KafkaTimeoutError):
            producer.flush(timeout=self._flush_s)
        self._collect()
        producer.close(timeout=_CLOSE_S)
        self.doubtful += len(self._pending)

    def _next(self) -> int:
        number, self.number = self.number, self.number + 1
        return number

    def _write(self, producer: KafkaProducer, record: LoadRecord) -> KafkaProducer:
        """Returns the producer for the next record."""
        where = {"partition": record.partition, "headers": record.headers}
        try:
            sent = producer.send(self._topic, record.value, record.key, **where)
        except KafkaError:
            self.doubtful += 1
            producer.close(timeout=0)
            return self._producer()
        self._pending[record.number] = sent
        return producer

    def _producer(self) -> KafkaProducer:
        return self._client.open(
            KafkaProducer, Deadline(_CONNECT_S), enable_idempotence=True, acks="all", linger_ms=5
        )

    def _collect(self) -> None:
        """Notes the acknowledgements that have come."""
        for number, sent in list(self._pending.items()):
            if sent.is_done:
                del self._pending[number]
                if sent.succeeded():
                    stored = sent.get()
                    self.acknowledged[number] = (stored.partition, stored.offset)
                else:
                    self.doubtful += 1

    # ---- timers ------------------------------------------------------------------------------

    def _timer(self, number: int) -> LoadRecord:
        chance = self._random
        kind = chance.choices(list(_SHARES), list(_SHARES.values()))[0]
        headers = [(NUMBER, b"%d" % number)] * chance.randrange(3)
        key = None if chance.random() < 0.1 else b"key %d" % chance.randrange(100)
        value = b"%d " % number + chance.randbytes(chance.choice(_VALUE_BYTES))
        if kind == "broken":
            self.awaited.add(number)
            return LoadRecord(number, key, value, headers)
        due, delay_ms = self._due(kind)
        headers = [*headers, due, *self._expiry(delay_ms)]
        if number % _WITH_ID_EVERY:
            self.awaited.add(number)
            return LoadRecord(number, key, value, headers)
        headers = [*headers, ("UNIQ_KEY", _timer_id(number))]
        timer = LoadRecord(number, key, value, headers, chance.randrange(self._partitions))
        self._plan_change(timer, delay_ms)
        return timer

    def _due(self, kind: str) -> tuple[DueHeader, int]:
        """A header with a due time, and about how long that is from now."""
        chance, window_ms = self._random, self._window_ms
        longest_ms = round(FAR_WINDOWS * window_ms)
        levels = [level for level, length_ms in LEVELS_MS.items() if length_ms <= longest_ms]
        if kind == "at once":
            return ("TIMER_DELAY_MS", b"0"), 0
        if kind == "level" and levels:
            level = chance.choice(levels)
            return ("DELAY", b"%d" % level), LEVELS_MS[level]
        if kind == "spike":
            now_ms = self._clock.now_ms()
            due_ms = -(-(now_ms + _SOONEST_MS) // window_ms) * window_ms
            return ("TIMER_DELIVER_MS", b"%d" % due_ms), due_ms - now_ms
        if kind == "far":
            delay_ms = chance.randrange(window_ms, longest_ms)
            return ("TIMER_DELAY_MS", b"%d" % delay_ms), delay_ms
        return self._spread(chance.randrange(3))

    def _expiry(self, delay_ms: int) -> list[DueHeader]:
        drawn = self._random.random()
        if drawn < _EXPIRED:
            return [("TIMER_EXPIRES_MS", b"1")]
        if drawn < _EXPIRED + _EXPIRES_SOON:
            last_ms = self._clock.now_ms() + delay_ms + _SOON_MS
            return [("TIMER_EXPIRES_MS", b"%d" % last_ms)]
        return []

    def _spread(self, form: int) -> tuple[DueHeader, int]:
        delay_ms = self._random.randrange(self._window_ms)
        if form == 0:
            seconds = delay_ms // 1_000
            return ("TIMER_DELAY_SEC", b"%d" % seconds), seconds * 1_000
        if form == 1:
            delay_ms = max(_SOONEST_MS, delay_ms)
            due_ms = self._clock.now_ms() + delay_ms
            return ("TIMER_DELIVER_MS", b"%d" % due_ms), delay_ms
        return ("TIMER_DELAY_MS", b"%d" % delay_ms), delay_ms

    # ---- cancels and reschedules -------------------------------------------------------------

    def _plan_change(self, timer: LoadRecord, delay_ms: int) -> None:
        kind = self._random.choices(list(_CHANGES), list(_CHANGES.values()))[0]
        in_ms = delay_ms + _TOO_LATE_MS if kind == "too late" else delay_ms / 2
        at_s = time.monotonic() + in_ms / 1_000
        heapq.heappush(self._changes, _Change(at_s, timer.number, kind, timer))

    def _request(self, change: _Change) -> LoadRecord:
        """The record that cancels or replaces a timer, for the timer's partition."""
        number, timer = self._next(), change.timer
        self.requests.add(number)
        timer_id, own = _timer_id(timer.number), (NUMBER, b"%d" % number)
        request: list[tuple[str, bytes]] = [("TIMER_DEL_UNIQKEY", timer_id)]
        if change.kind == "replace":
            self.awaited.add(number)
            delay = ("TIMER_DELAY_MS", b"%d" % self._random.randrange(self._window_ms))
            request = [delay, ("UNIQ_KEY", timer_id), ("TIMER_RESCHEDULE", b"true")]
        value = b"%d " % number
        return LoadRecord(number, timer.key, value, [own, *request], timer.partition)


def _timer_id(number: int) -> bytes:
    return b"timer %d" % number
