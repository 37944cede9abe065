"""Background threads whose errors are never lost.

duewheel's own threads are `Worker`s: daemons, so that no process waits for them at its end. (Only
the pools of `doctor` and of the jars' download are none; they hand their errors to the caller.)
An error of a worker is logged with its stack and counted (metric `thread_failures`). Then either
the thread ends, and `require_alive` raises the error in the loop that depends on it, or the work
starts again after a pause. `watch_libraries` does so with errors of threads that libraries
start.

Log lines go to the standard library: the client runs workers where structlog is not installed.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future, as_completed
from functools import partial
from typing import TypeVar

from duewheel.errors import DuewheelError

S = TypeVar("S")
T = TypeVar("T")

log = logging.getLogger(__name__)

LIBRARY = "library"  # for all threads that libraries start: their names are numbered

failures: Counter[str] = Counter()  # of this process, by the thread's name


class Worker(threading.Thread):
    """A daemon thread that reports the error which ends its work."""

    def __init__(
        self, name: str, work: Callable[[], object], *, again_after_s: float | None = None
    ) -> None:
        """`name` is in logs and metrics. After an error `work` starts again, so many seconds later;
        without `again_after_s` the thread ends.
        """
        super().__init__(name=name, daemon=True)
        self._work = work
        self._again_after_s = again_after_s
        self.ending = threading.Event()  # work that runs until `end` looks at this
        self._error: BaseException | None = None

    def run(self) -> None:
        """Runs the work of the thread."""
        while True:
            try:
                self._work()
            except BaseException as error:  # noqa: BLE001 - logged, and raised by require_alive
                _failed(self.name, error)
                if self._again_after_s is None:
                    self._error = error
                    return
                if not self.ending.wait(self._again_after_s):
                    continue
            return

    def end(self) -> None:
        """Waits for the end, without a restart; `work` returns because of `ending`, or the caller
        has made it return.
        """
        self.ending.set()
        if self.ident is not None:
            self.join()

    def require_alive(self) -> None:
        """Raises the error that ended the thread, if any.

        Raises:
            DuewheelError: naming the thread and the error.
        """
        if self._error is not None:
            raise DuewheelError(f"thread {self.name} has ended: {self._error!r}") from self._error


def beside(name: str, call: Callable[[], T]) -> Future[T]:
    """Runs a call in a thread of its own, and returns its result or error once it has ended."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(call())
        except BaseException as error:  # noqa: BLE001 - handed on to the caller
            future.set_exception(error)

    Worker(name, run).start()
    return future


def each_beside(
    name: str,
    call: Callable[[S], T],
    items: Sequence[S],
    at_a_time: int,
    is_enough: Callable[[T], bool] = lambda _: False,
) -> list[T]:
    """Calls it for each item, some at a time, in threads of their own; returns the results. One
    that is enough is returned alone, without a wait for the others.
    """
    results: list[T] = []
    for first in range(0, len(items), at_a_time):
        part = [beside(name, partial(call, item)) for item in items[first : first + at_a_time]]
        for each in as_completed(part):
            if is_enough(each.result()):
                return [each.result()]
        results += [each.result() for each in part]
    return results


def watch_libraries() -> None:
    """From now on logs and counts an error that ends any other thread of this process."""

    def log_failure(args: threading.ExceptHookArgs) -> None:
        if args.exc_value is not None and not isinstance(args.exc_value, SystemExit):
            _failed(LIBRARY, args.exc_value)

    threading.excepthook = log_failure


def _failed(name: str, error: BaseException) -> None:
    failures[name] += 1
    log.error("an error has ended the work of thread %s", name, exc_info=error)
