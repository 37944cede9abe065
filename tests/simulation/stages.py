"""How the stages of dequeue's pipeline run: the same in each run of a seed.

InTurn      in the caller's thread: a stage does all of its work when it is started
Settled     in threads, behind bounded queues. Whenever the loop has got a chunk, it waits until
            each stage has ended or waits for a queue: stages run beside each other, and beside
            nothing that changes files
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from random import Random
from typing import Any

from duewheel.threads import Worker
from duewheel.wheel.dequeue.bounded_queue import BoundedQueue
from duewheel.wheel.dequeue.pipeline import Threads

_POLL_S = 0.0001


class InTurn(Threads):
    """Stages in the caller's turn, with room for a whole range between them."""

    def worker(self, name: str, work: Callable[[], object]) -> Worker:
        return _Now(name, work)

    def queue(self, records_max: int, bytes_max: int) -> BoundedQueue[Any]:
        return BoundedQueue(sys.maxsize, sys.maxsize)


class _Now(Worker):
    """No thread: its work is done when it is started."""

    def start(self) -> None:
        self.run()

    def join(self, timeout: float | None = None) -> None:
        pass


class Settled(Threads):
    """Stages in threads; see the module's head. Of one dequeue."""

    def __init__(self) -> None:
        self._stages: list[_Stage] = []

    def worker(self, name: str, work: Callable[[], object]) -> Worker:
        stage = _Stage(name, work)
        self._stages = [each for each in self._stages if each.is_alive() or not each.ident]
        self._stages.append(stage)
        return stage

    def queue(self, records_max: int, bytes_max: int) -> BoundedQueue[Any]:
        return _SettledQueue(records_max, bytes_max, self.settle)

    def settle(self) -> None:
        """Return once no stage can go on without the caller."""
        while not self._is_settled():
            time.sleep(_POLL_S)

    def _is_settled(self) -> bool:
        # Twice: one that ran while another was looked at may have let that one go on.
        waits = [each.waits for each in self._stages]
        twice = (*self._stages, *self._stages)
        return all(each.stands() for each in twice) and waits == [s.waits for s in self._stages]


class _Stage(Worker):
    """A stage's thread.

    Attributes:
        waits: how many waits have come to an end.
        waits_for: the condition that it waits for, and how long; None while it runs.
    """

    def __init__(self, name: str, work: Callable[[], object]) -> None:
        super().__init__(name, work)
        self.waits = 0
        self.waits_for: tuple[threading.Condition, Callable[[], object]] | None = None

    def stands(self) -> bool:
        """Whether it has ended, or waits for something that has not happened."""
        waits_for = self.waits_for
        if waits_for is None:
            return bool(self.ident) and not self.is_alive()
        condition, until = waits_for
        with condition:
            return self.waits_for is waits_for and not until()


class _SettledQueue(BoundedQueue[Any]):
    """A queue that knows who waits for it. The loop gets chunks of settled stages only."""

    def __init__(self, records_max: int, bytes_max: int, settle: Callable[[], None]) -> None:
        super().__init__(records_max, bytes_max)
        self._changed = _NotedCondition()
        self._settle = settle

    def get(self) -> Any:
        try:
            return super().get()
        finally:
            if not isinstance(threading.current_thread(), _Stage):
                self._settle()


class _NotedCondition(threading.Condition):
    """A condition that a stage is known to wait for."""

    def wait_for(self, predicate: Callable[[], Any], timeout: float | None = None) -> Any:
        stage = threading.current_thread()
        if not isinstance(stage, _Stage):
            return super().wait_for(predicate, timeout)
        stage.waits_for = self, predicate
        try:
            return super().wait_for(predicate, timeout)
        finally:
            stage.waits_for = None
            stage.waits += 1


def in_threads(seed: int) -> bool:
    """Whether the stages of a run have threads: a chance of its own."""
    return Random(f"threads {seed}").random() < 0.1
