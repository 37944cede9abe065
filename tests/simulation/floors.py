"""Checks invariant 7 in one directory's files: a closed slot stays closed, and takes no rows.

The floor never falls, except in a recovery, which begins a new count at R or above. A closed slot
takes timers only in the catch-up after a recovery: rows that it had when it was closed (they lie
below C), and never below R + 1.
"""

from __future__ import annotations

import numpy as np
from tests.simulation.history import History

from duewheel.checkpoints.commit_and_close_pages import Close
from duewheel.checkpoints.state_file import State
from duewheel.schemas.arrays import Int64
from duewheel.schemas.batches import TimerBatch


class FloorWatch:
    """Looks after every step, and at everything that the wheel takes."""

    def __init__(self, history: History) -> None:
        self._history = history
        self.forget()

    def forget(self) -> None:
        """The files are other ones from here on."""
        self._floor: int | None = None
        self._recovered = -1
        self._catches_up = False

    def look(self, state: State, owned: int | None) -> None:
        """After a step of a process.

        Args:
            state: of the directory.
            owned: R of the newest progress, if this directory is known to have written it.
        """
        if state.needs_recovery:
            return
        close, commit = state.close(), state.commit()
        if close is None:
            return
        if state.recovered != self._recovered:
            self._recovered, self._floor = state.recovered, None
        if self._floor is not None and close.floor < self._floor:
            self._history.violated("7 floor", f"falls from {self._floor} to {close.floor}")
        if owned is not None and close.floor < owned:
            self._history.violated("7 floor", f"{close.floor} is below R = {owned}")
        self._floor = close.floor
        if commit.applied:
            self._catches_up = any(commit.marks.get(p, 0) < c for p, c in close.marks.items())

    def place_replayed(self, batch: TimerBatch, slots: Int64, close: Close) -> None:
        """Rows of a catch-up have got their slots."""
        c = np.array([close.marks.get(p, 0) for p in batch.partitions], np.int64)[batch.partition]
        new = slots[batch.offset >= c]
        if len(new) and new.min() <= close.floor:
            self._history.violated("7 floor", f"slot {new.min()} is closed, and takes new timers")

    def takes(self, slot: int, delivered: int) -> None:
        """The wheel takes a timer.

        Args:
            slot: where.
            delivered: R in Kafka.
        """
        if self._floor is None or slot > self._floor:
            return
        if not self._catches_up:
            self._history.violated("7 floor", f"slot {slot} is closed, and takes timers")
        elif slot <= delivered:
            self._history.violated("7 floor", f"slot {slot} is delivered, and takes timers")
