"""One schedule that fails, over the model of Kafka in tests/simulation/recurring.py."""

from __future__ import annotations

import random
from collections.abc import Collection

import pytest
from tests.simulation.recurring import Cluster, ModelStore

from duewheel.errors import ConfigError, PublishDoubt
from duewheel.recurring.schedule import Schedule
from duewheel.recurring.scheduler import ScheduleCommit, Scheduler
from duewheel.testing import ManualClock

GOOD = [Schedule(name, "r1", "timers", "orders", interval_ms=5_000) for name in ("a", "b")]
BAD = Schedule("bad", "r1", "missing", "orders", interval_ms=5_000)


class Picky(ModelStore):
    """Never killed; refuses the schedule `bad`, as Kafka would."""

    def __init__(self, cluster: Cluster, *, at_once: bool) -> None:
        super().__init__(cluster)
        self.at_once = at_once

    def partition(self, schedule: Schedule) -> int:
        if self.at_once and schedule.name == "bad":
            raise ConfigError("there is no timer topic 'missing'")
        return 0

    def write(self, written: Collection[ScheduleCommit]) -> None:
        if any(each.name == "bad" and each.firings for each in written):
            raise PublishDoubt("refused")
        super().write(written)


class Calm(random.Random):
    """No misfortune."""

    def random(self) -> float:
        return 0.5


@pytest.mark.parametrize("at_once", [True, False], ids=["no topic", "refused by the broker"])
def test_a_schedule_that_cannot_be_written_delays_no_other(at_once: bool) -> None:
    clock = ManualClock()
    cluster = Cluster(clock, Calm())
    for schedule in (BAD, *GOOD):
        cluster.change(schedule.name, schedule)
    scheduler = Scheduler(Picky(cluster, at_once=at_once), clock)
    scheduler.open()
    end_ms = clock.now_ms() + 300_000
    while clock.now_ms() < end_ms:
        try:
            scheduler.turn()
        except PublishDoubt:
            scheduler.open()
        clock.sleep(0.5)
        cluster.move()
    for schedule in GOOD:
        left = [each for each in cluster.firings if each.name == schedule.name]
        times = [each.instant_ms for each in left if each.state == "left"]
        assert len(times) == 60
        assert all(each.left_ms - each.instant_ms <= 500 for each in left if each.left_ms)
    assert not any(each.name == "bad" for each in cluster.firings)
