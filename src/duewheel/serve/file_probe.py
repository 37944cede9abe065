"""Reads of the shard's files for the probes: a disk that hangs stops neither the event loop nor
another probe.

One thread at a time reads for a kind of probe, and its answer is for all requests that wait for it:
while the disk hangs there is one of each, however often a supervisor asks.

Mapped pages that are not in memory are an exception: the thread that waits for one keeps the
interpreter. Those of the file `state` are in memory while the shard's processes run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

from duewheel.threads import beside

T = TypeVar("T")

ANSWER_S = 0.8  # a kubelet waits for a second


class FileProbe(Generic[T]):
    """See the module's head. Used by the thread of the event loop alone."""

    def __init__(self, read: Callable[[], T]) -> None:
        self._read = read
        self._running: asyncio.Future[T] | None = None

    async def __call__(self) -> T:
        """Reads, or joins the read that runs.

        Raises:
            TimeoutError: it has not ended in time, and continues.
        """
        if self._running is None or self._running.done():
            self._running = asyncio.wrap_future(beside("probe", self._read))
        running = self._running
        await asyncio.wait({running}, timeout=ANSWER_S)
        if not running.done():
            raise TimeoutError(f"the files were not read within {ANSWER_S:g} s: the disk hangs")
        return running.result()
