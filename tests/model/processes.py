"""A run of the model: the processes of its shards, and their steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from tests.model.clauses import Clauses
from tests.model.dequeue_model import Dequeue, Outcome, Stopped
from tests.model.files_model import Directory
from tests.model.ingest_model import Ingest
from tests.model.judge import Judge
from tests.model.kafka_model import Kafka, PartitionProgress, Progress, Windows
from tests.model.recovery_model import begin_to_follow, carry_out, follow

WINDOWS = (8, 12)


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


class Processes:
    """Kafka, the shards and their processes."""

    def __init__(self, seed: int, clauses: Clauses) -> None:
        self.random = random = Random(seed)
        self.clauses = clauses
        self.now = 0
        self.trace: list[str] = []
        self._numbers = 0
        self.kafka = Kafka(random.randint(1, 3))
        self.kafka.now = lambda: self.now
        moves = Random(f"moves {seed}")  # of its own: other draws are what they were
        self.kafka.moves = lambda: 50 if self._calm else moves.randint(0, 3)
        self.judge = Judge(self.kafka)
        self.judge.trace = self.trace
        self.window = random.choice(WINDOWS)
        self._reshards = 0
        self._stalled = 0
        self._down: set[int] = set()
        self._calm = False
        self._outcome_risk = random.choice((0.0, 0.1, 0.3))
        self._batch = random.randint(1, 6)
        self._dies_half_way = random.choice((0.0, 0.1))
        for partition in range(len(self.kafka.topic)):
            self.judge.windows[partition] = ((0, self.window),)
        nothing = {p: PartitionProgress(-1, 0) for p in range(len(self.kafka.topic))}
        self.shards = [self._new_shard(0, 1, nothing, {})]

    def number(self) -> int:
        self._numbers += 1
        return self._numbers

    def _new_shard(
        self,
        index: int,
        count: int,
        partitions: dict[int, PartitionProgress],
        windows: dict[int, Windows],
    ) -> Shard:
        name = f"{self._reshards}: {index} of {count}"
        assignment_epoch = self._reshards
        self.kafka.progress[name] = Progress(
            0, 0, 0, partitions, windows, self.window, assignment_epoch
        )
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

    def _dies_before_the_flags(self) -> bool:
        return not self._calm and self.random.random() < self._dies_half_way

    def _answers(self) -> int:
        return 50 if self._calm else self.random.randint(0, 3)

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
                instance.dequeue = Dequeue(instance.directory, *args, self._answers)
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
            args = self.kafka, self.clauses, self._dies_before_the_flags
            instance.ingest = Ingest(directory, *args)
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

    def _ingest_step(self, shard: Shard, instance: Instance, ingest: Ingest) -> None:
        if ingest.batch is None:
            partitions = [p for p in self._partitions(shard) if p not in self.kafka.closed]
            self.random.shuffle(partitions)
            ingest.read(partitions, lambda: self.random.randint(0, self._batch))
        else:
            rows = ingest.batch.rows
            if not ingest.commit():
                instance.ingest = instance.directory.durable_taken = None
            self._note("batch", instance, [(s, r.partition, r.offset) for s, r in rows])

    def _follow(self, shard: Shard, instance: Instance) -> None:
        """A look at the progress; the first one is the standby's start."""
        progress = self.kafka.progress[shard.name]
        step = follow if instance.follows else begin_to_follow
        step(instance.directory, progress, self.clauses)
        instance.follows = True
        self._note("follows", instance)

    def _not_ready(self, shard: Shard) -> bool:
        dequeue = self._running_dequeue(shard, shard.primary)
        if dequeue is None or shard.primary.directory.is_pending:
            return True
        try:
            dequeue.beat(self.now)
        except Stopped:
            shard.primary.dequeue = None
        return shard.primary.dequeue is None
