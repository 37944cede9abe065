"""One shard of the simulation: its two processes, and their faults (host.py has the host).

The processes are the real ones but for their shells: Engine, sink and durable checkpoints here,
Dequeue there, each in a DataDirectory of its own, over the same files. They run in this thread, one
step at a time; in the middle of a step another one's may come between (seam.py).

When an instance elsewhere takes the shard over, it is the shard from then on; the old dequeue
continues beside it until it is fenced.
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from tests.harness.timelines import FILE
from tests.simulation.floors import FloorWatch
from tests.simulation.host import Host, Setup
from tests.simulation.processes import Ingest, Process, Shop, Standby
from tests.simulation.seam import Actor, Killed, Plan
from tests.simulation.shard_model import Shard, SimulatedPublisher, offsets_at, offsets_of
from tests.simulation.sinks import parser_of, taker_of
from tests.simulation.spark_model import CHECKPOINT, Query
from tests.simulation.timers import TOPIC
from tests.simulation.watched_parts import WatchedDirectory, WatchedEngine

from duewheel.checkpoints.file_lock import ENGINE_LOCK, lock_is_held
from duewheel.checkpoints.local_state import dequeue_has_decided
from duewheel.checkpoints.process_role import Role
from duewheel.checkpoints.progress import NOBODY, Progress
from duewheel.checkpoints.reshard_records import is_unfinished_notice
from duewheel.checkpoints.state_file import State
from duewheel.errors import CorruptFile, Fenced, RecoveryRefused, SettingsChange
from duewheel.kafka.log.list_offsets_times import EARLIEST
from duewheel.runtime.checkpointer import DurableCheckpoints
from duewheel.streaming.background_append import StoppedWaitingError
from duewheel.streaming.spark_checkpoint import settle_checkpoint
from duewheel.wheel.dequeue.lifecycle import Dequeue
from duewheel.wheel.recovery.rebuild import apply_recovery
from duewheel.wheel.recovery.startup import first_progress
from duewheel.wheel.storage.creation import WHEEL_LOCK
from duewheel.wheel.storage.full_check import check
from duewheel.wheel.storage.runs import Runs

TOPIC_IDS = {TOPIC: "an id"}
# How a start is refused while partitions are reassigned, or by whom nobody has told.
_DEALT = (" is sealed", "there is no shard", "the progress was written as shard")
WAITS_MAX = 2  # of a batch that has to wait, before the query is stopped


@dataclass
class World:
    """The shard on its host.

    Attributes:
        shard: its index, and how many there are; what Kafka has of it.
        setup: settings with which processes start.
        name: of its data directory; there may be others.
        ingest, shop: its processes, None while they do not run.
        former: dequeues that another instance has followed and that have not found out. What ingest
            beside them takes meanwhile is theirs alone.
        standby: an instance that follows, None if there is none.
        parted: whether the directory may be another one than the newest progress tells of.
        settled: whether dequeue has looked at the files since something befell them.
        take_over: whether the operator says that no other instance runs.
        floors: of its directory.
    """

    host: Host
    shard: Shard
    setup: Setup
    name: str

    def __post_init__(self) -> None:
        host = self.host
        self.root, self.rng, self.chances = host.root, host.rng, host.chances
        self.clock, self.history = host.clock, host.history
        self.kafka, self.disk = host.kafka, host.disk
        self.ingest: Ingest | None = None
        self.shop: Shop | None = None
        self.former: list[Shop] = []
        self.standby: Standby | None = None
        self.parted = self.take_over = False
        self.settled = True
        self.floors = FloorWatch(self.history)
        self._permitted: set[tuple[str, int]] = set()
        self._busy: list[Actor] = []  # in whose steps this comes

    @property
    def path(self) -> Path:
        """The data directory."""
        return self.root / self.name

    @property
    def recovers(self) -> bool:
        """Whether a recovery has been decided on that is not carried out yet."""
        return any(process.directory.state.needs_recovery for process in self._processes())

    # ---- steps of a process ----------------------------------------------------------------

    def run(self, actor: Actor, step: Callable[[], None], plan: Plan) -> None:
        """A step of a process, in which it may die as planned."""
        actor.planned(plan)
        failed = self.host.seam.failed
        self._busy.append(actor)
        try:
            with self.host.seam.acting(actor):
                step()
        except Killed:
            self.history.say(f"  {actor.name} is killed")
            self._kill(actor)
        except StoppedWaitingError:
            self.history.counts["standby waits"] += 1
            self._stop(actor, "something had to wait", {})
        except Exception as error:  # noqa: BLE001 - what the code does not mean to raise, too
            expected = self.host.seam.failed > failed or self._is_expected(error, actor)
            text = str(error).replace(f"{self.root}/", "")
            self._stop(actor, f"{type(error).__name__}: {text}", {})
            if not expected:
                self.history.say(traceback.format_exc())
                self.history.violated(f"refused: {type(error).__name__}", text)
        finally:
            self._busy.pop()
        self._watch_floor()

    def _is_expected(self, error: Exception, actor: Actor) -> bool:
        if isinstance(error, RecoveryRefused) and any(text in str(error) for text in _DEALT):
            self.history.counts["start refused while dealing"] += 1
            return self.host.dealing
        if "--take-over" in str(error):
            self.history.counts["take-over refused"] += 1
            self.take_over = self.rng.random() < 0.3
            return self.parted
        if isinstance(error, Fenced):
            self.history.counts["fenced"] += 1
            return self._may_be_fenced(actor)
        if isinstance(error, RecoveryRefused) and "has vanished" in str(error):
            return not self.shard.progress
        if isinstance(error.__cause__, CorruptFile):
            self.history.counts["damage met"] += 1
            return not self.host.whole or not self.settled
        return bool(getattr(error, "retriable", False))

    def _may_be_fenced(self, actor: Actor) -> bool:
        """Whether another instance has followed, or the partitions are, or were, reassigned."""
        told, deals = self.shard.lane.told, self.kafka.deals
        if told is not None and is_unfinished_notice(told[0]):
            return True
        ours = (shop for shop in self.shops() if shop.actor is actor)
        return any(shop in self.former or shop.deals < deals for shop in ours)

    def kill(self, name: str) -> None:
        """End a process without a word."""
        process = self._running(name)
        if process is not None:
            self._kill(process.actor)

    def _kill(self, actor: Actor) -> None:
        self._forget(actor)
        self._let_go(actor)
        self.history.counts[f"{actor.name} killed"] += 1

    def stop(self, name: str, why: str, plan: Plan) -> None:
        """End a process as it ends itself; it may die as planned while it does so."""
        process = self._running(name)
        if process is not None:
            self._stop(process.actor, why, plan)

    def _stop(self, actor: Actor, why: str, plan: Plan) -> None:
        self.history.say(f"  {actor.name} stops: {why}")
        process = self._forget(actor)
        if process is None:
            return
        self._busy.append(actor)
        actor.planned(plan)
        try:
            with self.host.seam.acting(actor), suppress(Killed, OSError):
                process.directory.stop()
        finally:
            self._busy.pop()
            self._let_go(actor)
        self.history.counts[f"{actor.name} stopped"] += 1

    def _running(self, name: str) -> Ingest | Shop | None:
        return self.ingest if name == "ingest" else self.shop

    def _forget(self, actor: Actor) -> Process | None:
        """A process ends: it is none of the shard's any more."""
        for process in self._processes():
            if process.actor is actor:
                if isinstance(process, Shop):
                    process.dequeue.close()  # no stage of its pipeline may outlive it
                self.ingest = None if process is self.ingest else self.ingest
                self.shop = None if process is self.shop else self.shop
                beside: list[Shop | Standby] = [*self.former]
                if self.standby is not None:
                    beside.append(self.standby)
                    if process is self.standby.follower:
                        self.standby.follower = None
                for instance in beside:
                    instance.ingest = None if process is instance.ingest else instance.ingest
                if process in self.former:
                    self._end_former(process)
                return process
        return None

    def _end_former(self, process: Process) -> None:
        """Whoever runs both ends ingest with dequeue."""
        self.former = [shop for shop in self.former if shop is not process]
        if isinstance(process, Shop) and process.ingest is not None:
            self._let_go(process.ingest.actor)

    def _processes(self) -> list[Process]:
        formers = (*self.former, *(shop.ingest for shop in self.former))
        standby = self.standby
        others = (standby.follower, standby.ingest) if standby is not None else ()
        found: tuple[Process | None, ...] = (self.ingest, self.shop, *formers, *others)
        return [process for process in found if process is not None]

    def let_go_unless_known(self, actor: Actor) -> None:
        """It has not come so far as to be a process of the shard."""
        if all(process.actor is not actor for process in self._processes()):
            self._let_go(actor)

    def release(self, actor: Actor) -> None:
        """A command ends, however it does."""
        self._let_go(actor)

    def _let_go(self, actor: Actor) -> None:
        """What the kernel does when a process ends."""
        actor.dead = True
        for fd in actor.fds:
            with suppress(OSError):
                os.close(fd)
        actor.fds.clear()
        for timeline in actor.timelines:
            timeline.close()
        actor.timelines.clear()

    def is_busy(self, actor: Actor) -> bool:
        """Whether this comes in the step of one of its processes."""
        return actor in self._busy

    def shops(self) -> list[Shop]:
        """Its dequeues, also those that were followed."""
        return [shop for shop in (self.shop, *self.former) if shop is not None]

    def slept(self) -> None:
        """Whoever acts has slept: an ingest that waits may be told to stop."""
        for process in self._processes():
            if isinstance(process, Ingest) and process.actor is self.host.seam.actor:
                process.waits += 1
                if process.waits >= WAITS_MAX and process.taker is not None:
                    process.taker.stop()
                self.clock.pass_ms(self.setup.wheel.precision_ms)
                self.meanwhile(process.actor)

    def meanwhile(self, actor: Actor) -> None:
        """The other process does something, if it can."""
        if len(self._busy) > 1:
            return
        if actor.name in {"follower", "ingest of the standby"}:
            self._meanwhile_beside(actor)
            return
        if any(lock_is_held(self.path / name) for name in (ENGINE_LOCK, WHEEL_LOCK)):
            return
        self.history.say(f"  meanwhile, within {actor.name}:")
        self.history.counts[f"meanwhile, within {actor.name}"] += 1
        if actor.name == "ingest":
            # Slots are closed under a batch only if their time comes meanwhile.
            slots = self.rng.choice((0, 0.5, 1, 2))
            self.clock.pass_ms(round(slots * self.setup.wheel.precision_ms))
            self.step_dequeue({})
        else:
            self.step_ingest({})

    def _meanwhile_beside(self, actor: Actor) -> None:
        """The owner of a standby does something, and the follower hears of it."""
        self.history.say(f"  meanwhile, within {actor.name}:")
        self.history.counts[f"meanwhile, within {actor.name}"] += 1
        self.clock.pass_ms(self.rng.choice((0, 1, 2)) * self.setup.wheel.precision_ms)
        for _ in range(self.rng.randint(1, 4)):
            self.rng.choice((self.step_ingest, self.step_dequeue))({})
        standby = self.standby
        if standby is None or standby.follower is None or actor is standby.follower.actor:
            return
        folder = self.root / standby.name
        if any(lock_is_held(folder / name) for name in (ENGINE_LOCK, WHEEL_LOCK)):
            return
        self.run(standby.follower.actor, standby.look, {})

    def takes(self, runs: Runs) -> None:
        """The wheel takes runs."""
        newest, engine = self.shard.newest(), self.ingest.engine if self.ingest else None
        # One that has lost partitions to other shards goes on for a while, and R is not theirs.
        has_all = newest and engine and engine.marks.keys() <= newest.partitions.keys()
        self.floors.takes(int(runs.slot.min()), (has_all and _slot(newest)) or 0)

    def _watch_floor(self) -> None:
        process = self.shop or self.ingest
        if process is not None:
            # What dequeue has not looked at yet may be anything.
            with suppress(*(() if self.settled else (CorruptFile,))):
                owned = _slot(self.shard.newest()) if self.settled else None
                self.floors.look(process.directory.state, owned)

    # ---- dequeue ---------------------------------------------------------------------------

    def step_dequeue(self, plan: Plan) -> None:
        """Start it, or one turn of its loop."""
        if self.shop is None:
            actor = Actor("dequeue")
            self.history.say("dequeue starts")
            self.run(actor, lambda: self._start_dequeue(actor), plan)
            self.let_go_unless_known(actor)
        else:
            shop = self.shop
            self.history.say("dequeue ticks")
            self.run(shop.actor, lambda: self._tick(shop), plan)

    def _tick(self, shop: Shop) -> None:
        while shop.tick() and self.rng.random() < 0.6:
            pass

    def _start_dequeue(self, actor: Actor) -> None:
        directory = WatchedDirectory.start(
            self.path, self.setup.wheel, Role.DEQUEUE, fs=self.host.files(actor)
        )
        publisher = SimulatedPublisher(self.shard, self._fate, self._in_transaction)
        dequeue = Dequeue(
            directory, publisher, self.clock, self.setup.config, threads=self.host.threads()
        )
        first = None
        if not any(offsets_of(self.shard, "end").values()) and not self.shard.progress:
            starts = offsets_of(self.shard, "start")
            now_ms = min(self.clock.now_ms(), self.clock.true_ms)
            first = first_progress(directory, self.setup.config, starts, now_ms)
            if self.host.keys.at_first:
                first = replace(first, epochs=first.epochs.drawing_key(self.host.keys.draw))
        shop = self.shop = Shop(actor, directory, dequeue, self.kafka.deals)
        permitted = self._permit(directory.state.uuid)
        dequeue.start(first, take_over=self.take_over)
        if not permitted:
            self.history.violated("ownership", "an owner that may be alive was followed unasked")
        if self._running("dequeue") is shop:  # no rival has come meanwhile
            self.parted = self.take_over = False
            self.settled = True

    def _permit(self, uuid: str) -> bool:
        """Whether a start may make the shard this directory's. What was permitted to follow a
        progress may follow it again, until another incarnation has written one.
        """
        newest = self.shard.newest()
        if newest is None or newest.owner in {uuid, NOBODY}:
            return True
        silent_ms = self.clock.true_ms - self.shard.progress[-1][1]
        if self.take_over or silent_ms > self.setup.config.take_over_after_ms:
            self._permitted.add((uuid, newest.incarnation))
        return (uuid, newest.incarnation) in self._permitted

    def _fate(self) -> str:
        return self.chances.fate()

    def _in_transaction(self) -> None:
        if self.shop is None or self.host.seam.actor is not self.shop.actor:
            return
        self.chances.clock()
        if self.chances.meanwhile():
            self.meanwhile(self.shop.actor)
        if all(actor.name != "ingest" for actor in self._busy):
            self.chances.rival(self)

    # ---- ingest ----------------------------------------------------------------------------

    def step_ingest(self, plan: Plan) -> None:
        """Start it, as far as that goes, or one batch."""
        self.step_ingest_of(self, plan)

    def step_ingest_of(self, instance: World | Standby, plan: Plan) -> None:
        """The same of one of two."""
        ingest = instance.ingest
        if ingest is None:
            actor = Actor("ingest" if instance is self else "ingest of the standby")
            self.history.say(f"{actor.name} starts")
            self.run(actor, lambda: self._begin_ingest(instance, actor), plan)
            self.let_go_unless_known(actor)
        elif ingest.query is None:
            self.run(ingest.actor, lambda: self._go_on(ingest), plan)
        else:
            self.run(ingest.actor, lambda: self._take_batch(ingest), plan)

    def step_durable(self, plan: Plan) -> None:
        """A durable checkpoint, of the shard's directory or the standby's."""
        ingest = self.ingest
        if self.standby is not None and self.rng.random() < 0.5:
            ingest = self.standby.ingest
        if ingest is not None and ingest.durable is not None:
            self.history.say("durable checkpoint")
            durable = ingest.durable

            def write() -> None:
                failed = self.host.seam.failed
                try:
                    durable.write()
                except OSError:
                    # Its thread tries again.
                    assert self.host.seam.failed > failed

            self.run(ingest.actor, write, plan)

    def _begin_ingest(self, instance: World | Standby, actor: Actor) -> None:
        path = self.root / instance.name
        directory = WatchedDirectory.start(
            path, self.setup.wheel, Role.INGEST, fs=self.host.files(actor)
        )
        instance.ingest = Ingest(actor, directory)
        self._go_on(instance.ingest)

    def _go_on(self, ingest: Ingest) -> None:
        """Behind its wait for dequeue."""
        record = dequeue_has_decided(ingest.directory.state, ingest.directory.path)
        if record is None:
            return
        recovered = apply_recovery(ingest.directory, record, lambda ms: offsets_at(self.shard, ms))
        if recovered is not None:
            self.history.say(f"  {record.case}: {recovered}")
            self.history.counts[f"{record.case}, keeps {recovered.keep.name}"] += 1
        ingest.engine = WatchedEngine(
            ingest.directory, self.clock, TOPIC_IDS, self.setup.cancel_limits
        )
        ingest.durable = DurableCheckpoints(ingest.directory.path, ingest.directory.fs)
        self._begin_query(ingest)

    def _begin_query(self, ingest: Ingest) -> None:
        engine = ingest.engine
        assert engine is not None
        ends = offsets_of(self.shard, "end")
        starts = {name: engine.marks.get(name, EARLIEST) for name in ends}
        checkpoint = ingest.directory.path / CHECKPOINT
        fs, ends = ingest.directory.fs, offsets_of(self.shard, "stable_end")
        settle_checkpoint(checkpoint, engine.marks, starts, ends, fs)
        parse = parser_of(engine.epochs, self.kafka)
        query = Query(self.shard, checkpoint, starts, parse, self.rng, fs)
        ingest.taker = taker_of(engine, self.kafka, self.clock)
        ingest.query = query

    def _take_batch(self, ingest: Ingest) -> None:
        query, taker, engine = ingest.query, ingest.taker, ingest.engine
        assert query is not None
        assert taker is not None
        assert engine is not None
        if query.has_ended or (query.batch % 2 and engine.settings_change):
            # Between two batches, as it looks for itself; else its next batch is refused.
            self._follow_settings(ingest)
            return
        batch = query.batch
        query.plan(self.setup.rows_max)
        timers, ends = query.read(taker.marks)
        places = zip(timers.partition.tolist(), timers.offset.tolist(), strict=True)
        told = " ".join(f"{timers.partitions[p][1]}@{offset}" for p, offset in places)
        self.history.say(f"{ingest.actor.name} takes {told or 'an empty batch'}")
        self.history.counts["batches"] += 1
        ingest.waits = 0
        replayed = taker.statistics.rows_replayed
        # Spark commits a batch as soon as it is handed over, and plans the next one: now before,
        # now behind its end.
        commits_first, plans_ahead = batch % 2 == 0, batch % 4 == 0
        if commits_first:
            query.commit()
        if plans_ahead:
            query.plan(self.setup.rows_max)
        try:
            taker.take(timers, ends)
        except SettingsChange:
            self.history.counts["batches refused for other settings"] += 1
            query.has_ended = True
            self._follow_settings(ingest)
            return
        self.history.counts["rows replayed"] += taker.statistics.rows_replayed - replayed
        if not commits_first:
            query.commit()

    def _follow_settings(self, ingest: Ingest) -> None:
        """As IngestRun does, once dequeue has started with them; until then it waits."""
        assert ingest.engine is not None
        if not ingest.directory.state.live.wanted_settings:
            self.history.counts["queries under other settings"] += 1
            ingest.engine.load_epochs()
            self._begin_query(ingest)

    # ---- all of it -------------------------------------------------------------------------

    def step_former(self) -> None:
        """A turn of an instance that another one has followed."""
        if self.former:
            shop = self.rng.choice(self.former)
            ingest = shop.ingest
            self.history.say(f"what was followed goes on, in {shop.directory.path.name}")
            if ingest is not None and ingest.query is not None and self.rng.random() < 0.5:
                self.run(ingest.actor, lambda: self._take_batch(ingest), {})
            else:
                self.run(shop.actor, lambda: self._tick(shop), {})

    def served(self) -> set[str]:
        """Names of the data directories in which its processes run, or are to."""
        beside = {self.standby.name} if self.standby is not None else set()
        return {shop.directory.path.name for shop in self.former} | {self.name} | beside

    def set_aside_owner(self) -> None:
        """What serves the shard goes on beside whoever follows it."""
        if self.shop is None:
            self.kill("ingest")
        else:
            self.shop.ingest = self.ingest
            self.former.append(self.shop)
            self.ingest = self.shop = None

    def leave(self) -> None:
        """The settings with which its processes run are no longer those of a shard: those of a
        standby end, its owner goes on until it finds out.
        """
        if self.standby is not None:
            for process in (self.standby.follower, self.standby.ingest):
                if process is not None:
                    self._kill(process.actor)
        if self.shop is None:
            self.kill("ingest")
        self.set_aside_owner()

    def hand_over(self, standby: Standby, *, told: bool) -> None:
        """The standby is the shard from here on, if its dequeue may start."""
        follower = standby.follower
        assert follower is not None
        self._forget(follower.actor)
        self._let_go(follower.actor)
        self.set_aside_owner()
        self.ingest, self.name, self.standby = standby.ingest, standby.name, None
        if self.ingest is not None:
            self.ingest.actor.name = "ingest"
        self.unsettle(parted=True)
        self.take_over = told
        self.step_dequeue({})

    def unsettle(self, *, parted: bool | None = None) -> None:
        """Something has befallen the files; `parted`: see the class, None as before."""
        self.settled = False
        self.floors.forget()
        self.history.cancels.lost_files()
        if parted is not None:
            self.parted = parted
            self.take_over = parted and self.rng.random() < 0.4

    def end(self) -> None:
        """All processes end, without a word."""
        for process in self._processes():
            self._forget(process.actor)
            self._let_go(process.actor)

    # ---- judging ---------------------------------------------------------------------------

    def check(self) -> None:
        """Everything on disk, as `duewheel check` looks at it."""
        if self.settled:
            self._check(self.path)
        if self.standby is not None and self.standby.follower is not None:
            self._check(self.root / self.standby.name)

    def _check(self, path: Path) -> None:
        if not self.host.whole or not (path / FILE).exists():
            return
        state = State.open(path)
        if state.starts and not state.needs_recovery:  # a first start may be half made
            for finding in check(path, self.setup.wheel).findings[:2]:
                self.history.violated("check", str(finding))


def _slot(progress: Progress | None) -> int | None:
    """R, if the shard has any partition."""
    return progress.delivered_slot if progress is not None and progress.partitions else None
