"""Kafka as one shard's processes see it: their partitions, the shard's records, their clients.

Fates of a transaction:

    commit   it happens, and its writer hears so
    lost     its records are aborted, its writer is left in doubt
    doubt    it happens, its writer is left in doubt
    open     nobody ends it: the next start with its transactional id does, or the time-out
    die …    the writer dies before it, in it (it stays open), or behind it
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random

from tests.simulation.contract_check import decoded
from tests.simulation.kafka_model import Kafka, Lane, Partition, Transaction
from tests.simulation.seam import die
from tests.simulation.timers import DEAD, TARGET_PARTITIONS, TARGETS, TOPIC, Copy, Timer

from duewheel.checkpoints.progress import Progress, shard_of
from duewheel.checkpoints.resharding import NOTICE_KEY
from duewheel.errors import Fenced, PublishDoubt, TransactionTooSlow
from duewheel.schemas import header_names as names
from duewheel.schemas.timers import Deliveries, TopicPartition
from duewheel.wheel.encoding import Aside, Known, Routed, route
from duewheel.wheel.kafka_progress import Found
from duewheel.wheel.kafka_publisher import is_asked_to_yield
from duewheel.wheel.publisher import Prepared, Seen
from duewheel.wheel.routing import Reason, Target, grouped

FATES = ("lost", "doubt", "open", "die before", "die open", "die after")
TIMEOUT_MS = 15_000
_BATCH_BYTES = 1 << 20

_decoded = functools.lru_cache(16)(Progress.decode)  # asked for after every step


@dataclass(frozen=True)
class Shard:
    """A shard as a configuration names it: its index, and how many there are."""

    kafka: Kafka
    index: int
    count: int

    @property
    def partitions(self) -> list[Partition]:
        """Those of the timer topic that are its own."""
        return [p for p in self.kafka.partitions if self.has(p.number)]

    def has(self, number: int) -> bool:
        """Whether a partition is its own."""
        return shard_of((TOPIC, number), self.count) == self.index

    @property
    def lane(self) -> Lane:
        """What Kafka has of it."""
        return self.kafka.lanes[self.index]

    @property
    def progress(self) -> list[tuple[bytes, int]]:
        """Its records of the state topic: value and broker time."""
        return self.lane.progress

    @property
    def transaction(self) -> Transaction | None:
        """Its open one."""
        return self.lane.transaction

    def newest(self) -> Progress | None:
        progress = self.progress
        return _decoded(progress[-1][0]) if progress else None

    def begin(
        self, deliveries: Deliveries | None, progress: bytes, down: frozenset[tuple[str, int]]
    ) -> Transaction:
        """The shard's transaction, with everything in it written; `down`: partitions that are known
        to take no writes.
        """
        lane, kafka = self.lane, self.kafka
        assert lane.transaction is None
        begun = Transaction(
            deliveries,
            progress,
            kafka.clock.true_ms,
            kafka.clock.closable_ms,
            kafka.parked_ms,
            down,
            kafka.absent,
        )
        now_ms = begun.began_ms
        for timer, headers in kafka.history.sent_back(deliveries):
            self._write(begun, timer, self._copy, headers, now_ms)
        for timer, headers in kafka.history.chases(deliveries):
            self._write(begun, timer, _chase, headers, now_ms)
        lane.transaction = begun
        return begun

    def _write(
        self,
        begun: Transaction,
        timer: Timer,
        made: Callable[[Timer, bytes, int, int], Copy],
        headers: bytes,
        now_ms: int,
    ) -> None:
        """To the end of its partition goes what is made of a timer, or of a request."""
        partition = self.kafka.partitions[timer.partition]
        begun.offsets.setdefault(timer.partition, []).append(partition.end)
        partition.append(made(timer, headers, partition.end, now_ms), now_ms, opened=True)

    def _copy(self, timer: Timer, headers: bytes, offset: int, now_ms: int) -> Copy:
        """What a roll has made of a timer; or parking, which says itself how long."""
        history = self.kafka.history
        newest = history.newest(timer)
        timer = history.settings.judged(timer)
        said = dict(decoded(headers))
        if names.NOT_BEFORE_MS not in said:
            return Copy(timer, offset, now_ms, newest.rolls + 1)
        not_before_ms = int(said[names.NOT_BEFORE_MS])
        return Copy(timer, offset, now_ms, newest.rolls, not_before_ms, newest.retries + 1)

    def finish(self, *, commit: bool) -> None:
        """End the shard's transaction."""
        lane, kafka = self.lane, self.kafka
        ended, lane.transaction = lane.transaction, None
        assert ended is not None
        now_ms = kafka.clock.true_ms
        copies = [
            copy
            for number, offsets in ended.offsets.items()
            for copy in kafka.partitions[number].finish(offsets, now_ms, commit=commit)
        ]
        if commit:
            lane.progress.append((ended.progress, now_ms))
            kafka.history.committed(ended, copies)

    def end_forgotten(self) -> None:
        """What the coordinator does with a transaction that has run into its time-out."""
        begun = self.transaction
        if begun is not None and self.kafka.clock.true_ms - begun.began_ms > TIMEOUT_MS:
            self.lane.epoch += 1
            self.finish(commit=False)


class SimulatedReader:
    """The ProgressReader of one standby."""

    def __init__(self, shard: Shard) -> None:
        self._shard = shard

    def newest(self) -> Seen | None:
        self._shard.kafka.require_there()
        if not self._shard.progress:
            return None
        value, written_ms = self._shard.progress[-1]
        return Seen(Progress.decode(value), written_ms)

    def require_coordinator(self) -> None:
        self._shard.kafka.require_there()


class SimulatedPublisher:
    """The Publisher of one process: KafkaPublisher's promises without its sockets."""

    def __init__(
        self,
        shard: Shard,
        fate: Callable[[], str],
        meanwhile: Callable[[], None],
    ) -> None:
        """
        Args:
            shard: whose.
            fate: asked before each transaction.
            meanwhile: called in the middle of each.
        """
        self._shard = shard
        self._kafka = shard.kafka
        self._fate = fate
        self._meanwhile = meanwhile
        self._epoch = -1
        self._was_started = False
        self._learnt: frozenset[tuple[str, int]] = frozenset()  # from refused batches
        self.aside, self.letters_wait = Aside(), False

    def peek(self) -> Progress | None:
        self._kafka.require_there()
        return self._shard.newest()

    def age_ms(self) -> int:
        self._kafka.require_there()
        _, written_ms = self._shard.progress[-1]
        return self._kafka.clock.true_ms - written_ms

    def start(self) -> Progress | None:
        self._kafka.require_there()
        lane = self._shard.lane
        lane.epoch += 1
        if lane.transaction is not None:
            self._shard.finish(commit=False)
        self._epoch = lane.epoch
        if self._was_started and self._is_asked_to_yield():
            self.close()
            raise Fenced("the partitions are being dealt anew")
        self._was_started = True
        return self._shard.newest()

    def _is_asked_to_yield(self) -> bool:
        told = self._shard.lane.told
        beside = {} if told is None else {NOTICE_KEY: Found(*told)}
        records = self._shard.progress
        return bool(records) and is_asked_to_yield(Found(*records[-1], beside))

    def prepare(self, deliveries: Deliveries) -> Prepared:
        return Prepared(deliveries)

    def log_ends(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        self._kafka.require_there()
        ends = {(TOPIC, p.number): p.end for p in self._kafka.partitions}
        return {partition: ends[partition] for partition in partitions}

    def publish(self, prepared: Prepared | None, progress: Progress) -> int:
        kafka, shard = self._kafka, self._shard
        if self._epoch != shard.lane.epoch:
            raise PublishDoubt("not started, or fenced")
        deliveries = None if prepared is None else prepared.deliveries
        fate = self._fate_of(deliveries)
        kafka.history.attempted(deliveries, fate)
        if deliveries is not None and len(deliveries):
            routed = route(deliveries, self._known, frozenset(), TARGETS[DEAD], kafka.parked_ms)
            deliveries, self.aside = routed.deliveries, routed.aside
            self._require_taken(routed)
        if fate == "die before":
            die()
        shard.begin(deliveries, progress.encode(), self._down)
        stamp_ms = kafka.clock.true_ms
        if fate == "die open":
            die()
        self._meanwhile()
        if shard.transaction is None or self._epoch != shard.lane.epoch:
            self.close()
            raise PublishDoubt("ended by its time-out")
        if fate != "open":
            shard.finish(commit=fate != "lost")
        if fate == "die after":
            die()
        if fate != "commit":
            self.close()
            if deliveries is not None and len(deliveries) > 1 and fate in {"open", "lost"}:
                kafka.history.counts["ran out of time"] += 1
                raise TransactionTooSlow(fate)
            raise PublishDoubt(fate)
        return stamp_ms

    def _fate_of(self, deliveries: Deliveries | None) -> str:
        """Of a transaction; one that is too large is not committed. Answers are never divided."""
        fate, most = self._fate(), self._kafka.rows_max
        if deliveries is None or not most or deliveries.answer.any() or "die" in fate:
            return fate
        return "lost" if len(deliveries) > most else fate

    def close(self) -> None:
        self._epoch = -1

    @property
    def _down(self) -> frozenset[tuple[str, int]]:
        """What is known to take no writes: a verdict lasts for as long as it is true."""
        self._learnt &= self._kafka.refusing
        return self._kafka.down | self._learnt

    def _require_taken(self, routed: Routed) -> None:
        """Fail as the transaction does of which a partition refuses a batch."""
        targets = {topic: known.target for topic, known in routed.known.items()}
        _, groups = grouped(routed.deliveries, targets, Random(0))
        refused = {(group.topic, group.partition) for group in groups} & self._kafka.refusing
        if refused:
            self._learnt |= refused
            self._kafka.history.counts["batch refused"] += 1
            self.close()
            raise PublishDoubt(f"refused: {sorted(refused)}")

    def _known(self, topics: Sequence[str]) -> dict[str, Known]:
        """What metadata says."""
        found = {}
        for topic in topics:
            down = frozenset(number for name, number in self._down if name == topic)
            count = len(self._kafka.partitions) if topic == TOPIC else TARGET_PARTITIONS
            target = Target(count, _BATCH_BYTES, unavailable=down)
            if topic in self._kafka.absent:
                target = Target(0, _BATCH_BYTES, refusal=Reason.UNKNOWN_TARGET_TOPIC)
            found[topic] = Known(target, _BATCH_BYTES)
        return found


def _chase(request: Timer, headers: bytes, offset: int, now_ms: int) -> Copy:
    """A request that is written again, as its headers say."""
    said = dict(decoded(headers))
    slot, flags = int(said[names.CHASE_SLOT]), int(said[names.CHASE_FLAGS])
    return Copy(request, offset, now_ms, 0, chase_slot=slot, chase_flags=flags)


def offsets_at(shard: Shard, stamp_ms: int) -> dict[tuple[str, int], int]:
    """Where that time begins in each of its partitions that has come so far."""
    found = {(TOPIC, p.number): p.offset_for_time(stamp_ms) for p in shard.partitions}
    return {name: offset for name, offset in found.items() if offset is not None}


def offsets_of(shard: Shard, what: str) -> dict[tuple[str, int], int]:
    """`start`, `end` or `stable_end` of each of its partitions."""
    return {(TOPIC, p.number): int(getattr(p, what)) for p in shard.partitions}
