"""Appends one batch in a thread while Spark's tasks read the next.

`put` waits for the batch before, and returns while its own is appended. Spark takes a batch as
finished when `put` returns, so a kill leaves Spark's checkpoint ahead of the engine's marks; the
next start then reads from the marks (spark_checkpoint.py). An error stays: it is raised by every
later `put`, because the batches after the failed one must not be appended.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from duewheel.threads import Worker

BATCHES_IN_MEMORY = 2  # one is appended, the next is read or waits in `put`


class StoppedWaitingError(Exception):
    """A stop request ended a wait of the sink; the batch is read again."""


class BackgroundAppend:
    """Runs one job at a time, in the order of `put`. One thread puts; any may end or ask."""

    def __init__(self) -> None:
        self.error: BaseException | None = None  # of the last job, if it failed
        self._worker: Worker | None = None
        self._job: Callable[[], None] | None = None
        self._lock = threading.Lock()
        self._has_ended = False

    @property
    def is_busy(self) -> bool:
        return self._worker is not None and self._worker.is_alive()

    def put(self, job: Callable[[], None]) -> None:
        """Starts the job after the one before.

        Raises:
            StoppedWaitingError: `end` was called meanwhile; this one does not run.
            BaseException: the error of the job before; this one does not run.
        """
        self._join()
        if self.error is not None:
            raise self.error
        with self._lock:
            if self._has_ended:
                raise StoppedWaitingError("stopped before the batch was appended")
            self._job = job
            worker = Worker("append", self._run)
            worker.start()  # may fail: a wait for a thread that has not started would never end
            self._worker = worker

    def end(self) -> None:
        """Waits for the job, and prevents further ones; then see `error`."""
        with self._lock:
            self._has_ended = True
        self._join()

    def reset(self) -> None:
        """Clears the error and the end, while no job runs."""
        assert not self.is_busy, "its batch would be appended beside the next"
        self.error = None
        self._has_ended = False

    def _join(self) -> None:
        if self._worker is not None:
            self._worker.join()

    def _run(self) -> None:
        assert self._job is not None
        try:
            self._job()
        except BaseException as error:  # noqa: BLE001 - raised by put
            self.error = error
        finally:
            self._job = None  # it holds the batch
