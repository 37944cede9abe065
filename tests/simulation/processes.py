"""The processes of a simulation, and the instances that they form."""

from __future__ import annotations

from dataclasses import dataclass

from tests.simulation.seam import Actor
from tests.simulation.spark_model import Query

from duewheel.runtime.checkpointer import DurableCheckpoints
from duewheel.streaming.batch_taker import BatchTaker
from duewheel.wheel.append.engine import Engine
from duewheel.wheel.dequeue.lifecycle import Dequeue
from duewheel.wheel.dequeue.standby import Follower, Verdict
from duewheel.wheel.storage.data_directory import DataDirectory


@dataclass
class Ingest:
    """The ingest process, as far as it has come."""

    actor: Actor
    directory: DataDirectory
    engine: Engine | None = None
    taker: BatchTaker | None = None
    query: Query | None = None
    durable: DurableCheckpoints | None = None
    waits: int = 0


@dataclass
class Shop:
    """The dequeue process.

    Attributes:
        ingest: the one beside it, once another instance has followed both.
        deals: how often the partitions had been dealt when it started.
    """

    actor: Actor
    directory: DataDirectory
    dequeue: Dequeue
    deals: int
    ingest: Ingest | None = None

    def tick(self) -> bool:
        """A turn of its loop; returns whether it has done anything."""
        return self.dequeue.tick()


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
