"""Looks up names of targets in a thread, while transactions are published.

    the publisher's thread    owns the object: it adds names, starts requests, takes their answers
    the lookup's thread       sends requests; it reads the owner's caches, and changes nothing

One lookup runs at a time. The first `add` after its answers were taken starts the next one, with
the names that were added last. Names that are dropped, because too many wait or because a lookup
has failed or its client was closed, are not lost: their parked rows come again, and add them again.
So a backlog of names delays no newer ones, and is answered before its rows were parked often: each
time costs a copy. Until then the rows of a name wait (UNRESOLVED), unless its entry has just
expired.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from concurrent.futures import Future

from duewheel.kafka.topics.description import requests_of
from duewheel.threads import beside
from duewheel.wheel.target_rules import Target

_WAITING_MAX = 10_000  # names of one lookup, which takes a second or less
# The target of a name that waits. The topic may exist by now, so its rows wait, and become no dead
# letters. It has every partition, so that no row's partition is called missing.
UNRESOLVED = Target(2**31 - 1, 2**31 - 1, is_unknown=True)

Answers = dict[str, Target]


class BackgroundLookups:
    """The names that wait, and the lookup that runs. Not thread-safe: see the module's head."""

    def __init__(self) -> None:
        self._waiting: dict[str, None] = {}
        self._running: Future[Answers] | None = None

    def add(self, topics: Iterable[str], describe: Callable[[list[str]], Answers]) -> None:
        """Adds names, the first of them before others; starts a lookup unless one runs. Its
        thread calls `describe`.
        """
        newest_first = dict.fromkeys(itertools.chain(topics, self._waiting))
        self._waiting = dict.fromkeys(itertools.islice(newest_first, _WAITING_MAX))
        if self._running is None and self._waiting:
            names, self._waiting = list(self._waiting), {}
            self._running = beside("look up targets", lambda: _in_parts(names, describe))

    def take(self) -> Answers:
        """Takes the answers of a lookup that has ended; empty if none has."""
        if self._running is None or not self._running.done():
            return {}
        ended, self._running = self._running, None
        return ended.result() if ended.exception() is None else {}

    def forget(self) -> None:
        """Drops all names and the lookup: its client is closed."""
        self._waiting.clear()
        self._running = None


def _in_parts(names: list[str], describe: Callable[[list[str]], Answers]) -> Answers:
    answers = Answers()
    for part in requests_of(names):
        answers |= describe(part)
    return answers
