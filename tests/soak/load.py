"""A steady load: timers with random delays and contents, written by a producer that is on its own.

Some are due at once, so that the moment shows from which on deliveries flow again; some lie behind
the roll window and go round through the timer topic; some are rejected.
"""

from __future__ import annotations

import random
import threading
from typing import Any

from kafka import KafkaProducer
from kafka.errors import KafkaError

_SHARES = {"at once": 30, "near": 50, "far": 17, "broken": 3}
FAR_WINDOWS = 2.5  # the longest delay
_VALUE_BYTES = (0, 20, 200, 3_000)  # behind the number
_TURN_S = 0.02
_PATIENCE_S = 120.0  # for the last acknowledgements

Headers = list[tuple[str, bytes]]


class Load(threading.Thread):
    """Writes until it is stopped. Numbers its timers: the value begins with the number.

    Attributes:
        number: of the next timer.
        acknowledged: the timers that Kafka has said it has: partition and offset, by number.
        doubtful: how many Kafka may have or not.
    """

    def __init__(self, servers: str, topic: str, rate: int, window_ms: int, seed: int) -> None:
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
        self._servers, self._topic = servers, topic
        self._per_turn = max(1, round(rate * _TURN_S))
        self._window_ms = window_ms
        self._dice = random.Random(seed)
        self._stopping = threading.Event()
        self._promised: dict[int, Any] = {}

    def run(self) -> None:
        producer = self._producer()
        while not self._stopping.wait(_TURN_S):
            for _ in range(self._per_turn):
                number, self.number = self.number, self.number + 1
                key, value, headers = self._timer(number)
                try:
                    sent = producer.send(self._topic, value, key, headers=headers)
                except KafkaError:
                    self.doubtful += 1
                    producer.close(timeout=0)
                    producer = self._producer()
                else:
                    self._promised[number] = sent
            self._look()
        producer.flush(timeout=_PATIENCE_S)
        self._look()
        producer.close()
        self.doubtful += len(self._promised)

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

    def _timer(self, number: int) -> tuple[bytes | None, bytes, Headers]:
        """Key, value, and headers: the user's first."""
        dice = self._dice
        kind = dice.choices(list(_SHARES), list(_SHARES.values()))[0]
        delays_ms = {
            "at once": 0,
            "near": dice.randrange(self._window_ms),
            "far": dice.randrange(self._window_ms, round(FAR_WINDOWS * self._window_ms)),
        }
        own: Headers = [("n", b"%d" % number)] * dice.randrange(3)
        request: Headers = []
        if kind in delays_ms:
            request = [("TIMER_DELAY_MS", b"%d" % delays_ms[kind])]
        key = None if dice.random() < 0.1 else b"key %d" % dice.randrange(100)
        value = b"%d " % number + dice.randbytes(dice.choice(_VALUE_BYTES))
        return key, value, [*own, *request]
