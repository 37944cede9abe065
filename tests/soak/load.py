"""A steady load: timers with random delays and contents, written by an independent producer.

Some are due at once, so that the moment shows from which on deliveries flow again; some lie behind
the roll window and go round through the timer topic; some are rejected. Each fifth has an id, under
which it is called back: cancelled or replaced halfway through its delay, or cancelled too late.
"""

from __future__ import annotations

import heapq
import random
import threading
import time
from dataclasses import dataclass, field
from typing import Any

from kafka import KafkaProducer
from kafka.errors import KafkaError

_SHARES = {"at once": 30, "near": 50, "far": 17, "broken": 3}
FAR_WINDOWS = 2.5  # the longest delay
_VALUE_BYTES = (0, 20, 200, 3_000)  # behind the number
_CALLED_BACK_EVERY = 5
_CALLS = {"cancel": 50, "replace": 25, "too late": 25}
_TOO_LATE_S = 1.0  # behind the due time
_TURN_S = 0.02
_PATIENCE_S = 120.0  # for the last acknowledgements

Headers = list[tuple[str, bytes]]


@dataclass(frozen=True)
class SoakRecord:
    """What is to be written. `partition` None: the key decides."""

    key: bytes | None
    value: bytes
    headers: Headers
    partition: int | None = None


@dataclass(order=True)
class Call:
    """A cancel or reschedule that is to be written at a time of the monotonic clock."""

    at_s: float
    number: int
    kind: str = field(compare=False)
    timer: SoakRecord = field(compare=False)


class SoakLoad(threading.Thread):
    """Writes until it is stopped. Numbers what it writes: the value begins with the number.

    Attributes:
        number: of the next record.
        acknowledged: what Kafka has said it has: partition and offset, by number.
        doubtful: how many Kafka may have or not.
        requests: numbers of cancels and reschedules.
        awaited: numbers of timers that nobody calls back.
    """

    def __init__(
        self, servers: str, topic: str, partitions: int, rate: int, window_ms: int, seed: int
    ) -> None:
        """
        Args:
            rate: timers a second.
            window_ms: the roll window.
            seed: of delays and contents.
        """
        super().__init__(name="load")
        self.number = 0
        self.acknowledged: dict[int, tuple[int, int]] = {}
        self.doubtful = 0
        self.requests: set[int] = set()
        self.awaited: set[int] = set()
        self._calls: list[Call] = []
        self._servers, self._topic, self._partitions = servers, topic, partitions
        self._per_turn = max(1, round(rate * _TURN_S))
        self._window_ms = window_ms
        self._dice = random.Random(seed)
        self._stopping = threading.Event()
        self._promised: dict[int, Any] = {}

    def run(self) -> None:
        producer = self._producer()
        while not self._stopping.wait(_TURN_S):
            for _ in range(self._per_turn):
                producer = self._write(producer, self._timer(self._next()))
            while self._calls and self._calls[0].at_s <= time.monotonic():
                producer = self._write(producer, self._call(heapq.heappop(self._calls)))
            self._look()
        producer.flush(timeout=_PATIENCE_S)
        self._look()
        producer.close()
        self.doubtful += len(self._promised)

    def _next(self) -> int:
        number, self.number = self.number, self.number + 1
        return number

    def _write(self, producer: KafkaProducer, record: SoakRecord) -> KafkaProducer:
        """Returns the producer that is to write what comes next."""
        where = {"partition": record.partition, "headers": record.headers}
        try:
            sent = producer.send(self._topic, record.value, record.key, **where)
        except KafkaError:
            self.doubtful += 1
            producer.close(timeout=0)
            return self._producer()
        self._promised[number_of(record)] = sent
        return producer

    def stop(self) -> None:
        """All that was written is acknowledged then, or doubtful."""
        self._stopping.set()
        self.join()

    def _producer(self) -> KafkaProducer:
        return KafkaProducer(
            bootstrap_servers=self._servers,
            enable_idempotence=True,
            acks="all",
            linger_ms=5,
            reconnect_backoff_max_ms=500,
        )

    def _look(self) -> None:
        for number, sent in list(self._promised.items()):
            if sent.is_done:
                del self._promised[number]
                if sent.succeeded():
                    found = sent.get()
                    self.acknowledged[number] = (found.partition, found.offset)
                else:
                    self.doubtful += 1

    def _timer(self, number: int) -> SoakRecord:
        """The headers: the user's first."""
        dice = self._dice
        kind = dice.choices(list(_SHARES), list(_SHARES.values()))[0]
        delays_ms = {
            "at once": 0,
            "near": dice.randrange(self._window_ms),
            "far": dice.randrange(self._window_ms, round(FAR_WINDOWS * self._window_ms)),
        }
        headers: Headers = [("n", b"%d" % number)] * dice.randrange(3)
        if kind in delays_ms:
            headers = [*headers, ("TIMER_DELAY_MS", b"%d" % delays_ms[kind])]
        key = None if dice.random() < 0.1 else b"key %d" % dice.randrange(100)
        value = b"%d " % number + dice.randbytes(dice.choice(_VALUE_BYTES))
        if kind not in delays_ms or number % _CALLED_BACK_EVERY:
            self.awaited.add(number)
            return SoakRecord(key, value, headers)
        headers = [*headers, ("UNIQ_KEY", b"timer %d" % number)]
        timer = SoakRecord(key, value, headers, dice.randrange(self._partitions))
        self._call_back(timer, number, delays_ms[kind] / 1000)
        return timer

    def _call_back(self, timer: SoakRecord, number: int, delay_s: float) -> None:
        kind = self._dice.choices(list(_CALLS), list(_CALLS.values()))[0]
        in_s = delay_s + _TOO_LATE_S if kind == "too late" else delay_s / 2
        heapq.heappush(self._calls, Call(time.monotonic() + in_s, number, kind, timer))

    def _call(self, call: Call) -> SoakRecord:
        """What cancels or replaces a timer. Its partition is the timer's."""
        number, timer = self._next(), call.timer
        self.requests.add(number)
        name, own = b"timer %d" % call.number, ("n", b"%d" % number)
        request: Headers = [("TIMER_DEL_UNIQKEY", name)]
        if call.kind == "replace":
            self.awaited.add(number)
            delay = ("TIMER_DELAY_MS", b"%d" % self._dice.randrange(self._window_ms))
            request = [delay, ("UNIQ_KEY", name), ("TIMER_RESCHEDULE", b"true")]
        return SoakRecord(timer.key, b"%d " % number, [own, *request], timer.partition)


def number_of(record: Any) -> int:
    """The number of a record of a load, as its producer counts."""
    return int(record.value.split(b" ", 1)[0])
