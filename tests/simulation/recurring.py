"""Recurring schedules under kills: the real scheduler over a model of Kafka and of the shard.

The model has what the scheduler relies on: transactions that are fenced, that fail before or after
their commit, or end with their process; replies to cancels that come late, or never to a killed
process; and firings that leave at their instant, or later while the shard stands still. Users set,
pause, resume and stop. `judged` finds a firing that left twice, early or by a revision that was not
in effect, and one that never left.
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
    cancels: list[tuple[int, str, int, Future[frozenset[int]], list[int]]] = field(
        default_factory=list
    )
    owner: object = None
    shard_stands_until_ms: int = 0

    def change(self, name: str, schedule: Schedule | None) -> None:
        now_ms = self.clock.now_ms()
        if schedule is None:
            self.schedules.pop(name, None)
        else:
            schedule = self.schedules[name] = replace(schedule, since_ms=now_ms)
        self.changes.append((name, schedule, now_ms))

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


class ModelStore:
    """The Store of one process."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.taken = 0
        self.is_open = False

    def open(self) -> Table:
        self._maybe_killed(0.02)
        self.cluster.owner = self
        self.is_open = True
        self.taken = len(self.cluster.changes)
        return Table(dict(self.cluster.schedules), dict(self.cluster.positions))

    def changes(self) -> Iterator[tuple[str, Schedule | None, bool]]:
        if self.cluster.chance.random() < 0.7:
            new, self.taken = self.cluster.changes[self.taken :], len(self.cluster.changes)
            for name, schedule, _ in new:
                yield name, schedule, True

    def partition(self, schedule: Schedule) -> int:
        return 0

    def write(self, written: Collection[ScheduleCommit]) -> None:
        chance = self.cluster.chance
        self._maybe_killed(0.02)
        if self.cluster.owner is not self:
            raise Displaced("fenced")
        fate = chance.random()
        if fate < 0.03 or not self.is_open:
            self.is_open = False
            raise PublishDoubt("not committed")
        for each in written:
            if each.position is None:
                self.cluster.positions.pop(each.name)
            else:
                self.cluster.positions[each.name] = each.position
            for instant_ms, _ in each.firings:
                assert each.schedule
                timer = each.schedule.timer_id(instant_ms)
                revision = each.schedule.revision
                self.cluster.firings.append(Firing(each.name, revision, instant_ms, timer))
        self._maybe_killed(0.02)
        if fate > 0.97:
            self.is_open = False  # the producer is dropped
            raise PublishDoubt("committed, without an answer")

    def cancel(self, cancels: FiringCancels) -> Future[frozenset[int]]:
        self._maybe_killed(0.05)
        reply: Future[frozenset[int]] = Future()
        if self.cluster.chance.random() < 0.1:
            reply.set_exception(PublishDoubt("no reply in time"))
        else:
            at_ms = self.cluster.clock.now_ms() + self.cluster.chance.randint(0, 3_000)
            at_ms = max([at_ms, *(each[0] for each in self.cluster.cancels)])
            rest = [len(cancels.timers)]
            for instant_ms, _, timer in cancels.timers:
                self.cluster.cancels.append((at_ms, timer, instant_ms, reply, rest))
        self._maybe_killed(0.05)
        return reply

    def _maybe_killed(self, probability: float) -> None:
        if self.cluster.chance.random() < probability:
            raise Killed


@dataclass
class History:
    """One run.

    Attributes:
        cluster: what is left of it.
        covered: for each revision the spans of time in which the scheduler had applied it, and had
            all instants up to a minute ahead written.
    """

    cluster: Cluster
    live: Scheduler
    is_open: bool = False
    zombies: list[Scheduler] = field(default_factory=list)
    covered: dict[str, list[tuple[int, int]]] = field(default_factory=dict)

    def misfortune(self, revision: str) -> None:
        """Sometimes a change, a stop of the scheduler or the shard, or a second scheduler."""
        chance, clock = self.cluster.chance, self.cluster.clock
        if chance.random() < 0.03:
            _user(self.cluster, chance, revision)
        if chance.random() < 0.005:
            clock.sleep(chance.choice((5, 70, 200)))  # without a scheduler
        if chance.random() < 0.003:
            self.cluster.shard_stands_until_ms = clock.now_ms() + chance.randint(1, 90_000)
        if chance.random() < 0.01:  # another instance takes over, and this one lives on
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


def run(seed: int, minutes: int = 30) -> tuple[Cluster, dict[str, list[tuple[int, int]]]]:
    """A history, whose last minutes are quiet."""
    chance = random.Random(seed)
    clock = ManualClock(1_800_000_000_000 + chance.randrange(60_000))
    cluster = Cluster(clock, chance)
    history = History(cluster, _process(cluster))
    end_ms = clock.now_ms() + minutes * 60_000
    for number in itertools.count():
        if clock.now_ms() >= end_ms:
            break
        clock.sleep(chance.choice((0.05, 0.3, 1.0, 2.0)))
        cluster.move()
        if clock.now_ms() < end_ms - 5 * 60_000:
            history.misfortune(f"r{number}")
        history.turn()
    return cluster, history.covered


def _process(cluster: Cluster) -> Scheduler:
    return Scheduler(ModelStore(cluster), cluster.clock)


def _user(cluster: Cluster, chance: random.Random, revision: str) -> None:
    name = chance.choice(NAMES)
    present, now_ms = cluster.schedules.get(name), cluster.clock.now_ms()
    what = chance.choice(("set", "set", "pause", "resume", "resume", "stop"))
    if what == "set":
        new = Schedule(name, revision, "timers", "orders", cron=chance.choice(CRONS))
        if chance.random() < 0.3:
            new = replace(new, cron=None, interval_ms=chance.choice((1_000, 7_000, 90_000)))
            new = replace(new, start_ms=now_ms)
        cluster.change(name, replace(new, missed=chance.choice(MISSED)))
    elif present is not None and what == "stop":
        cluster.change(name, None)
    elif present is not None:
        cluster.change(name, replace(present, revision=revision, paused=what == "pause"))


def _cover(cluster: Cluster, live: Scheduler, covered: dict[str, list[tuple[int, int]]]) -> None:
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


def judged(cluster: Cluster, covered: dict[str, list[tuple[int, int]]]) -> list[str]:
    """What is wrong."""
    wrong = []
    left = [each for each in cluster.firings if each.state == "left"]
    twice = Counter((each.name, each.instant_ms) for each in left)
    wrong += [f"{what} has left {n} times" for what, n in twice.items() if n > 1]
    wrong += [f"{each} left early" for each in left if each.left_ms < each.instant_ms]
    effective = _effective(cluster)
    for each in left:
        since_ms, until_ms = effective[each.revision]
        if not since_ms < each.instant_ms:
            wrong.append(f"{each} lies before its revision")
        if each.instant_ms > until_ms + AHEAD_MS + STALL_MS:
            wrong.append(f"{each} lies far behind its revision")
    times = {(each.name, each.instant_ms) for each in left}
    schedules = {s.revision: s for _, s, _ in cluster.changes if s is not None}
    for revision, spans in covered.items():
        schedule = schedules[revision]
        until_ms = effective[revision][1]
        for begin_ms, end_ms in spans:
            # What is due shortly before a change may be cancelled with it while the shard lags.
            behind_ms = min(end_ms, until_ms - 100_000)
            due = itertools.takewhile(
                lambda at, end_ms=behind_ms: at <= end_ms,  # type: ignore[misc]
                schedule.instants().after(begin_ms),
            )
            wrong += [
                f"{schedule.name}@{at} of {revision} has not left"
                for at in due
                if (schedule.name, at) not in times
            ]
    if cluster.clock.now_ms() > cluster.shard_stands_until_ms + 120_000:
        for name, schedule in cluster.schedules.items():
            position = cluster.positions.get(name)
            if position is None or position.revision != schedule.revision:
                wrong.append(f"{name} never got to {schedule.revision}: {position}")
        wrong += [f"{n} was never ended" for n in cluster.positions.keys() - cluster.schedules]
    return wrong


def _effective(cluster: Cluster) -> dict[str, tuple[int, int]]:
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
