"""Recurring schedules as a source of timers: the real scheduler beside the shards of a simulation.

It writes firings into the simulated timer topic, under kills, doubts, rivals, and the host's clock;
its cancels are requests like any, answered by the real engine or not at all. recurring.py has the
processes and the users; here, their Cluster. What is judged:

    each instant of a schedule leaves once at most, and belongs to its revision
    with `missed = "all"`, each instant between two changes leaves, whatever has stood still

That none leaves early, and each as it was written, is the shards' own judgement (history.py).
"""

from __future__ import annotations

from collections.abc import Collection
from concurrent.futures import Future
from dataclasses import dataclass
from random import Random

from tests.simulation.cancel_judge import Request
from tests.simulation.clients import RECUR, TransactionalClient, partition_of
from tests.simulation.host import Host
from tests.simulation.recurring import (
    Cluster,
    Firing,
    Instances,
    effective_of,
    left_wrongly,
    missing_instants,
    user,
)
from tests.simulation.timers import TARGETS, TOPIC, Timer

from duewheel.api.due_time import DueTime
from duewheel.client.request_headers import timer_headers
from duewheel.errors import PublishDoubt
from duewheel.recurring.schedule import Missed, Schedule
from duewheel.recurring.scheduler import ScheduleCommit
from duewheel.recurring.steps import FiringCancels
from duewheel.schemas.header_names import Answer

_PATIENCE = 12  # looks for replies, then they count as lost
_REVISIONS_MAX = 10
_INTERVAL_MS_MIN = 10_000  # some firings a minute ahead, not sixty
_MISSED: tuple[Missed, ...] = ("all", "all", "one", "skip")


@dataclass
class _Awaited:
    """Cancels whose replies are awaited: instants, their requests, and how often it has looked."""

    reply: Future[frozenset[int]]
    requests: dict[int, Request]
    looks: int = 0


class ShardedCluster(Cluster):
    """The cluster of a simulation: firings are timers of its shards."""

    def __init__(self, host: Host, chance: Random) -> None:
        super().__init__(host.clock, chance)
        self._kafka, self._precision_ms = host.kafka, host.setup.wheel.precision_ms
        self.client = TransactionalClient(host.kafka, RECUR)
        self._by_source: dict[bytes, Firing] = {}
        self._awaited: list[_Awaited] = []
        self._written: list[tuple[Timer, Firing]] = []
        self.unproven: set[int] = (
            set()
        )  # instants that may have been cancelled, though nothing says so
        host.history.listeners.append(self._leaves)

    def drawn(self, name: str, revision: str) -> Schedule:
        """With intervals of some slots."""
        interval_ms = max(_INTERVAL_MS_MIN, self.chance.choice((1, 2, 5)) * self._precision_ms)
        return Schedule(
            name,
            revision,
            TOPIC,
            TARGETS[self.chance.randrange(2)],
            interval_ms=interval_ms,
            start_ms=self.clock.true_ms + self.chance.randint(0, interval_ms),
            value=name.encode(),
            headers=(("of", name.encode()),),
            missed=self.chance.choice(_MISSED),
        )

    def partition(self, schedule: Schedule) -> int:
        return partition_of(schedule.name.encode(), len(self._kafka.partitions))

    def begin(self, written: Collection[ScheduleCommit]) -> None:
        super().begin(written)
        self.client.begin()
        for each in self.open:
            self._write(each)

    def _write(self, each: ScheduleCommit) -> None:
        schedule = each.schedule
        for instant_ms, number in each.firings:
            assert schedule
            timer_id = schedule.timer_id(instant_ms)
            due = DueTime.of(instant_ms)
            headers = timer_headers(
                schedule.target, due, TOPIC, headers=schedule.headers, id=timer_id
            )
            timer = self.client.write(number, schedule.key, schedule.value, headers)
            firing = Firing(each.name, schedule.revision, instant_ms, timer_id)
            self._written.append((timer, firing))

    def finish(self, *, commit: bool) -> None:
        written, self._written = self._written, []
        if commit:
            self._by_source |= {timer.source: firing for timer, firing in written}
            self._kafka.history.counts["firings"] += len(written)
        self.client.finish(commit=commit)
        super().finish(commit=commit)

    def fired(self, each: ScheduleCommit) -> None:
        """They are in `_by_source` already."""

    def _leaves(self, timer: Timer, _headers: bytes) -> None:
        firing = self._by_source.get(timer.source)
        if firing is not None:
            firing.state = "left"
            self.firings.append(firing)

    def request(self, cancels: FiringCancels, reply: Future[frozenset[int]]) -> None:
        judge = self._kafka.history.cancels
        requests = {
            instant_ms: judge.request(self.client.cancel(number, timer_id.encode()).source)
            for instant_ms, number, timer_id in cancels.timers
        }
        self._kafka.history.counts["firings cancelled"] += len(requests)
        # A stop cancels what is due, too, if its shard is behind.
        names = {timer_id.rpartition("@")[0] for _, _, timer_id in cancels.timers}
        if not names & self.schedules.keys():
            self.unproven |= requests.keys()
        self._awaited.append(_Awaited(reply, requests))

    def move(self) -> None:
        """Replies come, or never do."""
        for each in list(self._awaited):
            each.looks += 1
            requests = each.requests.values()
            if all(request.settled for request in requests):
                self._awaited.remove(each)
                self._answer(each)
            elif each.looks > _PATIENCE and not self.calm:
                self._awaited.remove(each)
                each.reply.set_exception(PublishDoubt("no reply in time"))

    def _answer(self, each: _Awaited) -> None:
        if not all(request.replied for request in each.requests.values()):
            each.reply.set_exception(PublishDoubt("a reply is a dead letter"))
            return
        words = {at: request.word for at, request in each.requests.items()}
        self.unproven |= {at for at, word in words.items() if word is Answer.UNKNOWN}
        each.reply.set_result(frozenset(at for at, w in words.items() if w is Answer.CANCELLED))

    @property
    def is_idle(self) -> bool:
        """Whether nothing is open or awaited, and no schedule is left."""
        return not (self.schedules or self.positions or self._awaited or self.client.is_open)


class Firings:
    """The schedules of one run, their users and their schedulers."""

    def __init__(self, seed: int, host: Host) -> None:
        self._cluster = ShardedCluster(host, Random(f"schedules {seed}"))
        self._instances = Instances.of(self._cluster)
        self._revisions = 0

    def befall(self) -> None:
        """Between two steps of the shards."""
        cluster, chance = self._cluster, self._cluster.chance
        if self._revisions < _REVISIONS_MAX and cluster.happens(0.15):
            self._revisions += 1
            user(cluster, f"r{self._revisions}")
        if cluster.happens(0.02):
            self._instances.take_over()
        if chance.random() < 0.6:
            self.turn()

    def turn(self) -> None:
        """A turn of all schedulers."""
        if self._cluster.client.end_forgotten():
            self._cluster.finish(commit=False)
        self._cluster.move()
        self._instances.turn()

    def quiet_down(self) -> None:
        """No more befalls them, and all schedules end."""
        self._cluster.calm = True
        for name in list(self._cluster.schedules):
            self._cluster.change(name, None)

    @property
    def is_idle(self) -> bool:
        """Whether nothing is left to do."""
        return self._cluster.is_idle

    def judge(self) -> list[str]:
        """What is wrong."""
        cluster, effective = self._cluster, effective_of(self._cluster)
        left = {(each.name, each.instant_ms) for each in cluster.firings}
        wrong = left_wrongly(cluster.firings, effective)
        schedules = {s.revision: s for _, s, _ in cluster.changes if s is not None}
        for revision, spans in self._instances.covered.items():
            schedule, (since_ms, until_ms) = schedules[revision], effective[revision]
            if schedule.missed != "all":
                continue
            end_ms = min(until_ms, max(end for _, end in spans))
            wrong += [
                f"{schedule.name}@{at} of {revision} has not left"
                for at in missing_instants(schedule, since_ms, end_ms, left)
                if at not in cluster.unproven
            ]
        return wrong
