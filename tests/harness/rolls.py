"""Timers of several roll windows, forged copies, and what comes of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from kafka import KafkaAdminClient, KafkaProducer
from tests.harness.random_timers import Headers
from tests.harness.reader import everything_in
from tests.harness.whole_shard import Arrivals

COUNT = 300
WINDOW_MS = 4_000  # that the shard must have
ROLLED_MIN = 400  # all of them together


class Rolls:
    """What is sent to one shard.

    Attributes:
        count: how many messages arrive, dead letters among them.
    """

    def __init__(self, servers: str, timers: str, target: str) -> None:
        """
        Args:
            servers: of Kafka.
            timers: the timer topic.
            target: where the timers go.
        """
        self._servers, self._timers, self._target = servers, timers, target
        self._doomed_topic = f"{target}.doomed"
        self._producer = KafkaProducer(bootstrap_servers=servers, linger_ms=5)
        self._far: dict[bytes, tuple[int, Headers, Any]] = {}
        self._forged: dict[bytes, tuple[str, bytes]] = {}
        self._doomed: dict[bytes, Headers] = {}

    @property
    def count(self) -> int:
        return len(self._far) + len(self._forged) + len(self._doomed)

    def send(self, wait: Callable[[Callable[[], bool]], None], partitions: int) -> None:
        """Everything. Once some have been rolled, their target is deleted.

        Args:
            wait: until something is so; the shard runs meanwhile.
            partitions: of the timer topic.
        """
        for number in range(COUNT):
            delay_ms = WINDOW_MS + 40 * number
            own: Headers = [("n", b"%d" % number)]
            request = self._request(delay_ms, self._target, b"id")
            value = b"far %d" % number
            sent = self._producer.send(self._timers, value, b"k", headers=[*own, *request])
            self._far[value] = (delay_ms, own, sent)
        self._producer.flush(timeout=60)
        self._forge_copies()
        self._send_to_what_goes()

        def rolled() -> set[bytes]:
            records = everything_in(self._servers, self._timers, partitions)
            return {r.value for r in records if "TIMER_ROLL_TIMES" in dict(r.headers)}

        wait(lambda: rolled() >= self._doomed.keys())
        admin = KafkaAdminClient(bootstrap_servers=self._servers)
        admin.delete_topics([self._doomed_topic])
        admin.close()
        self._producer.close()

    def _request(self, delay_ms: int, topic: str, timer_id: bytes) -> Headers:
        return [
            ("TIMER_DELAY_MS", b"%d" % delay_ms),
            ("REAL_TOPIC", topic.encode()),
            ("UNIQ_KEY", timer_id),
        ]

    def _forge_copies(self) -> None:
        """Records with the headers of copies, but not from duewheel: one is due too late after all,
        the other keeps its own place.
        """
        origin: Headers = [("TIMER_ORIGIN", b"0"), ("TIMER_COPY_MAC", bytes(16))]
        to: Headers = [("REAL_TOPIC", self._target.encode())]
        century: Headers = [("TIMER_DELIVER_MS", b"4950000000000"), *to, *origin]
        self._producer.send(self._timers, b"century", b"k", headers=century).get(timeout=30)
        soon: Headers = [("TIMER_DELAY_MS", b"100"), *to, *origin]
        at = self._producer.send(self._timers, b"soon", b"k", headers=soon).get(timeout=30)
        self._forged = {
            b"century": ("TIMER_ERROR_CODE", b"delay_too_long"),
            b"soon": ("TIMER_SOURCE", f"{at.topic}-{at.partition}@{at.offset}".encode()),
        }

    def _send_to_what_goes(self) -> None:
        """Timers of several windows, and what their dead letters begin with."""
        topic, delay_ms = self._doomed_topic, 3 * WINDOW_MS
        admin = KafkaAdminClient(bootstrap_servers=self._servers)
        admin.create_topics({topic: {"num_partitions": 1}}, wait_for_metadata=True)
        admin.close()
        own: Headers = [("own", b"\0")]
        for number in range(3):
            value = b"doomed %d" % number
            headers = [*own, *self._request(delay_ms, topic, value)]
            sent = self._producer.send(self._timers, value, b"k", headers=headers).get(timeout=30)
            self._doomed[value] = [
                *own,
                ("TIMER_ERROR_CODE", b"unknown_target_topic"),
                ("TIMER_ERROR", f"topic '{topic}' does not exist".encode()),
                ("REAL_TOPIC", topic.encode()),
                ("TIMER_DUE_MS", b"%d" % (sent.timestamp + delay_ms)),
                ("UNIQ_KEY", value),
            ]

    def judge(self, arrivals: Arrivals) -> None:
        """Each once, none early; how often a timer was rolled is told, all else is as it was."""
        assert set(arrivals.count.values()) == {1}
        assert len(arrivals.first) == self.count
        for value, expected in self._doomed.items():
            key, headers, _, seen_ms = arrivals.first[value]
            assert (key, headers[:-2]) == (b"k", expected)
            assert headers[-2][0] == "TIMER_ROLL_TIMES"
            assert int(headers[-2][1]) >= 1
            assert headers[-1][0] == "TIMER_SOURCE"
            assert seen_ms >= int(dict(headers)["TIMER_DUE_MS"])
        for value, wanted in self._forged.items():
            assert wanted in arrivals.first[value][1]
        rolled = 0
        for value, (delay_ms, own, future) in self._far.items():
            record = future.get(timeout=1)
            key, headers, _, seen_ms = arrivals.first[value]
            due_ms = record.timestamp + delay_ms
            assert (key, seen_ms >= due_ms) == (b"k", True)
            added: Headers = [
                ("TIMER_SOURCE", f"{record.topic}-{record.partition}@{record.offset}".encode()),
                ("TIMER_DUE_MS", b"%d" % due_ms),
                ("UNIQ_KEY", b"id"),
            ]
            assert headers[:4] == [*own, *added]
            rolled += sum(int(times) for name, times in headers[4:] if name == "TIMER_ROLL_TIMES")
        assert rolled > ROLLED_MIN


def heard(records: Sequence[Any]) -> Arrivals:
    """What has been read of some topics; each was seen when it was written."""
    arrivals = Arrivals()
    for record in records:
        seen = (record.key, record.headers, record.partition, record.timestamp)
        arrivals.first.setdefault(record.value, seen)
        arrivals.count[record.value] += 1
    return arrivals
