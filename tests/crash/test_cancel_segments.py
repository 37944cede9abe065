"""kill -9 of the real dequeue around the unlinking of a segment of the cancel log.

A segment goes once all in it is over and one of a later hour is there. So the shard begins two
hours ago, and the clock of its dequeue jumps to now.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from tests.crash.fault_shard import (
    CLOCK,
    COLLECT_CANCELS,
    PRECISION_MS,
    durable_slot,
    hours,
    mirrored_slot,
)
from tests.crash.wrong_shard import WrongShard
from tests.harness.shared_broker import SharedBroker

from duewheel.wheel.slots import HOUR_MS

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.crash_matrix,
    pytest.mark.timeout(600),
    pytest.mark.usefixtures("java"),
]


ABSOLUTE = 4  # the first ones of a load, with due times; delays count from the brokers' clock


class PastShard(WrongShard):
    """Dequeue lags by some hours, and looks for garbage all the time.

    Attributes:
        behind: how many hours.
    """

    behind = 0

    def always(self, name: str) -> list[str]:
        return [*super().always(name), "--collect-often"]

    @property
    def now_ms(self) -> int:
        return CLOCK.now_ms() - self.behind * HOUR_MS

    def come_to(self, behind: int) -> None:
        """An hour or more passes."""
        self.behind = behind
        self.step_to(-behind * HOUR_MS)

    def settle(self) -> None:
        """Until all is delivered that is due, durably, and dequeue has looked for garbage since."""
        slot = self.now_ms // PRECISION_MS
        self.wait(lambda: min(mirrored_slot(self), durable_slot(self)) > slot)

    def all_told(self) -> None:
        """Timers that are due by dequeue's clock, and cancels of them, until these are answered."""
        self.send(ABSOLUTE, now_ms=self.now_ms)
        self.wait(lambda: len(self.answers) == len(self.requests))
        self.judge()


@pytest.fixture
def shard(broker: SharedBroker, tmp_path: Path) -> Iterator[PastShard]:
    name = f"segments-{CLOCK.now_ms()}"
    shard = PastShard(tmp_path, broker.bootstrap_servers, name, slots=300_000, margin="5m")
    with closing(shard):
        yield shard


def test_dequeue_killed_around_the_unlinking_of_a_segment(shard: PastShard) -> None:
    over, *others = COLLECT_CANCELS
    shard.come_to(2)
    shard.init()
    for name in ("dequeue", "ingest"):
        shard.start(name)
    shard.all_told()
    (first,) = hours(shard, "cancels")
    shard.kill("dequeue")
    shard.come_to(0)
    shard.start("dequeue", over)
    shard.settle()
    shard.send()
    shard.dies_at(over)
    left = [[first in hours(shard, folder) for folder in ("cancels", "requests")]]
    for point in others:
        shard.die_at(point)
        left.append([first in hours(shard, folder) for folder in ("cancels", "requests")])
    assert left == [[True, True], [True, True], [False, True], [False, False]]
    shard.start("dequeue")
    shard.send()
    shard.judge_all()
