"""Timers of a cluster that is lost, and what its mirror makes of them on another one."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from kafka import KafkaProducer
from tests.harness.reader import TopicReader, read_topic

from duewheel.clock import SystemClock
from duewheel.schemas.receipts import Receipt

CLOCK = SystemClock()
PREFIX = "A."
PARTITIONS = 2


@dataclass(frozen=True)
class Asked:
    """A timer: its id, if it has one; how long after its record it is due."""

    timer_id: str
    delay_ms: int
    cancelled: bool = False


@dataclass
class Timers:
    """Timers by value, and the due time of each."""

    asked: dict[bytes, Asked] = field(default_factory=dict)
    due_ms: dict[bytes, int] = field(default_factory=dict)

    def send(self, servers: str, topic: str, timers: Iterable[Asked]) -> None:
        """Write them, then the cancels of those that are cancelled."""
        producer = KafkaProducer(bootstrap_servers=servers, linger_ms=20)
        sent = {}
        for asked in timers:
            value = b"%d" % len(self.asked)
            headers = [("TIMER_DELAY_MS", b"%d" % asked.delay_ms), ("own", value), ("own", b"")]
            if asked.timer_id:
                headers.append(("UNIQ_KEY", asked.timer_id.encode()))
            number = len(self.asked) % PARTITIONS
            self.asked[value] = asked
            future = producer.send(
                topic, value, key=b"k%d" % number, headers=headers, partition=number
            )
            sent[value] = future
        producer.flush(timeout=120)
        for place, (value, asked) in enumerate(self.asked.items()):
            if value in sent:
                self.due_ms[value] = sent[value].get(timeout=1).timestamp + asked.delay_ms
            if value in sent and asked.cancelled:
                headers = [("TIMER_DEL_UNIQKEY", asked.timer_id.encode())]
                number = place % PARTITIONS
                producer.send(topic, key=b"k%d" % number, headers=headers, partition=number)
        producer.flush(timeout=120)
        producer.close()


class PlainCopier:
    """Copies the committed records of topics to another cluster, as a mirror does: under other
    names, with their keys, values, headers, partitions and timestamps, at other offsets.
    """

    def __init__(self, servers: str, to: str, topics: Sequence[str]) -> None:
        self._producer = KafkaProducer(bootstrap_servers=to)
        self._reader = TopicReader(servers, topics, self._copy)
        self._lock = threading.Lock()
        self.copied: Counter[str] = Counter()
        self._reader.start()

    def _copy(self, records: list[Any]) -> None:
        for each in records:
            self._producer.send(
                f"{PREFIX}{each.topic}",
                each.value,
                key=each.key,
                headers=each.headers,
                partition=each.partition,
                timestamp_ms=each.timestamp,
            )
            self.copied[each.topic] += 1

    def stop(self) -> None:
        self._reader.stop()
        self._producer.flush(timeout=60)
        self._producer.close()


@dataclass
class Losses:
    """What a loss of a cluster has done to timers, by their values.

    Attributes:
        lost: delivered nowhere, though their record was mirrored.
        never_mirrored: delivered nowhere, and their record had not reached the mirror.
        doubled: delivered by both clusters.
        without_reason: of these, those whose receipt the mirror has.
        early, cancelled: delivered before their due time; or though the mirror has their cancel.
        here: delivered by the new cluster.
    """

    lost: set[bytes]
    never_mirrored: set[bytes]
    doubled: set[bytes]
    without_reason: set[bytes]
    early: set[bytes]
    cancelled: set[bytes]
    here: set[bytes]


def losses(
    timers: Timers, there: Sequence[Any], here: Sequence[Any], servers: str, names: tuple[str, str]
) -> Losses:
    """Compare deliveries of both clusters; `names` are those of timer topic and receipts."""
    by_there, by_here = ({r.value: r for r in records} for records in (there, here))
    assert (len(there), len(here)) == (len(by_there), len(by_here)), "none is twice in one cluster"
    records = read_topic(servers, f"{PREFIX}{names[0]}")
    mirrored = {record.value for record in records if record.value}
    stopped = {dict(record.headers).get("TIMER_DEL_UNIQKEY", b"").decode() for record in records}
    receipts = [
        Receipt.parse(r.key, r.value, r.timestamp)
        for r in read_topic(servers, f"{PREFIX}{names[1]}")
    ]
    sources = {each.source for each in receipts if each is not None}
    wanted = {value for value, asked in timers.asked.items() if not asked.cancelled}
    gone = wanted - by_there.keys() - by_here.keys()
    doubled = by_there.keys() & by_here.keys()
    for value, record in by_here.items():
        headers = dict(record.headers)
        assert headers["TIMER_DUE_MS"] == b"%d" % timers.due_ms[value]
        assert record.headers[:2] == [("own", value), ("own", b"")]
        timer_id = timers.asked[value].timer_id.encode() or headers["TIMER_SOURCE"]
        assert headers["UNIQ_KEY"] == timer_id
    delivered = [*by_there.values(), *by_here.values()]
    return Losses(
        lost=gone & mirrored,
        never_mirrored=gone - mirrored,
        doubled=doubled,
        without_reason={
            value
            for value in doubled
            if dict(by_there[value].headers)["TIMER_SOURCE"].decode() in sources
        },
        early={r.value for r in delivered if r.timestamp < timers.due_ms[r.value]},
        cancelled={v for v in by_here if timers.asked[v].timer_id in stopped - {""}},
        here=set(by_here),
    )
