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
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random

from tests.simulation.contract_check import decoded
from tests.simulation.kafka_model import PRODUCERS, Kafka, Lane, Partition, Sent, Transaction
from tests.simulation.timers import (
    DEAD,
    TARGET_PARTITIONS,
    TARGETS,
    TOPIC,
    Copy,
    Timer,
    as_letter,
    encoded,
)

from duewheel.checkpoints.held_copies import Held
from duewheel.checkpoints.progress import Progress, shard_of
from duewheel.errors import Displaced, Fenced, PublishDoubt, TransactionTooSlow
from duewheel.kafka.progress.newest import NewestRecord
from duewheel.kafka.progress.shard_progress import is_yield_requested
from duewheel.schemas import header_names as names
from duewheel.schemas.batches import Deliveries, TopicPartition
from duewheel.schemas.wire.copy_mac import signed
from duewheel.wheel.dequeue.partitioner import grouped
from duewheel.wheel.dequeue.routing import Routed, route
from duewheel.wheel.encoded import Aside
from duewheel.wheel.publisher_protocol import Prepared, PublishAttempt, Seen
from duewheel.wheel.target_rules import Reason, Target

FATES = ("lost", "doubt", "open", "die before", "die open", "die after")
TIMEOUT_MS = 15_000
_BATCH_BYTES = 1 << 20
_MOVED_MAX = 5  # held copies, in a transaction, beside as many as it adds

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

    def sorted_out(
        self, deliveries: Deliveries, down: frozenset[tuple[str, int]]
    ) -> tuple[list[Sent], list[Sent]]:
        """What a transaction writes to the timer topic, and what waits once it is committed."""
        history, lane = self.kafka.history, self.lane
        closed = {number for name, number in down if name == TOPIC}
        free = [each for each in lane.held if each.partition not in closed]
        new = [Sent(*each, is_chase=False) for each in history.sent_back(deliveries)]
        new += [Sent(*each, is_chase=True) for each in history.chases(deliveries)]
        now = free[: _MOVED_MAX + len(new)]
        waits = [each for each in lane.held if each not in now]
        behind = closed | {each.partition for each in waits}
        return (
            now + [each for each in new if each.partition not in behind],
            waits + [each for each in new if each.partition in behind],
        )

    def begin(
        self,
        deliveries: Deliveries | None,
        progress: Progress,
        down: frozenset[tuple[str, int]],
        sent: Sequence[Sent] = (),
        held: Sequence[Sent] | None = None,
    ) -> Transaction:
        """The shard's transaction, with everything in it written.

        Args:
            deliveries, progress: what is in it.
            down: partitions that are known to take no writes.
            sent: what it writes to the timer topic.
            held: what waits once it is committed; None: as before.
        """
        lane, kafka = self.lane, self.kafka
        assert lane.transaction is None
        begun = Transaction(
            deliveries,
            progress.encode(),
            kafka.clock.true_ms,
            kafka.clock.closable_ms,
            kafka.parked_ms,
            down,
            kafka.absent,
            kafka.paused,
        )
        for each in sent:
            self._write(begun, each)
        begun.sent, begun.held = list(sent), list(lane.held if held is None else held)
        lane.transaction = begun
        return begun

    def _write(self, begun: Transaction, sent: Sent) -> None:
        """To the end of its partition goes what is made of a timer, or of a request."""
        partition, now_ms = self.kafka.partitions[sent.partition], begun.began_ms
        begun.offsets.setdefault(sent.partition, []).append(partition.end)
        made = _chase if sent.is_chase else self._copy
        copy = made(sent.timer, sent.headers, partition.end, now_ms)
        partition.append(copy, now_ms, PRODUCERS + self.index)

    def _copy(self, timer: Timer, headers: bytes, offset: int, now_ms: int) -> Copy:
        """What a roll has made of a timer; or parking, which says itself how long."""
        history = self.kafka.history
        newest = history.newest(timer)
        timer = history.settings.judged(timer)
        said = dict(decoded(headers))
        if timer.recurs and names.NOT_BEFORE_MS not in said:
            # A roll, or the successor of a firing: its rolls are counted from none.
            timer = replace(timer, due_ms=int(said[names.NAME_OF[names.Request.DELIVER_AT]]))
            rolls = int(said[names.ROLL_TIMES])
            return Copy(timer, offset, now_ms, rolls, added=_added(timer, headers))
        if names.NOT_BEFORE_MS not in said:
            return Copy(timer, offset, now_ms, newest.rolls + 1, added=_added(timer, headers))
        not_before_ms = int(said[names.NOT_BEFORE_MS])
        counts = newest.rolls, not_before_ms, int(said[names.RETRIES])
        if names.LETTER in said:
            # The letter's rolls are in its content, as its other headers are.
            counts = 0, *counts[1:]
            if not timer.rejected:
                timer = as_letter(timer, headers)
        return Copy(timer, offset, now_ms, *counts, added=_added(timer, headers))

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
            lane.held = ended.held
            told = _decoded(ended.progress).held
            if {p: of.copies for p, of in told.items()} != _counted(lane.held):
                kafka.history.violated("held", f"{_counted(lane.held)} wait, told are {told}")
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


@dataclass(frozen=True, slots=True)
class SimulatedAttempt(PublishAttempt):
    """With its fate.

    Attributes:
        addressed: the rows where they go.
        sent: what goes to the timer topic.
        waiting: what waits after the commit.
    """

    fate: str = ""
    addressed: Deliveries | None = None
    sent: Sequence[Sent] = ()
    waiting: Sequence[Sent] = ()


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
        self.letters_wait = False

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
            raise Fenced("the partitions are being reassigned")
        self._was_started = True
        return self._shard.newest()

    def _is_asked_to_yield(self) -> bool:
        told = self._shard.lane.told
        notice = None if told is None else NewestRecord(*told)
        records = self._shard.progress
        return bool(records) and is_yield_requested(NewestRecord(*records[-1]), notice)

    def prepare(self, deliveries: Deliveries) -> Prepared:
        return Prepared(deliveries)

    def renew(self, prepared: Prepared, progress: Progress) -> Prepared:
        return prepared

    def log_ends(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        self._kafka.require_there()
        ends = {(TOPIC, p.number): p.end for p in self._kafka.partitions}
        return {p: ends[p] for p in partitions if p not in self._kafka.down}

    def compose(self, prepared: Prepared | None, progress: Progress) -> PublishAttempt:
        if self._epoch < 0:
            raise PublishDoubt("not started")
        self._require_epoch()
        deliveries = None if prepared is None else prepared.deliveries
        fate, before = self._fate_of(deliveries), self._shard.lane.held
        self._kafka.history.attempted(deliveries, fate)
        if deliveries is None:
            return SimulatedAttempt(progress, fate=fate, waiting=before)
        key = progress.epochs.newest.signing_key
        addressed, aside, sent, waiting = self._addressed(deliveries, key)
        return SimulatedAttempt(
            replace(progress, held={p: Held(0, n) for p, n in _counted(waiting).items()}),
            prepared,
            aside=aside,
            moved=len(waiting) < len(before),
            fate=fate,
            addressed=addressed,
            sent=sent,
            waiting=waiting,
        )

    def publish(self, attempt: PublishAttempt) -> int:
        assert isinstance(attempt, SimulatedAttempt)
        kafka, shard, fate, deliveries = self._kafka, self._shard, attempt.fate, attempt.addressed
        if fate == "die before":
            kafka.die()
        shard.begin(deliveries, attempt.progress, self._down, attempt.sent, attempt.waiting)
        stamp_ms = kafka.clock.true_ms
        if fate == "die open":
            kafka.die()
        self._meanwhile()
        self._require_epoch()
        if fate != "open":
            shard.finish(commit=fate != "lost")
        if fate == "die after":
            kafka.die()
        if fate != "commit":
            self.close()
            if deliveries is not None and len(deliveries) > 1 and fate in {"open", "lost"}:
                kafka.history.counts["ran out of time"] += 1
                raise TransactionTooSlow(fate)
            raise PublishDoubt(fate)
        return stamp_ms

    def _require_epoch(self) -> None:
        """Fail as a producer does whose transactional id was taken, or whose transaction has run
        into its time-out.
        """
        if self._epoch != self._shard.lane.epoch:
            self.close()
            raise Displaced("fenced, or ended by the time-out")

    def _addressed(
        self, deliveries: Deliveries, key: bytes
    ) -> tuple[Deliveries, Aside, list[Sent], list[Sent]]:
        """The rows where they go, and which do not; what goes to the timer topic, what waits then.

        Args:
            deliveries: as they left the wheel.
            key: signs copies.
        """
        aside = Aside()
        if len(deliveries):
            parked_ms = self._kafka.parked_ms
            waits_ms = self._kafka.history.waits_ms
            terms = TARGETS[DEAD], parked_ms, waits_ms, key
            paused = self._kafka.paused
            routed = route(deliveries, self._known, frozenset(), *terms, paused=paused)
            deliveries, aside = signed(routed.deliveries, key), routed.aside
            self._require_taken(routed)
        sent, held = self._shard.sorted_out(deliveries, self._down)
        return deliveries, aside, sent, held

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
        _, groups, _ = grouped(routed.deliveries, routed.used_targets, Random(0))
        refused = {(group.topic, group.partition) for group in groups} & self._kafka.refusing
        if refused:
            self._learnt |= refused
            self._kafka.history.counts["batch refused"] += 1
            self.close()
            raise PublishDoubt(f"refused: {sorted(refused)}")

    def _known(self, topics: Sequence[str]) -> dict[str, Target]:
        """What metadata says."""
        found = {}
        for topic in topics:
            down = frozenset(number for name, number in self._down if name == topic)
            count = len(self._kafka.partitions) if topic == TOPIC else TARGET_PARTITIONS
            target = Target(count, _BATCH_BYTES, unavailable=down, batch_bytes=_BATCH_BYTES)
            if topic in self._kafka.absent:
                target = Target(0, _BATCH_BYTES, refusal=Reason.UNKNOWN_TARGET_TOPIC)
            found[topic] = target
        return found


def _counted(held: Sequence[Sent]) -> dict[TopicPartition, int]:
    return dict(Counter((TOPIC, each.partition) for each in held))


def _chase(request: Timer, headers: bytes, offset: int, now_ms: int) -> Copy:
    """A request that is written again, as its headers say."""
    said = dict(decoded(headers))
    slot, flags = int(said[names.CHASE_SLOT]), int(said[names.CHASE_FLAGS])
    added = _added_to_chase(request, headers)
    return Copy(request, offset, now_ms, 0, chase_slot=slot, chase_flags=flags, added=added)


def _added(timer: Timer, headers: bytes) -> bytes:
    """What stands behind the user's own headers."""
    return headers[len(timer.columns[3]) :]


def _added_to_chase(request: Timer, headers: bytes) -> bytes:
    return headers[len(encoded(request.plain_headers)) :]


def offsets_at(shard: Shard, stamp_ms: int) -> dict[tuple[str, int], int]:
    """Where that time begins in each of its partitions that has come so far."""
    found = {(TOPIC, p.number): p.offset_for_time(stamp_ms) for p in shard.partitions}
    return {name: offset for name, offset in found.items() if offset is not None}


def offsets_of(shard: Shard, what: str) -> dict[tuple[str, int], int]:
    """`start`, `end` or `stable_end` of each of its partitions."""
    return {(TOPIC, p.number): int(getattr(p, what)) for p in shard.partitions}
