"""Many cancels become known, at a start or after a pause: the loop lives meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tests.unit.test_cancels import NOW_MS, P0, PRECISION_MS, World, cancel, timer

from duewheel.checkpoints.state import DEQUEUE
from duewheel.wheel import cancel_log, cancelling, lookups
from duewheel.wheel.data_directory import Role
from duewheel.wheel.dequeue import Dequeue

PORTIONS = 20
ROUND_MS = 5_000
BEATS_MS = 10_000  # between two beats: a round, and what the loop itself takes


class Watched:
    """A shard whose every cancel is a portion of its own, and whose rounds take 5 s each.

    Attributes:
        commits: when a progress was published, by boottime, and what it says of P0.
        rounds: when one was over.
    """

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.world = World(path, slots=100_000)
        self.commits: list[tuple[int, Any]] = []
        self.rounds: list[int] = []
        self._patch = monkeypatch

    def make_slow(self) -> None:
        world, patch = self.world, self._patch
        once, publish = lookups.Lookups._round, world.publisher.publish

        def slow(lookup: Any, *args: Any) -> Any:
            world.clock.set(world.clock.now_ms() + ROUND_MS)
            self.rounds.append(world.clock.boottime_ms())
            return once(lookup, *args)

        def noting(prepared: Any, progress: Any) -> Any:
            self.commits.append((world.clock.boottime_ms(), progress))
            return publish(prepared, progress)

        patch.setattr(cancelling, "LEARNT_AT_ONCE", 1)
        patch.setattr(cancel_log, "_RECORDS_AT_ONCE", 1)
        patch.setattr(lookups.Lookups, "_round", slow)
        patch.setattr(world.publisher, "publish", noting)

    def append_cancels(self, first: int) -> None:
        for n in range(first, first + PORTIONS):
            self.world.append(cancel(n, timer_id=b"nobody %d" % n))

    @property
    def loop(self) -> Dequeue:
        assert self.world.shard.dequeue is not None
        return self.world.shard.dequeue

    def longest_silence_ms(self, begun_ms: int) -> int:
        """Between two commits, from then until the last round."""
        told = [begun_ms, *(at for at, _ in self.commits if at <= self.rounds[-1]), self.rounds[-1]]
        return max(b - a for a, b in pairwise(told))


@pytest.fixture
def watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Watched:
    return Watched(tmp_path / "data", monkeypatch)


def behind_an_old_one(watched: Watched) -> None:
    """K waits for one old cancel; the later ones are over, and are learnt of at the next start."""
    world = watched.world
    world.append(timer(0, 60_000), cancel(1))
    world.at_slot(1)
    watched.append_cancels(2)
    world.at_slot(2)
    assert (world.known()[0], world.progress()[0]) == (1, 1)


def test_a_start_claims_the_shard_before_a_standby_takes_it_for_dead(watched: Watched) -> None:
    behind_an_old_one(watched)
    world, found = watched.world, watched.world.publisher.committed[-1][1]
    watched.make_slow()
    begun_ms = world.clock.boottime_ms()
    world.restart(Role.DEQUEUE)
    assert [at for at, _ in watched.commits] == [begun_ms], "before the first round"
    assert watched.commits[0][1].partitions == found.partitions
    while watched.loop.tick():
        assert watched.commits[-1][1].partitions == found.partitions, "nothing new is told yet"
    assert len(watched.rounds) >= PORTIONS
    assert watched.longest_silence_ms(begun_ms) <= world.config.take_over_after_ms / 2
    assert (world.known()[0], world.progress()[0]) == (1, 1)


def test_who_learns_of_cancels_beats_and_stops_when_told_to(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    behind_an_old_one(watched)
    watched.make_slow()
    watched.world.restart(Role.DEQUEUE)
    loop, beats = watched.loop, list[int]()
    beat = watched.world.shard.directory(Role.DEQUEUE).state.beat

    def beating(role: int, *args: Any) -> None:
        beats.append(watched.world.clock.boottime_ms())
        beat(role, *args)

    state = watched.world.shard.directory(Role.DEQUEUE).state
    monkeypatch.setattr(state, "beat", beating)
    monkeypatch.setattr(loop, "_stopping", lambda: len(watched.rounds) >= 3)
    loop.run()
    assert len(watched.rounds) == 3, "it does not learn of the others"
    assert max(b - a for a, b in pairwise(beats)) <= BEATS_MS


def test_a_closing_after_a_pause_is_no_silence(watched: Watched) -> None:
    """Of the timer nothing leaves, though its cancel is the last one that is learnt of."""
    world = watched.world
    state = world.shard.directory(Role.DEQUEUE).state
    state.pause(DEQUEUE, on=True)
    world.append(timer(0, 30))
    watched.append_cancels(1)
    world.append(cancel(PORTIONS + 1))
    watched.make_slow()
    world.clock.set(NOW_MS + 40 * PRECISION_MS)
    watched.loop.tick()
    state.pause(DEQUEUE, on=False)
    begun_ms, told = world.clock.boottime_ms(), world.publisher.committed[-1][1].partitions[P0]
    while len(watched.rounds) < PORTIONS:
        assert watched.loop.tick()
        assert world.publisher.committed[-1][1].partitions[P0] == told
    assert watched.longest_silence_ms(begun_ms) <= world.config.take_over_after_ms / 2
    for _ in range(2):  # the range, and the next closing
        world.drain()
        world.clock.sleep(1)
    assert world.sources() == []
    assert world.answers()[-1] == (f"timers-0@{PORTIONS + 1}", "cancelled")


def test_a_round_in_its_own_thread_does_not_stop_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[Callable[[], None]] = []

    class Thread(Executor):
        def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
            future: Future[Any] = Future()
            given.append(lambda: future.set_result(fn(*args, **kwargs)))
            return future

    monkeypatch.setattr(cancelling, "LEARNT_AT_ONCE", 1)
    monkeypatch.setattr(cancelling, "_WAIT_S", 0.001)
    world = World(tmp_path / "data", executor=Thread)
    world.append(timer(0, 5), cancel(1))
    world.clock.set(NOW_MS + 9 * PRECISION_MS)
    assert world.shard.dequeue is not None
    for _ in range(3):
        assert world.shard.dequeue.tick(), "the round goes on"
    given.pop()()
    world.drain()
    assert world.sources() == []
