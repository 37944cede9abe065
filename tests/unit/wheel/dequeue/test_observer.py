"""An observer hears of a transaction once it is certainly committed: once, and of no other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tests.harness.local_world import LocalWorld, timer
from tests.harness.publishers import RecordingPublisher

from duewheel.checkpoints.process_role import Role
from duewheel.checkpoints.progress import Progress
from duewheel.testing import ManualClock
from duewheel.wheel.encoded import NO_ROWS, Aside, Encoded, Writes
from duewheel.wheel.publisher_protocol import Prepared


class HeardPublisher(RecordingPublisher):
    """Numbers the encodings; an observer notes those that it hears of."""

    def __init__(self, clock: ManualClock, fate: Callable[[], str] = lambda: "commit") -> None:
        super().__init__(clock, fate)
        self.encodings = 0
        self.heard: list[int] = []

    def renew(self, prepared: Prepared, progress: Progress) -> Prepared:
        self.encodings += 1
        number = self.encodings
        empty = Encoded([], Writes(NO_ROWS, NO_ROWS), Aside(), {}, frozenset(), b"", 0)
        heard = replace(empty, on_commit=lambda _: self.heard.append(number))
        return Prepared(prepared.deliveries, heard)


@pytest.mark.parametrize(
    ("fates", "heard"),
    [
        (["commit"], [1]),
        (["lose", "commit"], [2]),
        (["lose", "lose", "doubt"], [3]),
        (["doubt"], [1]),
    ],
)
def test_a_committed_transaction_is_heard_of_once(
    tmp_path: Path, fates: list[str], heard: list[int]
) -> None:
    world = LocalWorld(tmp_path, publisher=HeardPublisher)
    publisher = world.publisher
    assert isinstance(publisher, HeardPublisher)
    world.append(timer(0, 0, 1), timer(0, 1, 50))
    left = iter(fates)
    publisher.fate = lambda: next(left, "commit")
    world.at_slot(1)
    assert (publisher.heard, world.sources()) == (heard, ["timers-0@0"])
    world.restart(Role.DEQUEUE)  # commits progress alone
    assert publisher.heard == heard
    world.at_slot(50)
    assert publisher.heard == [*heard, heard[-1] + 1]
