"""A run of the model: processes, disks and Kafka, and everything that may go wrong with them.

A seed chooses what may go wrong, how often, and then every step. At the end faults cease, and all
must be settled.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from random import Random

from tests.model.clauses import Clauses
from tests.model.dequeue_model import Dequeue, Outcome, Stopped
from tests.model.files_model import RING, Directory
from tests.model.ingest_model import Ingest
from tests.model.judge import Judge, Violation
from tests.model.kafka_model import (
    Kafka,
    Kind,
    PartitionProgress,
    Progress,
    Record,
    Windows,
)
from tests.model.recovery_model import begin_to_follow, carry_out, follow

WINDOWS = (8, 12)
DELAYS = (0, 0, 1, 2, 5, 8, 9, 12, 13, 20, 40)
DRAIN_ROUNDS = 1500

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
    "copies": ("outage", "target", "stall", "lose_disk", "lose_power"),
}
THEMES["all"] = tuple(sorted({name for theme in THEMES.values() for name in theme}))


@dataclass(slots=True)
class Instance:
    """A data directory and the processes that run on it."""

    directory: Directory
    ingest: Ingest | None = None
    dequeue: Dequeue | None = None
    follows: bool = False  # the standby's follower runs, in the place of a dequeue

    def kill(self) -> None:
        self.ingest = self.dequeue = self.directory.durable_taken = None
        self.follows = False


@dataclass(slots=True)
class Shard:
    """Who serves a shard, who believes so still, who stands by, and disks on the shelf.

    For as many of its turns as `held` says, dequeue does not run.
    """

    name: str
    primary: Instance
    standby: Instance | None = None
    others: list[Instance] = field(default_factory=list)
    shelf: list[Directory] = field(default_factory=list)
    held: int = 0


class World:
    """One run: everything in it follows from the seed, and the theme if one is given."""

    def __init__(self, seed: int, clauses: Clauses, theme: str | None = None) -> None:
        self.random = random = Random(seed)
        self.clauses = clauses
        self.now = 0
        self.trace: list[str] = []
        self._numbers = 0
        self._messages = 0
        self._ids: list[tuple[int, int]] = []  # (id, partition)
        self.kafka = Kafka(random.randint(1, 3), replies=Random(~seed).random() < 0.6)
        self.judge = Judge(self.kafka)
        self.judge.trace = self.trace
        self.judge.directory_of = self._directory
        self.window = random.choice(WINDOWS)
        self._reshards = 0
        self._stalled = 0
        self._kinds = self.random.choice(((80, 8, 12), (40, 25, 35)))
        self._down: set[int] = set()
        self._calm = False
        self._outcome_risk = random.choice((0.0, 0.1, 0.3))
        self._batch = random.randint(1, 6)
        self._chunk = random.randint(1, 4)
        for partition in range(len(self.kafka.topic)):
            self.judge.windows[partition] = ((0, self.window),)
        nothing = {p: PartitionProgress(-1, 0) for p in range(len(self.kafka.topic))}
        self.shards = [self._new_shard(0, 1, nothing, {})]
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
            self._beat: random.choice((1, 4)),
            self._durable: random.choice((1, 3, 12)),
            self._kill: 1,
        }
        for name in THEMES[chosen]:
            fault: Callable[[], None] = getattr(self, "_" + name)
            usual[fault] = usual.get(fault, 0) + random.choice((0.5, 2, 5))
        return list(usual), list(usual.values())

    def number(self) -> int:
        self._numbers += 1
        return self._numbers

    def _directory(self, uuid: int) -> Directory:
        """That of whoever commits."""
        instances = [i for shard in self.shards for i in (shard.primary, *shard.others)]
        return next(i.directory for i in instances if i.directory.uuid == uuid)

    # processes

    def _new_shard(
        self,
        index: int,
        count: int,
        partitions: dict[int, PartitionProgress],
        windows: dict[int, Windows],
    ) -> Shard:
        name = f"{self._reshards}: {index} of {count}"
        deal = self._reshards
        self.kafka.progress[name] = Progress(0, 0, 0, partitions, windows, self.window, deal)
        return Shard(name, Instance(Directory(self.number())))

    def _partitions(self, shard: Shard) -> list[int]:
        index = self.shards.index(shard)
        return [p for p in range(len(self.kafka.topic)) if p % len(self.shards) == index]

    def _shard(self) -> Shard:
        return self.random.choice(self.shards)

    def _someone(self) -> tuple[Shard, Instance]:
        shard = self._shard()
        others = [*shard.others, *([shard.standby] if shard.standby else [])]
        if others and self.random.random() < 0.5:
            return shard, self.random.choice(others)
        return shard, shard.primary

    def _outcome(self) -> Outcome:
        if self._calm or self.random.random() >= self._outcome_risk:
            return Outcome.COMMITTED
        return self.random.choice(list(Outcome))

    def _dies(self) -> bool:
        return not self._calm and self.random.random() < 0.1

    def _running_dequeue(self, shard: Shard, instance: Instance) -> Dequeue | None:
        """The dequeue that is to do something; it is started first if it does not run."""
        if shard.held and not self._calm:
            shard.held -= 1
            return None
        if instance is shard.standby:
            self._follow(shard, instance)
            return None
        try:
            if instance.dequeue is None and instance is shard.primary:
                args = (self.kafka, shard.name, self.clauses, self._outcome, self._down)
                instance.dequeue = Dequeue(instance.directory, *args)
                instance.dequeue.start(self.number())
                self._note("dequeue starts", instance, instance.directory.recovery)
                return None
            if instance.dequeue is not None and instance.dequeue.is_ready():
                return instance.dequeue
        except Stopped:
            instance.dequeue = None
        return None

    def _running_ingest(self, shard: Shard, instance: Instance) -> Ingest | None:
        directory = instance.directory
        if instance.ingest is None and directory.close is not None:
            decided = instance.dequeue is not None and instance.dequeue.is_published
            if not decided and not instance.follows:
                return None  # it waits for the decision of a dequeue that lives
            pending = directory.is_pending
            if pending and not carry_out(directory, self.kafka, self.clauses, self._dies):
                self._note("ingest dies in the recovery", instance)
                return None
            instance.ingest = Ingest(directory, self.kafka, self.clauses)
            self._note("ingest starts", instance, directory.files.marks)
        return instance.ingest

    def _note(self, what: str, instance: Instance, more: object = "") -> None:
        close = instance.directory.close
        at = f"({close.lower}, {close.floor}] at {close.c}" if close else ""
        self.trace.append(f"{self.now}: {what} in {instance.directory.uuid} {at} {more}")

    def _using_dequeue(self, act: Callable[[Dequeue], None]) -> None:
        shard, instance = self._someone()
        dequeue = self._running_dequeue(shard, instance)
        if dequeue is not None:
            try:
                act(dequeue)
                self._note(f"dequeue at {dequeue.r}", instance)
            except Stopped:
                self._note("dequeue dies", instance)
                instance.dequeue = None

    # what happens all the time

    def _produce(self) -> None:
        random = self.random
        kind = random.choices((Kind.TIMER, Kind.RESCHEDULE, Kind.CANCEL), self._kinds)[0]
        partition = random.randrange(len(self.kafka.topic))
        name = self.number()
        if kind is not Kind.TIMER and self._ids:
            name, partition = random.choice(self._ids[-8:])
        else:
            kind = Kind.TIMER
        self._ids.append((name, partition))
        stamp = self.now - random.choice((0, 0, 0, 1, 2))
        due = stamp if kind is Kind.CANCEL else stamp + random.choice(DELAYS)
        poison = kind is Kind.TIMER and random.random() < 0.05
        message = -1 if kind is Kind.CANCEL else self.number()
        record = Record(kind, name, message, stamp, due, random.randrange(2), poison)
        self.kafka.topic[partition].append(record)
        offset = len(self.kafka.topic[partition]) - 1
        self.trace.append(f"{self.now}: written {partition}@{offset} {record}")

    def _ingest(self) -> None:
        shard, instance = self._someone()
        if self._stalled:
            self._stalled -= 1
            return
        ingest = self._running_ingest(shard, instance)
        if ingest is not None:
            self._ingest_step(shard, instance, ingest)

    def _ingest_step(self, shard: Shard, instance: Instance, ingest: Ingest) -> None:
        if ingest.batch is None:
            partitions = self._partitions(shard)
            self.random.shuffle(partitions)
            ingest.read(partitions, lambda: self.random.randint(0, self._batch))
        else:
            rows = ingest.batch.rows
            if not ingest.commit():
                instance.ingest = None
            self._note("batch", instance, [(s, r.partition, r.offset) for s, r in rows])

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

    def _durable(self) -> None:
        instance = self._someone()[1]
        directory, ingest = instance.directory, instance.ingest
        if ingest is not None and not directory.is_pending:
            if directory.durable_taken is None:
                directory.take_durable(self.clauses)
            else:
                directory.write_durable()

    # faults

    def _kill(self) -> None:
        instance = self._someone()[1]
        which = self.random.randrange(3)
        if which != 1:
            instance.ingest = instance.directory.durable_taken = None
        if which != 0:
            instance.dequeue = None
            instance.follows = False

    def _lose_power(self) -> None:
        instance = self._someone()[1]
        instance.kill()
        if instance.directory.close is not None:
            instance.directory.lose_power(self.random)
        self._note("power lost", instance)

    def _lose_disk(self) -> None:
        self._replace(self._shard(), Directory(self.number()))

    def _replace(self, shard: Shard, directory: Directory) -> None:
        """Another disk in the same place."""
        shard.primary.kill()
        shard.shelf = [*shard.shelf[-3:], shard.primary.directory]
        shard.primary = Instance(directory)
        self._note("disk replaced", shard.primary)

    def _back_up(self) -> None:
        shard, instance = self._someone()
        shard.shelf = [*shard.shelf[-3:], instance.directory.copy()]

    def _restore(self) -> None:
        shard = self._shard()
        if shard.shelf:
            directory = shard.shelf.pop(self.random.randrange(len(shard.shelf)))
            directory.durable_taken = None
            self._replace(shard, directory)

    def _take_over(self) -> None:
        """Elsewhere, while this one still runs."""
        shard = self._shard()
        shard.others = [*shard.others[-1:], shard.primary]
        shard.primary = Instance(Directory(self.number()))
        self._note("taken over", shard.primary)

    def _take_back(self) -> None:
        """By one that has lost the shard and whose ingest still runs."""
        shard = self._shard()
        if shard.others:
            back = shard.others.pop(self.random.randrange(len(shard.others)))
            shard.others.append(shard.primary)
            shard.primary = back
            back.dequeue = None
            self._note("taken back", back)

    def _stand_by(self) -> None:
        """In a new directory, or in one that has lost the shard."""
        shard = self._shard()
        if shard.standby is not None:
            return
        directory = Directory(self.number())
        if shard.others and self.random.random() < 0.5:
            former = shard.others.pop(self.random.randrange(len(shard.others)))
            former.kill()
            directory = former.directory
        shard.standby = Instance(directory)
        self._note("standby", shard.standby)

    def _follow(self, shard: Shard, instance: Instance) -> None:
        """A look at the progress; the first one is the standby's start."""
        progress = self.kafka.progress[shard.name]
        step = follow if instance.follows else begin_to_follow
        step(instance.directory, progress, self.clauses)
        instance.follows = True
        self._note("follows", instance)

    def _promote(self) -> None:
        shard = self._shard()
        if shard.standby is not None and self.random.random() < 0.3:
            shard.others = [*shard.others[-1:], shard.primary]
            shard.primary, shard.standby = shard.standby, None
            shard.primary.follows = False
            self._note("standby takes over", shard.primary)

    def _add_partition(self) -> None:
        if len(self.kafka.topic) < 5:
            self.judge.windows[len(self.kafka.topic)] = ((0, self.window),)
            self.kafka.topic.append([])

    def _are_too_far_apart(self, count: int) -> bool:
        """Whether the ring of a new shard would not take what its first partition has taken, while
        its last one is still to be delivered.
        """
        known = {
            number: p
            for shard in self.shards
            for number, p in self.kafka.progress[shard.name].partitions.items()
        }
        reach = self.now + max(WINDOWS)
        for index in range(count):
            slots = [p.r for number, p in known.items() if number % count == index]
            if slots and max(min(r + RING - 1, reach) for r in slots) - min(slots) >= RING:
                return True
        return False

    def _reshard(self) -> None:
        count = 3 - len(self.shards)
        if count > len(self.kafka.topic):
            return
        if self.clauses.partitions_apart_stay_apart and self._are_too_far_apart(count):
            return
        partitions: dict[int, PartitionProgress] = {}
        windows: dict[int, Windows] = {}
        for shard in self.shards:
            self.kafka.init_transactions(shard.name)
            progress = self.kafka.progress[shard.name]
            self.kafka.progress[shard.name] = replace(progress, owner=-1, epoch=progress.epoch + 1)
            partitions |= progress.partitions
            windows |= {p: progress.windows_of(p) for p in self._partitions(shard)}
        newest = max(p.r for p in partitions.values())
        for number in range(len(self.kafka.topic)):
            partitions.setdefault(number, PartitionProgress(newest, 0))
        self._reshards += 1
        old, self.shards = self.shards, []
        for index in range(count):
            mine = {number: p for number, p in partitions.items() if number % count == index}
            epochs = {number: windows[number] for number in mine}
            self.shards.append(self._new_shard(index, count, mine, epochs))
        for shard in old:  # they believe in their shard until they are told otherwise
            if shard.primary.dequeue is not None:
                self.random.choice(self.shards).others.append(shard.primary)
            if shard.standby is not None:  # its files may come to serve or follow another shard
                former = Instance(shard.standby.directory)
                self.random.choice(self.shards).others.append(former)
        self.trace.append(f"{self.now}: {count} shards: {partitions}")

    def _reconfigure(self) -> None:
        """All shards stop; the new window holds from offsets that no one has judged."""
        if any(self._not_ready(shard) for shard in self.shards):
            return
        window = self.random.choice(WINDOWS)
        for shard in self.shards:
            shard.primary.ingest = None
            dequeue, calm = shard.primary.dequeue, self._calm
            assert dequeue is not None
            self._calm = True
            dequeue.reconfigure(window, self._partitions(shard))
            self._calm = calm
            progress = self.kafka.progress[shard.name]
            self.judge.reconfigured({p: progress.windows_of(p) for p in self._partitions(shard)})
        self.window = window
        self.trace.append(f"{self.now}: reconfigured: {self.judge.windows}")

    def _not_ready(self, shard: Shard) -> bool:
        dequeue = self._running_dequeue(shard, shard.primary)
        if dequeue is None or shard.primary.directory.is_pending:
            return True
        try:
            dequeue.beat(self.now)
        except Stopped:
            shard.primary.dequeue = None
        return shard.primary.dequeue is None

    def _stall(self) -> None:
        self._stalled = self.random.randint(1, 30)

    def _hold(self) -> None:
        """Dequeue of one shard is away while the others go on."""
        self._shard().held = self.random.randint(10, 120)

    def _target(self) -> None:
        self._down ^= {self.random.randrange(2)}

    def _outage(self) -> None:
        """Time passes and nothing is delivered, but ingest may go on."""
        instance = self._someone()[1]
        instance.dequeue = None
        self.now += self.random.randint(3, 40)
        self.judge.now = self.now

    # the run

    def run(self) -> None:
        """Steps, then calm until all is settled.

        Raises:
            Violation: naming what does not hold.
        """
        for _ in range(self.random.randint(50, 400)):
            self.random.choices(self._actions, self._weights)[0]()
        self._calm, self._stalled = True, 0
        self._down.clear()
        for turn in range(DRAIN_ROUNDS):
            self._drain(turn)
            if self.judge.settled():
                break
        self.judge.verdict()
        if not self.judge.settled():
            raise Violation("stuck")

    def _drain(self, turn: int) -> None:
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
                    if turn % 5 == 0:
                        dequeue.beat(self.now)
            except Stopped:
                instance.dequeue = None
