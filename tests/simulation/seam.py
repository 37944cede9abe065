"""The seam between the code and the operating system, where processes die and disks fail.

Every store that the code makes below the simulated folder passes through here: writes, cuts,
renames, unlinks, syncs, assignments to mapped pages, entries of the wheel. A process of the
simulation is an *actor*; before each of its stores something may happen that was planned for it:

    die        the store is not made, or half of it; every later store of this actor fails likewise,
               so that nothing that runs while the stack unwinds leaves a trace
    power      the same, for the whole host
    meanwhile  the other process does something, as if it had been scheduled just now

Or the disk refuses it. watched_files.py brings stores to files here, watched_parts.py those that
numpy makes to mapped memory.
"""

from __future__ import annotations

import errno
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import NoReturn

from tests.simulation.disk import Disk

from duewheel.checkpoints.commit_and_close_pages import Close
from duewheel.schemas.arrays import Int64
from duewheel.schemas.batches import TimerBatch
from duewheel.wheel.storage.runs import Runs
from duewheel.wheel.storage.timelines.timeline import Timeline

DISK_FULL, BAD_DISK = errno.ENOSPC, errno.EIO


# (kind of store, which of them, counted from 1 in each step) → "kill", "power" or "meanwhile".
# Kinds: make, write, cut, sync, name, unlink, page, wheel, look up, mark; "any" is each of them.
Plan = Mapping[tuple[str, int], str]


class Killed(BaseException):
    """The process that did this does nothing any more."""


class PowerLost(BaseException):
    """The host stops."""


@dataclass(eq=False)
class Actor:
    """A process as the seam knows it.

    Attributes:
        name: "ingest" or "dequeue".
        dead: it may make no more stores.
        fds: its open descriptors below the folder, and their paths.
        timelines: its opened ones.
        plan: what happens in its present step, and before which store.
        stores: how many it has made in this step, by kind.
    """

    name: str
    dead: bool = False
    fds: dict[int, Path] = field(default_factory=dict)
    timelines: list[Timeline] = field(default_factory=list)
    plan: Plan = field(default_factory=dict)
    stores: Counter[str] = field(default_factory=Counter)

    def planned(self, plan: Plan) -> None:
        self.plan, self.stores = dict(plan), Counter()


@dataclass(eq=False)
class Seam:
    """The one seam of a host.

    Attributes:
        disk: whose files its processes have.
        rng: of the simulation.
        meanwhile: called for what is planned as such.
        applied: called when the wheel of a directory takes runs.
        linked: called when runs of many batches are linked.
        place_replayed: called when rows of a catch-up have got their slots.
        boot_id: of the host.
        actor: in whose step this comes; None: in the simulation's own.
        failing: the errno that stores get at present, 0 for none.
        failed: how many stores have got one.
    """

    disk: Disk
    rng: Random
    meanwhile: Callable[[Actor], None]
    applied: Callable[[Path, Runs], None]
    linked: Callable[[int], None]
    place_replayed: Callable[[TimerBatch, Int64, Close], None]
    boot_id: str = ""
    actor: Actor | None = None
    failing: int = 0
    failed: int = 0

    @contextmanager
    def acting(self, actor: Actor) -> Iterator[None]:
        """What happens within is the actor's doing."""
        before, self.actor = self.actor, actor
        try:
            yield
        finally:
            self.actor = before

    def store(
        self,
        actor: Actor,
        kind: str,
        half: Callable[[], object] | None = None,
        *,
        fails: bool = True,
    ) -> None:
        """Called before a store. `half` makes a part of it; `fails`: the disk may refuse it."""
        if actor.dead:
            raise Killed
        what = None
        for counted in (kind, "any"):
            actor.stores[counted] += 1
            what = what or actor.plan.get((counted, actor.stores[counted]))
        if what == "meanwhile":
            self.meanwhile(actor)
        elif what is not None:
            if half is not None and self.rng.random() < 0.5:
                half()
            actor.dead = True
            raise (PowerLost if what == "power" else Killed)
        if self.failing and fails and self.rng.random() < 0.5:
            self.failed += 1
            if half is not None and self.rng.random() < 0.5:
                half()
            raise OSError(self.failing, os.strerror(self.failing))

    def die(self) -> NoReturn:
        """Kill the actor here, between its stores."""
        assert self.actor is not None
        self.actor.dead = True
        raise Killed
