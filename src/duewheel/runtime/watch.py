"""A thread that follows something in Kafka while the dequeue process runs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Self

from duewheel.threads import Worker

_STOP_S = 1.0  # a thread that does not end by then has no resource that others need


class Watch(ABC):
    """Runs `_run` in a thread, for the length of a with block."""

    def __init__(self, name: str, again_after_s: float) -> None:
        """Nothing runs yet. `name` is in logs; after an error `_run` begins again, so many seconds
        later.
        """
        self._thread = Worker(name, self._run, again_after_s=again_after_s)
        self._stop = self._thread.ending

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(_STOP_S)

    @abstractmethod
    def _run(self) -> None:
        """Works until `_stop` is set."""
