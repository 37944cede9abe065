"""Recurring schedules under kills: the real scheduler over a model of Kafka and of the shard.

The model has what the scheduler relies on: transactions that are fenced, that fail before or after
their commit, or stay open behind a killed process; replies to cancels that come late, or never to a
killed process; and firings that leave at their instant, or later while the shard stands still.
Users set, pause, resume and stop. `judged` finds a firing that left twice, early or by a revision
that was not in effect, and one that never left.

firings.py has the same over the shards of the large simulation: a Cluster whose firings are timers.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Collection, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field, replace

from duewheel.errors import Displaced, PublishDoubt
from duewheel.recurring.schedule import FiringPosition, Missed, Schedule
from duewheel.recurring.scheduler import ScheduleCommit, Scheduler, Table
from duewheel.recurring.steps import AHEAD_MS, FiringCancels
from duewheel.testing import ManualClock

NAMES = ("a", "b", "c")
CRONS = ("*/10 * * * * *", "0,7,20 * * * * *", "* * * * *", "*/2 * * * *", "30 * * * * *")
STALL_MS = 210_000  # without a scheduler, at most
MISSED: tuple[Missed, ...] = ("skip", "one", "all")


class Killed(BaseException):
    """The process has ended here."""


@dataclass
class Firing:
    """A timer in the model's wheel."""

    name: str
    revision: str
    instant_ms: int
    timer: str
    state: str = "pending"
    left_ms: int = 0


@dataclass
class Cluster:
    """Kafka and the shard: what outlives every process."""

    clock: ManualClock
    chance: random.Random
    schedules: dict[str, Schedule] = field(default_factory=dict)
    positions: dict[str, FiringPosition] = field(default_factory=dict)
    changes: list[tuple[str, Schedule | None, int]] = field(default_factory=list)
    firings: list[Firing] = field(default_factory=list)
    calm: bool = False
    open: list[ScheduleCommit] = field(default_factory=list)
    cancels: list[tuple[int, str, int, Future[frozenset[int]], list[int]]] = field(
        default_factory=list
    )
    owner: object = None
    shard_stands_until_ms: int = 0

    def happens(self, probability: float) -> bool:
        """Whether a misfortune of this probability comes now."""
        return not self.calm and self.chance.random() < probability

    def drawn(self, name: str, revision: str) -> Schedule:
        """A schedule as a user may set it."""
        new = Schedule(name, revision, "timers", "orders", cron=self.chance.choice(CRONS))
        if self.chance.random() < 0.3:
            new = replace(new, cron=None, interval_ms=self.chance.choice((1_000, 7_000, 90_000)))
            new = replace(new, start_ms=self.clock.true_ms)
        return replace(new, missed=self.chance.choice(MISSED))

    def change(self, name: str, schedule: Schedule | None) -> None:
        now_ms = self.clock.true_ms
        if schedule is None:
            self.schedules.pop(name, None)
        else:
            schedule = self.schedules[name] = replace(schedule, since_ms=now_ms)
        self.changes.append((name, schedule, now_ms))

    def partition(self, schedule: Schedule) -> int:
        """That of a schedule's firings."""
        return 0

    def begin(self, written: Collection[ScheduleCommit]) -> None:
        """A transaction; it is the only open one."""
        self.open = list(written)

    def finish(self, *, commit: bool) -> None:
        """It ends."""
        written, self.open = self.open, []
        for each in written if commit else []:
            if each.position is None:
                self.positions.pop(each.name)
            else:
                self.positions[each.name] = each.position
            self.fired(each)

    def fired(self, each: ScheduleCommit) -> None:
        """The firings of a step are committed."""
        for instant_ms, _ in each.firings:
            assert each.schedule
            timer, revision = each.schedule.timer_id(instant_ms), each.schedule.revision
            self.firings.append(Firing(each.name, revision, instant_ms, timer))

    def request(self, cancels: FiringCancels, reply: Future[frozenset[int]]) -> None:
        """Cancels are written."""
        if self.happens(0.1):
            reply.set_exception(PublishDoubt("no reply in time"))
            return
        at_ms = self.clock.now_ms() + self.chance.randint(0, 3_000)
        at_ms = max([at_ms, *(each[0] for each in self.cancels)])
        rest = [len(cancels.timers)]
        for instant_ms, _, timer in cancels.timers:
            self.cancels.append((at_ms, timer, instant_ms, reply, rest))

    def move(self) -> None:
        """The shard's work: cancels in their order, at a slot's edge, then what is due."""
        now_ms = self.clock.now_ms()
        if now_ms < self.shard_stands_until_ms:
            return
        while self.cancels and self.cancels[0][0] <= now_ms:
            _, timer, instant_ms, reply, rest = self.cancels.pop(0)
            matching = [each for each in self.firings if each.timer == timer]
            for each in matching:
                if each.state == "pending":
                    each.state = "cancelled"
            if not any(each.state == "left" for each in matching):
                rest.append(instant_ms)
            rest[0] -= 1
            if rest[0] == 0:
                reply.set_result(frozenset(rest[1:]))
        for each in self.firings:
            if each.state == "pending" and each.instant_ms <= now_ms:
                each.state, each.left_ms = "left", now_ms


_SKEW_MAX_MS = 1_000


class ModelStore:
    """The Store of one process."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.taken = 0
        self.is_open = False

    def open(self) -> Table:
        self._maybe_killed(0.02)
        self.cluster.finish(commit=False)
        self.cluster.owner = self
        self.is_open = True
        self.taken = len(self.cluster.changes)
        return Table(dict(self.cluster.schedules), dict(self.cluster.positions))

    def now_ms(self) -> int | None:
        """None while KafkaStore's guard forbids to decide: firings would be skipped for good."""
        clock = self.cluster.clock
        now_ms = clock.now_ms()
        return None if now_ms - clock.true_ms > _SKEW_MAX_MS else now_ms

    def changes(self) -> Iterator[tuple[str, Schedule | None, bool]]:
        if self.cluster.chance.random() < 0.7:
            new, self.taken = self.cluster.changes[self.taken :], len(self.cluster.changes)
            for name, schedule, _ in new:
                yield name, schedule, True

    def partition(self, schedule: Schedule) -> int:
        return self.cluster.partition(schedule)

    def write(self, written: Collection[ScheduleCommit]) -> None:
        cluster = self.cluster
        self._maybe_killed(0.02)
        if cluster.owner is not self:
            raise Displaced("fenced")
        if not self.is_open:
            raise PublishDoubt("the producer is not open")
        cluster.begin(written)
        self._maybe_killed(0.02)  # it stays open
        if cluster.happens(0.03):
            self.is_open = False
            cluster.finish(commit=False)
            raise PublishDoubt("not committed")
        cluster.finish(commit=True)
        self._maybe_killed(0.02)
        if cluster.happens(0.03):
            self.is_open = False  # the producer is dropped
            raise PublishDoubt("committed, without an answer")

    def cancel(self, cancels: FiringCancels) -> Future[frozenset[int]]:
        self._maybe_killed(0.05)
        reply: Future[frozenset[int]] = Future()
        self.cluster.request(cancels, reply)
        self._maybe_killed(0.05)
        return reply

    def _maybe_killed(self, probability: float) -> None:
        if self.cluster.happens(probability):
            raise Killed


Spans = dict[str, list[tuple[int, int]]]


@dataclass
class Instances:
    """The schedulers of one run.

    Attributes:
        cluster: which they serve.
        covered: for each revision the spans of time in which the scheduler had applied it, and had
            all instants up to a minute ahead written.
    """

    cluster: Cluster
    live: Scheduler
    is_open: bool = False
    zombies: list[Scheduler] = field(default_factory=list)
    covered: Spans = field(default_factory=dict)

    @classmethod
    def of(cls, cluster: Cluster) -> Instances:
        """The first process."""
        return cls(cluster, _process(cluster))

    def take_over(self) -> None:
        """Another instance takes over, and this one lives on."""
        self.zombies.append(self.live)
        self.live, self.is_open = _process(self.cluster), False

    def turn(self) -> None:
        """A turn of all instances."""
        for zombie in self.zombies[-2:]:
            try:
                zombie.turn()
            except (Displaced, PublishDoubt, Killed):
                self.zombies.remove(zombie)
        try:
            if not self.is_open:
                self.live.open()
                self.is_open = True
            self.live.turn()
            _cover(self.cluster, self.live, self.covered)
        except PublishDoubt:
            self.is_open = False
        except Killed:
            self.live, self.is_open = _process(self.cluster), False


def run(seed: int, minutes: int = 30) -> tuple[Cluster, Spans]:
    """A history, whose last minutes are quiet."""
    chance = random.Random(seed)
    clock = ManualClock(1_800_000_000_000 + chance.randrange(60_000))
    cluster = Cluster(clock, chance)
    instances = Instances.of(cluster)
    end_ms = clock.now_ms() + minutes * 60_000
    for number in itertools.count():
        if clock.now_ms() >= end_ms:
            break
        clock.sleep(chance.choice((0.05, 0.3, 1.0, 2.0)))
        cluster.move()
        if clock.now_ms() < end_ms - 5 * 60_000:
            _misfortune(instances, f"r{number}")
        instances.turn()
    return cluster, instances.covered


def _misfortune(instances: Instances, revision: str) -> None:
    """Sometimes a change, a stop of the scheduler or the shard, or a second scheduler."""
    cluster, chance, clock = instances.cluster, instances.cluster.chance, instances.cluster.clock
    if chance.random() < 0.03:
        user(cluster, revision)
    if chance.random() < 0.005:
        clock.sleep(chance.choice((5, 70, 200)))  # without a scheduler
    if chance.random() < 0.003:
        cluster.shard_stands_until_ms = clock.now_ms() + chance.randint(1, 90_000)
    if chance.random() < 0.01:
        instances.take_over()


def _process(cluster: Cluster) -> Scheduler:
    return Scheduler(ModelStore(cluster), cluster.clock)


def user(cluster: Cluster, revision: str) -> None:
    """Sets, pauses, resumes or stops a schedule."""
    chance = cluster.chance
    name = chance.choice(NAMES)
    present = cluster.schedules.get(name)
    what = chance.choice(("set", "set", "pause", "resume", "resume", "stop"))
    if what == "set":
        cluster.change(name, cluster.drawn(name, revision))
    elif present is not None and what == "stop":
        cluster.change(name, None)
    elif present is not None:
        cluster.change(name, replace(present, revision=revision, paused=what == "pause"))


def _cover(cluster: Cluster, live: Scheduler, covered: Spans) -> None:
    """Note which revisions have all their instants up to a minute ahead written."""
    for name, schedule in cluster.schedules.items():
        position = cluster.positions.get(name)
        is_applied = position is not None and position.revision == schedule.revision
        if is_applied and not schedule.paused and live.schedules.get(name) == schedule:
            assert position is not None
            now_ms = cluster.clock.now_ms()
            if next(schedule.instants().after(position.written_ms)) <= now_ms + AHEAD_MS:
                continue  # it waits after a failure
            spans = covered.setdefault(schedule.revision, [])
            if spans and now_ms - spans[-1][1] < AHEAD_MS // 2:
                spans[-1] = (spans[-1][0], now_ms)
            else:
                spans.append((now_ms, now_ms))


def judged(cluster: Cluster, covered: Spans) -> list[str]:
    """What is wrong."""
    effective = effective_of(cluster)
    left = [each for each in cluster.firings if each.state == "left"]
    wrong = left_wrongly(left, effective)
    wrong += [f"{each} left early" for each in left if each.left_ms < each.instant_ms]
    wrong += [
        f"{each} lies far behind its revision"
        for each in left
        if each.instant_ms > effective[each.revision][1] + AHEAD_MS + STALL_MS
    ]
    times = {(each.name, each.instant_ms) for each in left}
    schedules = {s.revision: s for _, s, _ in cluster.changes if s is not None}
    stopped = _stopped(cluster)
    for revision, spans in covered.items():
        schedule = schedules[revision]
        until_ms = effective[revision][1]
        for begin_ms, end_ms in spans:
            # A stop cancels all that has not left; the shard may be late.
            behind_ms = min(end_ms, until_ms - (100_000 if revision in stopped else 0))
            missing = missing_instants(schedule, begin_ms, behind_ms, times)
            wrong += [f"{schedule.name}@{at} of {revision} has not left" for at in missing]
    if cluster.clock.now_ms() > cluster.shard_stands_until_ms + 120_000:
        for name, schedule in cluster.schedules.items():
            position = cluster.positions.get(name)
            if position is None or position.revision != schedule.revision:
                wrong.append(f"{name} never got to {schedule.revision}: {position}")
        wrong += [f"{n} was never ended" for n in cluster.positions.keys() - cluster.schedules]
    return wrong


def missing_instants(
    schedule: Schedule, begin_ms: int, end_ms: int, left: Collection[tuple[str, int]]
) -> Iterator[int]:
    """The instants of (begin_ms, end_ms] that are not among `left`, of names and instants."""
    for at_ms in schedule.instants().after(begin_ms):
        if at_ms > end_ms:
            return
        if (schedule.name, at_ms) not in left:
            yield at_ms


def left_wrongly(left: Collection[Firing], effective: dict[str, tuple[int, int]]) -> list[str]:
    """Instants that have left twice, or do not belong to their revision."""
    twice = Counter((each.name, each.instant_ms) for each in left)
    wrong = [f"{what} has left {n} times" for what, n in twice.items() if n > 1]
    early = (each for each in left if each.instant_ms <= effective[each.revision][0])
    return wrong + [f"{each} lies before its revision" for each in early]


def _stopped(cluster: Cluster) -> set[str]:
    """The revisions that a stop has ended."""
    newest: dict[str, Schedule | None] = {}
    revisions = set()
    for name, schedule, _ in cluster.changes:
        former = newest.get(name)
        if schedule is None and former is not None:
            revisions.add(former.revision)
        newest[name] = schedule
    return revisions


def effective_of(cluster: Cluster) -> dict[str, tuple[int, int]]:
    """When each revision was in effect."""
    spans: dict[str, tuple[int, int]] = {}
    present: dict[str, Schedule | None] = {}
    for name, schedule, at_ms in cluster.changes:
        former = present.get(name)
        if former is not None:
            spans[former.revision] = (spans[former.revision][0], at_ms)
        present[name] = schedule
        if schedule is not None:
            spans[schedule.revision] = (at_ms, 1 << 60)
    return spans
