"""A run of the model: processes, disks and Kafka, and their faults.

A seed chooses what may go wrong, how often, and then every step. At the end faults cease, and all
must be settled.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random

from tests.model.clauses import Clauses
from tests.model.dequeue_model import Dequeue, Stopped
from tests.model.faults import Faults
from tests.model.judge import Violation
from tests.model.kafka_model import Kind, Record

DELAYS = (0, 0, 1, 2, 5, 8, 9, 12, 13, 20, 40)
DRAIN_ROUNDS = 4000

# What may go wrong in a run. Few kinds of faults at once find more than all kinds.
THEMES = {
    "kills": ("lose_power", "kill"),
    "disks": ("lose_power", "restore", "back_up"),
    "old disks": ("back_up", "restore"),
    "owners": ("take_over", "take_back", "lose_disk", "lose_power"),
    "standby": ("stand_by", "promote", "lose_disk"),
    "standby without power": ("stand_by", "promote", "lose_power", "take_back"),
    "shards": ("reshard", "lose_disk", "lose_power"),
    "shards apart": ("reshard", "hold", "outage"),
    "shards and standbys": ("reshard", "stand_by", "promote", "take_back"),
    "windows": ("reconfigure", "lose_disk", "add_partition"),
    "lag": ("lose_disk", "stall"),
    "losses": ("lose_disk",),
    "outages": ("outage", "target", "stall"),
    "leaders": ("leader", "target"),
    "leaders and losses": ("leader", "lose_disk", "stall"),
    "leaders and shards": ("leader", "reshard", "take_over"),
    "cuts": ("accept_loss", "outage", "target", "lose_disk", "lose_power"),
    "copies": ("outage", "target", "stall", "lose_disk", "lose_power"),
}
THEMES["all"] = tuple(sorted({name for theme in THEMES.values() for name in theme}))


class World(Faults):
    """One run: everything in it follows from the seed, and the theme if one is given."""

    def __init__(
        self, seed: int, clauses: Clauses, theme: str | None = None, *, recurring: bool = False
    ) -> None:
        super().__init__(seed, clauses)
        random = self.random
        self._chunk = random.randint(1, 4)
        self._kinds = random.choice(((80, 8, 12), (40, 25, 35)))
        self._ids: list[tuple[int, int]] = []  # (id, partition)
        self._reuse = random.choice((0.0, 0.2, 0.5))  # ids of timers that are used again
        self._remembered = random.choice((3, 8, 40))
        # Its own: without recurring timers all draws are as they were.
        self._recurrences = Random(f"recurring {seed}") if recurring else None
        self._actions, self._weights = self._choose_actions(theme)

    def _choose_actions(self, theme: str | None) -> tuple[list[Callable[[], None]], list[float]]:
        random = self.random
        chosen = theme or random.choice(list(THEMES))
        usual: dict[Callable[[], None], float] = {
            self._produce: random.choice((10, 30)),
            self._ingest: random.choice((15, 30)),
            self._tick: 14,
            self._close: 12,
            self._deliver: random.choice((6, 18)),
            self._beat: random.choice((1, 4, 12)),
            self._learn_end: random.choice((1, 4)),
            self._collect: random.choice((0, 1, 4)),
            self._accept_loss: random.choice((0, 0, 0, 1, 3)),
            self._durable: random.choice((1, 3, 12)),
            self._kill: 1,
        }
        for name in THEMES[chosen]:
            fault: Callable[[], None] = getattr(self, "_" + name)
            usual[fault] = usual.get(fault, 0) + random.choice((0.5, 2, 5))
        return list(usual), list(usual.values())

    def _produce(self) -> None:
        random = self.random
        kind = random.choices((Kind.TIMER, Kind.RESCHEDULE, Kind.CANCEL), self._kinds)[0]
        if self._ids and (kind is not Kind.TIMER or random.random() < self._reuse):
            name, partition = random.choice(self._ids[-self._remembered :])
        else:
            name, partition = self.number(), random.randrange(len(self.kafka.topic))
            kind = Kind.TIMER
        self._ids.append((name, partition))
        stamp = self.now - random.choice((0, 0, 0, 1, 2))
        due = stamp if kind is Kind.CANCEL else stamp + random.choice(DELAYS)
        poison = kind is Kind.TIMER and random.random() < 0.05
        message = -1 if kind is Kind.CANCEL else self.number()
        record = Record(kind, name, message, stamp, due, random.randrange(2), poison)
        if kind is not Kind.CANCEL:
            record = self._recurring(record)
        if partition in self.kafka.closed:
            return
        self.kafka.topic[partition].append(record)
        offset = len(self.kafka.topic[partition]) - 1
        self.trace.append(f"{self.now}: written {partition}@{offset} {record}")

    def _recurring(self, record: Record) -> Record:
        """The record, or in some cases a seed in its place."""
        draws = self._recurrences
        if draws is None or draws.random() < 0.5:
            return record
        every, firings = draws.choice((1, 2, 5, 9, 20)), draws.randint(1, 5)
        return replace(record, due=record.timestamp, poison=False, every=every, firings=firings)

    def _ingest(self) -> None:
        shard, instance = self._someone()
        if self._stalled:
            self._stalled -= 1
            return
        ingest = self._running_ingest(shard, instance)
        if ingest is not None:
            self._ingest_step(shard, instance, ingest)

    def _tick(self) -> None:
        self.now += 1
        self.judge.now = self.now

    def _close(self) -> None:
        self._using_dequeue(lambda dequeue: dequeue.close_slots(self.now))

    def _deliver(self) -> None:
        count = self.random.randint(1, self._chunk)
        self._using_dequeue(lambda dequeue: dequeue.deliver(self.now, count))

    def _beat(self) -> None:
        self._using_dequeue(lambda dequeue: dequeue.beat(self.now))

    def _learn_end(self) -> None:
        partition = self.random.randrange(len(self.kafka.topic))
        self._using_dequeue(lambda dequeue: dequeue.learn_end(partition))

    def _collect(self) -> None:
        self._using_dequeue(Dequeue.collect)

    def _durable(self) -> None:
        """Also while a recovery is pending, as long as the ingest process lives."""
        instance = self._someone()[1]
        directory = instance.directory
        if instance.ingest is None or directory.close is None:
            return
        if directory.durable_taken is None:
            directory.take_durable(self.clauses)
        else:
            directory.write_durable(self.clauses)

    # the run

    def run(self) -> None:
        """Steps, then calm until all is settled.

        Raises:
            Violation: naming what does not hold.
        """
        for _ in range(self.random.randint(50, 400)):
            self.random.choices(self._actions, self._weights)[0]()
        self.settle()

    def settle(self) -> None:
        """No more faults, until nothing is left to be done.

        Raises:
            Violation: naming what does not hold.
        """
        self._calm, self._stalled = True, 0
        self._down.clear()
        self.kafka.closed.clear()
        for turn in range(DRAIN_ROUNDS):
            self._drain(turn)
            if self.judge.settled():
                break
        self.judge.verdict()
        if not self.judge.settled():
            raise Violation("stuck")

    def _drain(self, turn: int) -> None:
        self._batch = 12
        if turn % 3 == 0:
            self._tick()
        for shard in self.shards:
            instance = shard.primary
            dequeue = self._running_dequeue(shard, instance)
            ingest = self._running_ingest(shard, instance)
            if ingest is not None:
                self._ingest_step(shard, instance, ingest)
            try:
                if dequeue is not None:
                    dequeue.close_slots(self.now)
                    dequeue.deliver(self.now, 5)
                    dequeue.beat(self.now)
                    for partition in range(len(self.kafka.topic)):
                        dequeue.learn_end(partition)
            except Stopped:
                instance.dequeue = None
