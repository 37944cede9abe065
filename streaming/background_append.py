"""Appends one batch in a thread while Spark fetches the next.

`put` waits for the batch before, and returns while its own is appended: there are never more than
two batches in memory. Spark takes a batch as finished when `put` returns, so a kill leaves Spark's
checkpoint ahead of the engine's marks; the next start then reads from the marks
(spark_checkpoint.py). An error stays: it is raised by every later `put` and `drain`, because the
batches behind the failed one must not be appended.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from duewheel.threads import Worker


class BackgroundAppend:
    """Runs one job at a time, in the order of `put`. One thread puts; any may drain or ask.

    Attributes:
        error: what the last job raised, if it failed.
    """

    def __init__(self) -> None:
        self.error: BaseException | None = None
        self._worker: Worker | None = None

    @property
    def is_busy(self) -> bool:
        """Whether a job runs."""
        return self._worker is not None and self._worker.is_alive()

    def put(self, job: Callable[[], None]) -> None:
        """Start the job behind the one before.

        Raises:
            BaseException: what that one raised; this one does not run.
        """
        self.drain()
        self._worker = Worker("append", partial(self._run, job))
        self._worker.start()

    def drain(self) -> None:
        """Wait for the job.

        Raises:
            BaseException: what it raised.
        """
        if self._worker is not None:
            self._worker.join()
        if self.error is not None:
            raise self.error

    def reset(self) -> None:
        """Forget the error; no job runs."""
        assert not self.is_busy, "its batch would be appended beside the next"
        self.error = None

    def _run(self, job: Callable[[], None]) -> None:
        try:
            job()
        except BaseException as error:  # noqa: BLE001 - raised by put and drain
            self.error = error
