"""Puts the seam in place where the product gives no parameter for it.

- The wheel's entries, which are linked by `TimerWheel.apply`, and the marks of cancelled records:
  they are stored by numpy. Between the lookup of timers for cancels and engine.lock there is no
  store: what may come between is planned as one.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
from tests.simulation.seam import SEAM

from duewheel.checkpoints.commit_and_close import Close
from duewheel.checkpoints.progress import Progress
from duewheel.checkpoints.state_file import State
from duewheel.schemas.arrays import Bool, Int64
from duewheel.schemas.batches import TimerBatch
from duewheel.wheel.append import placement
from duewheel.wheel.append.cancel_lookup import CancelLookup
from duewheel.wheel.storage.timer_log import TimerLog
from duewheel.wheel.storage.timer_wheel import Runs, TimerWheel


def install() -> None:
    """Put the seam in place, for the rest of this Python process."""
    _watch_maps()
    _watch_placing()
    _watch_cancels()


def _watch_maps() -> None:
    apply = TimerWheel.apply

    def watched_apply(self: TimerWheel, runs: Runs, batch: int) -> None:
        def some() -> None:
            apply(self, runs.where(_some_of(len(runs))), batch)

        SEAM.applied(self.path.parent, runs)
        SEAM.store(SEAM.actor, "wheel", some, fails=False)
        apply(self, runs, batch)

    def watched_rebuilding(original: Callable[..., None]) -> Callable[..., None]:
        def call(self: TimerWheel, *args: Any) -> None:
            SEAM.store(SEAM.actor, "wheel", fails=False)
            original(self, *args)

        return call

    link, set_linked = TimerWheel.link, State.set_linked

    def watched_link(self: TimerWheel, runs: Runs, batch: int) -> None:
        def some() -> None:
            link(self, runs.where(_some_of(len(runs))), batch)

        SEAM.linked(len(runs))
        SEAM.store(SEAM.actor, "wheel", some, fails=False)
        link(self, runs, batch)

    def watched_set_linked(self: State, slot: int) -> None:
        SEAM.store(SEAM.actor, "page", fails=False)
        set_linked(self, slot)

    TimerWheel.apply = watched_apply  # type: ignore[method-assign]
    TimerWheel.link = watched_link  # type: ignore[method-assign]
    TimerWheel.clear = watched_rebuilding(TimerWheel.clear)  # type: ignore[method-assign]
    State.set_linked = watched_set_linked  # type: ignore[method-assign]


def _watch_placing() -> None:
    place_replayed = placement.place_replayed

    def watched(batch: TimerBatch, slot: Int64, close: Close, progress: Progress) -> Any:
        pending, slots = place_replayed(batch, slot, close, progress)
        SEAM.place_replayed(batch, slots, close)
        return pending, slots

    _replace_everywhere(place_replayed, watched)


def _watch_cancels() -> None:
    mark_cancelled, find = TimerLog.mark_cancelled, CancelLookup.find

    def watched_marks(
        self: TimerLog, hour: int, log_bytes: int, positions: Int64, *, alone: bool = False
    ) -> None:
        def some() -> None:
            mark_cancelled(self, hour, log_bytes, positions[_some_of(len(positions))], alone=alone)

        SEAM.store(SEAM.actor, "mark", some, fails=False)
        mark_cancelled(self, hour, log_bytes, positions, alone=alone)

    def watched_find(self: CancelLookup, *args: Any) -> Any:
        found = find(self, *args)
        SEAM.store(SEAM.actor, "look up", fails=False)
        return found

    TimerLog.mark_cancelled = watched_marks  # type: ignore[method-assign]
    CancelLookup.find = watched_find  # type: ignore[assignment,method-assign]


def _some_of(count: int) -> Bool:
    return np.array([SEAM.rng.random() < 0.5 for _ in range(count)], np.bool_)


def _replace_everywhere(original: Any, replacement: Any) -> None:
    """Also where it was imported by name."""
    for name, module in list(sys.modules.items()):
        if name.startswith("duewheel"):
            for attribute, value in list(vars(module).items()):
                if value is original:
                    setattr(module, attribute, replacement)
