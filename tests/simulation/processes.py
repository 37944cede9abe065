"""What a simulation knows of each process, and which of them make an instance."""

from __future__ import annotations

from dataclasses import dataclass

from tests.simulation.seam import SEAM, Actor
from tests.simulation.spark_model import Query
from tests.simulation.witness import Closings

from duewheel.checkpoints.progress import Progress
from duewheel.durability import DurableCheckpoints
from duewheel.errors import CorruptFile
from duewheel.streaming.sink import TimerSink
from duewheel.wheel.data_directory import DataDirectory
from duewheel.wheel.dequeue import Dequeue
from duewheel.wheel.engine import Engine
from duewheel.wheel.following import Follower, Verdict


@dataclass
class Ingest:
    """The ingest process, as far as it has come."""

    actor: Actor
    directory: DataDirectory
    engine: Engine | None = None
    sink: TimerSink | None = None
    query: Query | None = None
    durable: DurableCheckpoints | None = None
    waits: int = 0


@dataclass
class Shop:
    """The dequeue process.

    Attributes:
        ingest: the one beside it, once another instance has followed both.
        cancels_max: how many there is room for.
        deals: how often the partitions had been dealt when it started.
        closings: those that it has made, from its start on.
    """

    actor: Actor
    directory: DataDirectory
    dequeue: Dequeue
    cancels_max: int
    deals: int
    ingest: Ingest | None = None
    closings: Closings | None = None

    @property
    def acts(self) -> bool:
        """Whether this is its turn."""
        return SEAM.actor is self.actor

    def begun(self, progress: Progress) -> None:
        """It has started, and claimed the shard with this progress."""
        close = self.directory.state.close()
        assert close is not None
        self.closings = Closings.begun(close, progress)

    def tick(self) -> bool:
        """A turn of its loop; returns whether it has done anything."""
        did = self.dequeue.tick()
        self.known()
        return did

    def known(self) -> Closings:
        """Its closings so far, the one in whose turn this comes included."""
        close = self.directory.state.close()
        assert self.closings is not None and close is not None
        self.closings.look(close, full=self._is_full())
        return self.closings

    def _is_full(self) -> bool:
        """Whether there is no room for more cancels, as far as can be seen."""
        state = self.directory.state
        try:
            there = state.commit().cancels_taken - state.cancels_over
        except CorruptFile:  # something has befallen the file
            return True
        return there >= self.cancels_max


@dataclass
class Following:
    """The follower's process of a standby."""

    actor: Actor
    directory: DataDirectory
    follower: Follower


@dataclass
class Standby:
    """An instance that follows the shard's owner; see standby.py.

    Attributes:
        name: of its data directory.
        follower, ingest: its processes, None while they do not run.
        verdict: why it is to take over, None as long as it is not.
    """

    name: str
    follower: Following | None = None
    ingest: Ingest | None = None
    verdict: Verdict | None = None

    def look(self) -> None:
        """The follower has a look at the progress."""
        if self.follower is not None:
            self.verdict = self.follower.follower.tick()


Process = Ingest | Shop | Following
