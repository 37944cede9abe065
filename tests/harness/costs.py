"""What bytes that anybody may write to a timer topic cost a shard, in processor time."""

from __future__ import annotations

import itertools
import random
import struct
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

from tests.harness.local_world import NOW_MS, LocalWorld
from tests.harness.publishers import RecordingPublisher
from tests.harness.timer_rows import suite_parameters

from duewheel.checkpoints.process_role import Role
from duewheel.config.keys_and_defaults import TimerSection
from duewheel.config.settings import Settings
from duewheel.kafka.log.columns import committed_records
from duewheel.kafka.log.leader_requests import Fetched
from duewheel.kafka.log.records import records_of
from duewheel.schemas.batch_ipc import to_bytes
from duewheel.schemas.batches import Deliveries, TopicPartition
from duewheel.schemas.request.acceptance_rules import compile_suite, load_suite
from duewheel.schemas.request.parser import Contract, parse
from duewheel.schemas.request.topic_settings import TopicContract
from duewheel.schemas.wire.batch_header import HEADER, HEADER_BYTES
from duewheel.schemas.wire.crc32c import crc32c
from duewheel.wheel import recurrence
from duewheel.wheel.dequeue.encoder import encode
from duewheel.wheel.policies.table import configured
from duewheel.wheel.publisher_protocol import Prepared, PublishAttempt
from duewheel.wheel.slots import WheelConfig
from duewheel.wheel.target_rules import Reason, Target

KEY = bytes(32)
CONTRACT = Contract(
    (1_000, 5_000),
    {
        "listed": TopicContract(targets=tuple(f"team-{n}.*" for n in range(100))),
        "by-key": TopicContract(id="key", null_value="cancel"),
        "etf1": TopicContract(headers="etf1"),
        "karafka": TopicContract(headers="karafka"),
        "eifinger": TopicContract(headers="eifinger"),
    },
    "dead",
    compile_suite(load_suite(), suite_parameters()),
    TopicContract(recurring=True),
    copy_keys=(KEY,),
)
TOPICS = ("timers", *CONTRACT.topics)
_WHEEL = WheelConfig(50, 1 << 14, window_ms=600_000, margin_ms=0)
_THERE = Target(4, 1 << 20, batch_bytes=1 << 19)
_WIDE = Target(10_000, 1 << 20, batch_bytes=1 << 19)
_GONE = Target(0, 0, refusal=Reason.UNKNOWN_TARGET_TOPIC)
_FULL = Target(4, 1 << 20, unavailable=frozenset(range(4)), batch_bytes=1 << 19)


def sealed(body: bytes, base: int, count: int, codec: int = 0, last: int | None = None) -> bytes:
    """A record batch as a broker takes it. `last` is the offset delta of its last record."""
    octets = bytearray(HEADER_BYTES + len(body))
    last = count - 1 if last is None else last
    times = (NOW_MS, NOW_MS)
    size = len(octets) - 12
    HEADER.pack_into(octets, 0, base, size, 0, 2, 0, codec, last, *times, -1, -1, -1, count)
    octets[HEADER_BYTES:] = body
    struct.pack_into(">I", octets, 17, crc32c(memoryview(octets)[21:]))
    return bytes(octets)


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds of processor time that an input took."""

    records: int
    read_s: float  # a task's: bytes to timers
    append_s: float  # the engine's
    locked_s: float  # of that, under engine.lock
    dequeue_s: float
    one_by_one_s: float  # a client's, or a command's, to read the records in plain Python

    @property
    def all_s(self) -> float:
        return self.read_s + self.append_s + self.dequeue_s + self.one_by_one_s

    def best(self, other: Costs) -> Costs:
        """The least of each."""
        return Costs(*(min(each) for each in zip(astuple(self), astuple(other), strict=True)))


class _EncodingPublisher(RecordingPublisher):
    """Encodes as the real one, and keeps no message."""

    def prepare(self, deliveries: Deliveries) -> Prepared:
        now_ms, chance = self.clock.true_ms, random.Random(0)
        found = encode(deliveries, _targets, frozenset(), "dead", chance, now_ms, KEY)
        return Prepared(deliveries, found)

    def publish(self, attempt: PublishAttempt) -> int | None:
        del self.committed[:-1]
        stamp = super().publish(attempt)
        self.committed[-1] = None, attempt.progress
        return stamp


def _targets(topics: Sequence[str]) -> Mapping[str, Target]:
    kinds = {"gone": _GONE, "full": _FULL, "wide": _WIDE}
    return {topic: kinds.get(topic[:4], _THERE) for topic in topics}


class CostedShard(LocalWorld):
    """A shard that takes inputs one after the other, each delivered before the next."""

    def __init__(self, path: Path, **settings: Any) -> None:
        starts = {(topic, 0): 0 for topic in TOPICS}
        super().__init__(
            *(path, _WHEEL),
            starts=starts,
            publisher=_EncodingPublisher,
            reply_topic="replies",
            policies=configured(Settings(timer=TimerSection(topics=TOPICS))),
            **settings,
        )
        self._ends: dict[TopicPartition, int] = dict(starts)
        self._locked_s = 0.0
        directory = self.shard.directory(Role.INGEST)
        take_lock = directory.locked

        @contextmanager
        def locked() -> Iterator[Any]:
            with take_lock() as commit:
                begun = time.process_time()
                yield commit
                self._locked_s += time.process_time() - begun

        directory.locked = locked  # type: ignore[method-assign]
        self.drain()

    def take(self, octets: bytes, topic: str = "timers", wait_s: int = 10) -> Costs:
        """Reads record batches whose offsets begin at 0, and delivers what is due after a time."""
        place = (topic, 0)
        begin = self._ends[place]
        there, end = moved(octets, begin)
        self._ends[place] = end
        took = [time.process_time()]
        part = [Fetched(place, memoryview(there), [], begin, end)]
        found = [parse(each, CONTRACT) for each in committed_records(part, {place: (begin, end)})]
        for each in found:
            to_bytes(each)
        took.append(time.process_time())
        self._locked_s = 0.0
        for each in found:
            until = int(each.offset[-1]) + 1 if each is not found[-1] else end
            self.engine.append(each, {place: until})
        took.append(time.process_time())
        self.clock.sleep(wait_s)
        recurrence._next_of.cache_clear()  # noqa: SLF001 - the same input may have been taken before
        self.drain()
        took.append(time.process_time())
        for _ in records_of(Fetched(place, memoryview(there), [], begin, end)):
            pass
        took.append(time.process_time())
        read_s, append_s, dequeue_s, one_by_one_s = (b - a for a, b in itertools.pairwise(took))
        rows = sum(map(len, found))
        return Costs(rows, read_s, append_s, self._locked_s, dequeue_s, one_by_one_s)


def moved(octets: bytes, by: int) -> tuple[bytearray, int]:
    """The batches at other offsets, and the offset behind them."""
    there, at, end = bytearray(octets), 0, by
    while at < len(there):
        base, size = struct.unpack_from(">qi", there, at)
        (last,) = struct.unpack_from(">i", there, at + 23)
        struct.pack_into(">q", there, at, base + by)
        at, end = at + 12 + size, base + by + last + 1
    return there, end
