"""The parts that the shards of a simulation share: host, clock, disk, Kafka, and judges."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

from tests.simulation.clocks import WorldClock
from tests.simulation.copy_keys import CopyKeys
from tests.simulation.disk import Disk
from tests.simulation.history import History
from tests.simulation.kafka_model import Kafka, Partition
from tests.simulation.seam import Actor, Seam
from tests.simulation.stages import InTurn
from tests.simulation.watched_files import WatchedFileSystem
from tests.simulation.witness import Witness

from duewheel.checkpoints.commit_and_close_pages import Close
from duewheel.schemas.arrays import Int64
from duewheel.schemas.batches import TimerBatch
from duewheel.wheel.append.cancel_lookup import CancelLimits
from duewheel.wheel.dequeue.pipeline import Threads
from duewheel.wheel.dequeue_config import DequeueConfig
from duewheel.wheel.slots import WheelConfig
from duewheel.wheel.storage.runs import Runs

if TYPE_CHECKING:
    from tests.simulation.world import World


@dataclass(frozen=True)
class Setup:
    """What a shard is made of.

    Attributes:
        wheel: its geometry.
        config: of dequeue.
        partitions: of the timer topic, at first.
        rows_max: of one partition in one batch.
        cancel_limits: of ingest.
    """

    wheel: WheelConfig
    config: DequeueConfig
    partitions: int
    rows_max: int
    cancel_limits: CancelLimits = field(default_factory=CancelLimits)


@dataclass
class Chances:
    """What chance decides inside of steps; the scheduler sets it.

    Attributes:
        fate: of the next transaction.
        meanwhile: whether the other process gets a turn now.
        rival: makes another instance take a shard over now, perhaps.
        clock: sets the host's clock, perhaps.
    """

    fate: Callable[[], str] = lambda: "commit"
    meanwhile: Callable[[], bool] = lambda: False
    rival: Callable[[World], None] = lambda _: None
    clock: Callable[[], None] = lambda: None


@dataclass
class Host:
    """The surroundings of all shards; `rng` decides everything.

    Attributes:
        shards: those that there are, by their index.
        whole: no file has been changed behind everybody's back.
        dealing: whether `duewheel reshard` has begun something that it has not finished.
        threads: makes those of the pipeline of one dequeue.
        keys: of the MACs of copies.
    """

    root: Path
    setup: Setup
    rng: Random
    chances: Chances = field(default_factory=Chances)
    threads: Callable[[], Threads] = InTurn
    keys: CopyKeys = field(default_factory=lambda: CopyKeys(0))

    def __post_init__(self) -> None:
        config = self.setup.config
        self.shards: list[World] = []
        self.whole, self.dealing = True, False
        self.clock = WorldClock(self._slept, config.clock_skew_max_ms)
        self.history = History(self.setup.wheel, self.clock, config)
        partitions = [Partition(number) for number in range(self.setup.partitions)]
        self.disk = Disk(self.root)
        self.disk.clear()
        self.history.cancels.witness = self._witness
        self.seam = Seam(
            self.disk, self.rng, self._meanwhile, self._applied, self._linked, self._put_back
        )
        self.kafka = Kafka(self.clock, self.history, partitions, self.seam.die)
        self.boot()

    def boot(self) -> None:
        """The host has another boot id from here on."""
        self.seam.boot_id = str(uuid.UUID(int=self.rng.getrandbits(128)))

    def files(self, actor: Actor | None) -> WatchedFileSystem:
        """As a process has them; None: as the simulation has."""
        return WatchedFileSystem(self.seam, actor)

    def end(self) -> None:
        """All processes end, without a word."""
        for shard in self.shards:
            shard.end()

    def unsettle(self, *, parted: bool | None = None) -> None:
        """Something has befallen the files of all shards."""
        for shard in self.shards:
            shard.unsettle(parted=parted)

    def end_forgotten(self) -> None:
        """Transactions of all shards that have run into their time-outs end."""
        for shard in self.shards:
            shard.shard.end_forgotten()

    def unserved(self) -> list[str]:
        """Data directories in which no process runs, nor is to."""
        served = {name for shard in self.shards for name in shard.served()}
        return sorted(path.name for path in self.root.iterdir() if path.name not in served)

    # ---- asked in the middle of steps ------------------------------------------------------

    def _slept(self) -> None:
        for shard in self.shards:
            shard.slept()

    def _meanwhile(self, actor: Actor) -> None:
        for shard in self.shards:
            if shard.is_busy(actor):
                shard.meanwhile(actor)

    def _applied(self, directory: Path, runs: Runs) -> None:
        for shard in self.shards:
            if directory == shard.path and len(runs):
                shard.takes(runs)

    def _put_back(self, batch: TimerBatch, slots: Int64, close: Close) -> None:
        self.shards[0].floors.place_replayed(batch, slots, close)

    def _linked(self, count: int) -> None:
        actor = self.seam.actor
        if actor is not None and not actor.name.startswith("ingest"):
            self.history.counts["linked later"] += count

    def _witness(self) -> Witness | None:
        """What the dequeue in whose turn this comes has on disk; None: nothing that proves."""
        if not self.whole:
            return None
        (found,) = (
            shop for shard in self.shards for shop in shard.shops() if shop.actor is self.seam.actor
        )
        directory, limits = found.directory, self.setup.cancel_limits
        return Witness.of(directory.path, directory.config, limits.settled_max)
