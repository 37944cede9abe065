"""Derives a schedule from a seed: the actions, their order, and the faults.

Each seed draws its own kinds of faults and their rates: some runs have only kills, some only
doubts, some a single kind of fault, so that other faults cannot hide its effects. At the end all
faults stop, all processes run until they are idle, and the history is judged.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from random import Random

from tests.simulation import contract_check, misfortunes, operators, seam, spark_model, standby
from tests.simulation.cancel_judge import REPLIES
from tests.simulation.copy_keys import CopyKeys
from tests.simulation.forgers import Forgers
from tests.simulation.history import Violation
from tests.simulation.host import Chances, Host, Setup
from tests.simulation.kafka_model import Partition
from tests.simulation.policies import table as policies
from tests.simulation.refusals import Refusals
from tests.simulation.requests import NOTHING, Requests
from tests.simulation.resharding import Resharding, happens
from tests.simulation.seam import Plan, PowerLost
from tests.simulation.settings import mapped_to
from tests.simulation.shard_model import FATES, Shard
from tests.simulation.sources import Sources
from tests.simulation.spark_model import CHECKPOINT
from tests.simulation.stages import InTurn, Settled, in_threads
from tests.simulation.world import World

from duewheel.wheel.append.cancel_lookup import CancelLimits
from duewheel.wheel.dequeue_config import DequeueConfig
from duewheel.wheel.slots import WheelConfig

PRECISIONS_MS = (1_000, 600_000, 1_800_000)
# How many of a kind of stores a step makes, about; "any" by chance.
STORES_OF_STEP = (4, 12, 60)
STORES_OF_KIND = {"wheel": 1, "cut": 1, "name": 1, "look up": 1, "mark": 1, "unlink": 2, "make": 2}
STORES_OF_KIND |= {"write": 4, "page": 4}
# Kinds of stores (seam.py) before which a process dies, by what it does then.
INGEST_STORES = (
    *("write", "make", "cut", "page", "page", "wheel", "wheel", "unlink"),
    *("look up", "mark", "mark"),
)
DEQUEUE_STORES = ("page", "page", "name", "sync", "unlink")
DURABLE_STORES = ("sync", "name")
CALM_TURNS_MAX = 400

LOSSES = {"power between steps", "disk lost", "backup restored", "file lost"}
# Behind these, and behind each hour that goes, copies may be in flight that no log shows: requests
# of before are decided on as chases only.
BLINDING = {*LOSSES, "power", "rival", "state topic lost", "standby", "promotion", "reconfigure"}


@dataclass(frozen=True)
class Fault:
    """A kind of misfortune.

    Attributes:
        probability: of a run to know it.
        often: highest chance per step, in a run that knows it.
    """

    probability: float
    often: float


# In the middle of a step unless said otherwise.
FAULTS = {
    "kill": Fault(0.8, 0.5),
    "kill between steps": Fault(0.3, 0.1),
    "clean stop": Fault(0.4, 0.1),
    "meanwhile": Fault(0.7, 0.5),
    "transaction": Fault(0.7, 0.5),
    "kafka away": Fault(0.2, 0.1),
    "disk errors": Fault(0.2, 0.1),
    "spark's checkpoint": Fault(0.3, 0.1),
    "slow producer": Fault(0.3, 0.1),
    "partition added": Fault(0.2, 0.04),
    "away for long": Fault(0.3, 0.06),
    "power": Fault(0.3, 0.2),
    "power between steps": Fault(0.4, 0.2),
    "disk lost": Fault(0.25, 0.12),
    "backup restored": Fault(0.35, 0.15),
    "file lost": Fault(0.35, 0.12),
    "rival": Fault(0.25, 0.15),
    "state topic lost": Fault(0.1, 0.1),
    "clock set": Fault(0.35, 0.3),
    "target unavailable": Fault(0.5, 0.4),
    "standby": Fault(0.4, 0.2),
    "promotion": Fault(0.5, 0.15),
    "reconfigure": Fault(0.35, 0.12),
}


class Schedule:
    """One seed's run."""

    def __init__(self, seed: int, root: Path) -> None:
        self.rng = Random(seed)
        self.chance = {
            name: self.rng.random() * fault.often if self.rng.random() < fault.probability else 0.0
            for name, fault in FAULTS.items()
        }
        if self.chance["reconfigure"]:
            # Settings of before matter to what is read again.
            self.chance["disk lost"] = max(self.chance["disk lost"], 0.04)
        self.calm = False
        # In some runs most requests find what they are for in the log.
        sees = Random(f"sees {seed}").random() < 0.3
        if sees:
            self.chance |= dict.fromkeys(BLINDING, 0.0)
        setup = _setup(seed, self.rng, PRECISIONS_MS[:1] if sees else PRECISIONS_MS)
        setup = _with_cancels(seed, setup)
        is_dealt = happens(seed)
        if is_dealt:
            setup = replace(setup, partitions=max(2, setup.partitions))
        chances = Chances(self._fate, lambda: self._happens("meanwhile"), self._rival, self._clock)
        threads = Settled if in_threads(seed) else InTurn
        self.host = Host(root, setup, self.rng, chances, threads, CopyKeys(seed))
        self.host.kafka.rows_max = (0, 0, 0, 2)[seed % 4]
        self.world = World(self.host, Shard(self.host.kafka, 0, 1), setup, "data")
        self.host.shards.append(self.world)
        self._stamps = _Stamps(seed, setup)
        likely = 1.0 if sees else 0.8 if is_dealt else 0.45
        self._sources = Sources(seed, self.host)
        self._requests = Requests(seed, self.world, likely, cuts=not self._sources.any)
        # Of an id with more timers a batch may overlook the one that is pending.
        self.host.history.cancels.keeps.whole = setup.cancel_limits.rows_max >= 1 << 10
        self._resharding = Resharding(seed, self.host, lambda: self._happens("kill"), self._write)
        letters = not self._requests.any and policies.letters_wait(setup.config.policies)
        self._refusals = Refusals(seed, self.host.kafka, letters=letters)
        self._forgers = Forgers(seed, self.host.keys)
        self._backup: dict[str, bytes | None] = {}
        self._saved: dict[str, bytes] = {}
        self._timers_left = self.rng.randint(5, 40) + (40 if is_dealt or sees else 0)
        # Many timers in few slots: slots are delivered in pieces, and losses come in between.
        self._dense = self.rng.random() < (0.25 if self.chance["reconfigure"] else 0.5)

    def run(self) -> list[Violation]:
        """All of it; returns what was violated."""
        world = self.world
        known = {name: round(chance, 2) for name, chance in self.chance.items() if chance}
        known |= self._requests.known
        world.history.say(f"faults {known}, {world.setup}")
        self._guarded(self._requests.begin)
        for _ in range(self.rng.randint(25, 70)):
            self._refusals.befall()
            self._sources.befall()
            self._guarded(self._one())
            if world.history.violations:
                return world.history.violations
        self._quiet_down()
        return world.history.violations

    # ---- faults ----------------------------------------------------------------------------

    def _happens(self, name: str) -> bool:
        return not self.calm and self.rng.random() < self.chance[name]

    def _likely(self) -> bool:
        return not self.calm and self.rng.random() < 0.3

    def _fate(self) -> str:
        return self.rng.choice(FATES) if self._happens("transaction") else "commit"

    def _plan(self, *kinds: str) -> Plan:
        """What goes wrong at which store of a step that makes stores of these kinds."""
        plan = {}
        for what in ("kill", "meanwhile", "power"):
            likely = what == "kill" and self.world.recovers  # a recovery is killed often
            if self._happens(what) or (likely and self.chance[what] and self._likely()):
                kind = self.rng.choice(("any", *kinds))
                last = STORES_OF_KIND.get(kind, self.rng.choice(STORES_OF_STEP))
                plan[kind, self.rng.randint(1, last)] = what
        return plan

    def _guarded(self, action: Callable[[], None]) -> None:
        try:
            action()
        except PowerLost:
            misfortunes.lose_power(self.world)

    # ---- actions ---------------------------------------------------------------------------

    def _one(self) -> Callable[[], None]:
        """The next thing to do, and which shard does it."""
        world = self.world = self._requests.world = self._resharding.choose()
        if len(self.host.shards) > 1:
            world.history.say(f"shard {world.shard.index}:")
        befalls: dict[str, Callable[[], None]] = {
            "kill between steps": lambda: world.kill(self.rng.choice(("ingest", "dequeue"))),
            "clean stop": self._stop,
            "kafka away": lambda: setattr(world.kafka, "away", self.rng.randint(1, 4)),
            "disk errors": self._disk_errors,
            "spark's checkpoint": self._spoil_checkpoint,
            "away for long": self._away,
            "slow producer": self._write_slowly,
            "partition added": self._add_partition,
            "power between steps": lambda: misfortunes.lose_power(world),
            "disk lost": lambda: misfortunes.lose_disk(world),
            "backup restored": lambda: misfortunes.restore(world, self._backup),
            "file lost": lambda: misfortunes.lose_file(world),
            "rival": lambda: misfortunes.rival(world),
            "clock set": self._set_clock_and_close,
            "standby": self._stand_by,
            "promotion": lambda: standby.want_promotion(world),
            "state topic lost": lambda: misfortunes.lose_progress(world),
            "target unavailable": lambda: misfortunes.target_unavailable(world),
            "reconfigure": lambda: operators.reconfigure(world, self._plan(*DEQUEUE_STORES)),
        }
        for name, action in befalls.items():
            if self._happens(name):
                world.history.say(f"! {name}")
                world.history.counts[name] += 1
                return partial(self._lost_for_long, action) if name in LOSSES else action
        befalls_cancels = self._requests.befalls(lambda: self._plan(*DEQUEUE_STORES))
        if befalls_cancels is not None:
            name, action = befalls_cancels
            world.history.say(f"! {name}")
            world.history.counts[name] += 1
            return action
        dealt = self._resharding.befalls()
        if dealt is not None:
            name, action = dealt
            world.history.say(f"! {name}")
            world.history.counts[name] += 1
            return action
        loses_power = self.chance["power"] or self.chance["power between steps"]
        weights: dict[Callable[[], None], float] = {
            self._write: 3.0,
            lambda: world.step_ingest(self._plan(*INGEST_STORES)): 4.0,
            lambda: world.step_dequeue(self._plan(*DEQUEUE_STORES)): 4.0,
            self._pass_time: 3.0,
            lambda: world.step_durable(self._plan(*DURABLE_STORES)): 4.0 if loses_power else 1.0,
            lambda: standby.step(world, self._plan(*INGEST_STORES, *DEQUEUE_STORES)): (
                10.0 if world.standby else 0.0
            ),
            world.check: 0.15,
            world.step_former: 2.0 if world.former else 0.0,
            self._back_up: 1.5 if self.chance["backup restored"] else 0.0,
        }
        return self.rng.choices(list(weights), list(weights.values()))[0]

    def _stand_by(self) -> None:
        standby.stand_by(self.world)
        for _ in range(self.rng.randint(0, 8)):
            standby.step(self.world, {})

    def _lost_for_long(self, loss: Callable[[], None]) -> None:
        """Perhaps it takes a while until anybody sees to it, and timers come in meanwhile."""
        loss()
        if self.chance["away for long"] and self._likely():
            self._away()
            self._write()

    def _rival(self, world: World) -> None:
        if self._happens("rival"):
            misfortunes.rival(world)

    def _clock(self) -> None:
        if self._happens("clock set"):
            self._set_clock()

    def _set_clock_and_close(self) -> None:
        self._set_clock()
        if self.rng.random() < 0.7:
            self.world.step_dequeue({})

    def _set_clock(self) -> None:
        """The host's clock is set: right, a bit off, or wrong; it was off or right before."""
        clock, setup = self.world.clock, self.world.setup
        bound_ms, p = setup.config.clock_skew_max_ms, setup.wheel.precision_ms
        errors_ms = {
            0: 2,
            bound_ms: 1,
            bound_ms + 1: 1,
            self.rng.randint(0, 60_000): 2,  # for as long the brokers' clock is not read again
            self.rng.randint(0, 4 * p): 2,
            self.rng.randint(-4 * p, 0): 3,
            self.rng.choice((-1, 1)) * self.rng.randint(0, setup.wheel.ring * p): 1,
        }
        (error_ms,) = self.rng.choices(list(errors_ms), list(errors_ms.values()))
        clock.step(error_ms - clock.error_ms)
        self.world.history.say(f"  the host's clock is {error_ms} ms ahead")

    def _back_up(self) -> None:
        if self.world.settled:
            self.world.history.say("backup")
            self._backup = self.world.disk.copy()

    def _stop(self) -> None:
        self.world.stop(self.rng.choice(("ingest", "dequeue")), "told to", self._plan("sync"))

    def _write(self) -> None:
        """Some timers."""
        world, rng = self.world, self.rng
        wheel = world.setup.wheel
        if not world.shard.progress or not self._timers_left:
            return
        now_ms, p = world.clock.true_ms, wheel.precision_ms
        window = wheel.window_ms // p
        for _ in range(min(rng.randint(1, 6), self._timers_left)):
            self._timers_left -= 1
            far = () if self._dense else (rng.randint(0, window), rng.randint(0, 3 * window))
            delay = rng.choice((0, 0, 1, 1, 2, 3, *far))
            due_ms = now_ms + delay * p + rng.choice((0, 0, 1, -1, rng.randint(-p, p)))
            stamp_ms = now_ms - rng.choice((0, 0, 0, rng.randint(0, wheel.margin_ms)))
            number = rng.randrange(len(world.kafka.partitions))
            ahead_ms = 0 if self.calm else self._stamps.ahead_ms()
            if ahead_ms:
                world.history.counts["stamped far ahead"] += 1
                due_ms, stamp_ms = due_ms + ahead_ms, stamp_ms + ahead_ms
            rejected = rng.random() < 0.1
            asked = NOTHING if rejected else self._requests.asked(number)
            world.kafka.write(number, due_ms, stamp_ms, rejected=rejected, **asked)
        if rng.random() < 0.3:
            world.kafka.gap(rng.randrange(len(world.kafka.partitions)), rng.randint(1, 3))
        self._forgers.write(world, self._requests.asked)

    def _write_slowly(self) -> None:
        """A producer's transaction begins, or all that are open end."""
        kafka, wheel = self.world.kafka, self.world.setup.wheel
        if kafka.slow or not self.world.shard.progress:
            kafka.end_slow()
        else:
            now_ms = self.world.clock.true_ms
            due_ms = [now_ms + self.rng.randint(0, wheel.window_ms) for _ in range(2)]
            number = self.rng.randrange(len(kafka.partitions))
            kafka.write_slowly(number, due_ms, commit=self.rng.random() < 0.6)

    def _add_partition(self) -> None:
        partitions = self.world.kafka.partitions
        if self.world.shard.progress:
            partitions.append(Partition(len(partitions)))

    def _pass_time(self) -> None:
        slots = self.rng.choice((0.3, 0.5, 1, 1, 1.5, 2, 3, 5))
        self._forward(round(slots * self.world.setup.wheel.precision_ms))

    def _away(self) -> None:
        """For up to two laps nobody does anything but, perhaps, write."""
        wheel = self.world.setup.wheel
        self._forward(self.rng.randint(1, 2 * wheel.ring) * wheel.precision_ms)
        self._clock()  # it has slept, too

    def _forward(self, ms: int) -> None:
        self.world.clock.pass_ms(ms)
        self.host.end_forgotten()
        self.world.history.say("time passes")
        if (self.chance["power"] or self.chance["power between steps"]) and self.rng.random() < 0.2:
            self.world.disk.write_back(self.rng)

    def _disk_errors(self) -> None:
        at = self.host.seam
        at.failing = 0 if at.failing else self.rng.choice((seam.DISK_FULL, seam.BAD_DISK))

    def _spoil_checkpoint(self) -> None:
        checkpoint = self.world.path / CHECKPOINT
        if not checkpoint.exists():
            return
        if self.rng.random() < 0.3:
            self._saved = spark_model.saved(checkpoint)
        else:
            self.world.kill("ingest")
            how = spark_model.damage(checkpoint, self.rng, self._saved)
            self.world.history.say(f"  Spark's checkpoint: {how}")

    # ---- the end ---------------------------------------------------------------------------

    def _quiet_down(self) -> None:
        """No more faults: everything is run until nothing is left to do."""
        world, self.calm = self.world, True
        world.history.say("calm from here on")
        self.host.seam.failing, world.kafka.away = 0, 0
        world.clock.step(-world.clock.error_ms)
        world.kafka.down = frozenset(each for each in world.kafka.down if each[0] == REPLIES)
        self._requests.quiet_down()
        if self._sources.any:
            self._requests.answers_may_come()
        self._sources.quiet_down()
        self._refusals.quiet_down()
        world.kafka.end_slow()
        self._resharding.quiet_down()
        for shard in self.host.shards:
            if shard.standby is not None and self.rng.random() < 0.7:
                self._change_over(shard)
        for _ in range(CALM_TURNS_MAX):
            self._catch_up()
            if world.history.violations or self._done():
                break
            slots = self.rng.choice((0.5, 1, 2, 5))
            self._forward(round(slots * world.setup.wheel.precision_ms))
        self._judge_end()

    def _judge_end(self) -> None:
        world = self.world
        if not world.history.violations:
            for shard in self.host.shards:
                shard.check()
            world.history.judge_end()
            self._sources.judge()
            if any(shard.former for shard in self.host.shards):
                world.history.violated("fenced", "a former dequeue has not found out")
            if world.history.copies:
                for difference in contract_check.differences(world.history.copies):
                    world.history.violated("bytes", f"a copy: {difference}")

    def _change_over(self, world: World) -> None:
        """The standby catches up, and is promoted while its owner lives."""
        for turn in range(40):
            if world.standby is None or world.history.violations:
                return
            world.step_dequeue({})
            world.step_ingest({})
            if turn > 20:
                standby.want_promotion(world)
            standby.step(world, {})

    def _catch_up(self) -> None:
        self._sources.turn()
        for world in self.host.shards:
            for _ in range(20):
                world.step_dequeue({})
                world.step_ingest({})
                if world.history.violations:
                    return
                if _has_caught_up(world):
                    break
            for _ in range(3):
                world.step_dequeue({})
                world.step_former()

    def _done(self) -> bool:
        history = self.host.history
        return (
            not history.waiting()
            and not history.cancels.unsettled
            and self._sources.is_idle
            and all(_has_caught_up(world) and not world.former for world in self.host.shards)
        )


class _Stamps:
    """A broker whose clock is far ahead for a while: chance of its own, beside the other faults."""

    def __init__(self, seed: int, setup: Setup) -> None:
        self._rng = Random(f"stamps {seed}")
        self._chance = self._rng.random() * 0.5 if self._rng.random() < 0.4 else 0.0
        self._ring_ms = setup.wheel.ring * setup.wheel.precision_ms

    def ahead_ms(self) -> int:
        """By how much the next record's timestamp is ahead, up to some laps; 0 mostly."""
        if self._rng.random() >= self._chance:
            return 0
        return self._rng.randint(self._ring_ms // 4, 3 * self._ring_ms)


def _has_caught_up(world: World) -> bool:
    ingest = world.ingest
    return ingest is not None and ingest.query is not None and not ingest.query.behind


def _with_cancels(seed: int, setup: Setup) -> Setup:
    """Whether they are replied to, and how many at once: chance of its own, too."""
    rng = Random(f"cancels {seed}")
    replies, pairs = rng.choice((1, 3, 1_000)), rng.choice((1, 5, 1 << 20))
    limits = CancelLimits(
        rows_max=rng.choice((8, 20, 1 << 10)),  # more than a timer has copies
        settled_max=rng.choice((1, 5, 100, 1_000)),
        settled_from=rng.choice((1, 2, 5, 64)),
        # Longer than a chase takes, as in a shard: else a chase would be chased again.
        settled_ms=rng.choice((5, 20)) * setup.wheel.precision_ms,
        pairs_max=rng.choice((1, 5, 1 << 20)),
        pairs_at_once=pairs,
    )
    reply_topic = None if rng.random() < 0.25 else REPLIES
    config = replace(setup.config, reply_topic=reply_topic, chunk_replies=replies)
    return replace(setup, config=config, cancel_limits=limits)


def _setup(seed: int, rng: Random, precisions_ms: Sequence[int]) -> Setup:
    p = rng.choice(precisions_ms)
    window, margin = rng.randint(4, 12), rng.randint(0, 3)
    wheel = WheelConfig(p, window + margin + rng.randint(0, 4), window * p, margin * p)
    config = DequeueConfig(
        0,
        1,
        mapped_to(rng.randrange(2)),
        chunk_records=rng.choice((1, 2, 3, 5, 50)),
        chunk_bytes=rng.choice((200, 1_000, 1 << 20)),
        progress_interval_ms=rng.choice((5_000, 2 * p, 10 * p)),
        clock_skew_max_ms=rng.choice((1_000, p // 2, 2 * p)),
        policies=policies.drawn(seed, wheel),
    )
    return Setup(wheel, config, rng.randint(1, 3), rng.choice((1, 3, 8, 30)))
