"""Reassigns the partitions to another number of shards, as `duewheel reshard` does.

It runs the command's own steps, with the Kafka of shard_model.py. Before each call the command may
be killed, or other processes get a turn: an owner with old settings continues, dies and is
restarted; an operator changes the settings of a shard that is not sealed yet; or a second run of
the command starts with another number. A reshard is finished, or undone, some steps later: until
then no directory may own a sealed shard.

After the reassignment an old owner continues beside the new ones until it is fenced, and a process
with old settings may start. A new shard begins in an old directory, or in an empty one.

It draws from a generator of its own: a seed without it runs as if it did not exist.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from random import Random

from tests.simulation import operators
from tests.simulation.host import Host
from tests.simulation.seam import Actor
from tests.simulation.shard_model import TIMEOUT_MS, Shard, SimulatedPublisher
from tests.simulation.watched_parts import WatchedDirectory
from tests.simulation.world import World

from duewheel.backoff import Backoff
from duewheel.checkpoints.process_role import Role
from duewheel.checkpoints.progress import Progress, record_key
from duewheel.checkpoints.reshard_records import NOTICE_KEY
from duewheel.errors import DiskFull, Fenced, KafkaUnavailable, PublishDoubt, RecoveryRefused
from duewheel.ops.reshard import BACKOFF_MS, Reassignment
from duewheel.wheel.dequeue.lifecycle import Dequeue
from duewheel.wheel.publisher_protocol import Seen

_SHARDS_MAX = 3
_FAULTY = 0.15  # of the command's calls: there are many of them
# Too few partitions are known to have progress; a ring is too small; other settings in one of them;
# copies wait for a partition, or are signed in one shard only.
_REFUSALS = (
    *("would have no partition", "is too far behind", "differ in", "copies for"),
    "has no key for copies",
)
_AT_ONCE = 30  # runs of the command in the end


class SimulatedCluster:
    """The ReshardCluster of one run of the command."""

    def __init__(
        self, host: Host, fate: Callable[[], str], before_call: Callable[[], None]
    ) -> None:
        """
        Args:
            host: whose shards there are.
            fate: asked before each transaction.
            before_call: called before each call.
        """
        self._host, self._kafka = host, host.kafka
        self._fate, self._before_call = fate, before_call
        self._lock = -1

    @property
    def is_overtaken(self) -> bool:
        """Whether another run has begun since."""
        return self._lock != self._kafka.lock

    def shards(self, *, past_open: bool) -> Mapping[int, Seen]:
        self._before_call()
        self._kafka.require_there()
        lanes = self._kafka.lanes
        if past_open and any(lane.transaction is not None for lane in lanes.values()):
            self._host.clock.pass_ms(TIMEOUT_MS + 1)
            self._host.end_forgotten()
        return {
            index: Seen(Progress.decode(lane.progress[-1][0]), lane.progress[-1][1])
            for index, lane in sorted(lanes.items())
            if lane.progress
        }

    def take_lock(self) -> None:
        self._before_call()
        self._kafka.require_there()
        self._kafka.lock += 1
        self._lock = self._kafka.lock

    def make_room(self, shards: int) -> None:
        self._before_call()
        self._kafka.require_there()

    def write(self, values: Mapping[int, Mapping[bytes, bytes]]) -> None:
        self._before_call()
        if self.is_overtaken:
            raise Fenced("another run has begun")
        self._kafka.require_there()
        fate = self._fate()
        keys = sorted({key.decode() for records in values.values() for key in records})
        self._host.history.say(f"  {', '.join(keys)}: {fate}")
        if fate in {"die before", "die open"}:
            self._kafka.die()
        if fate in {"commit", "doubt", "die after"}:
            self._commit(values)
        if fate == "die after":
            self._kafka.die()
        if fate != "commit":
            raise PublishDoubt(fate)

    def _commit(self, values: Mapping[int, Mapping[bytes, bytes]]) -> None:
        kafka, now_ms = self._kafka, self._host.clock.true_ms
        records = []
        for shard, told in values.items():
            lane = kafka.lanes[shard]
            lane.told = told[NOTICE_KEY], now_ms
            for key in told.keys() - {NOTICE_KEY}:
                record = Progress.decode(told[key])
                assert (key, shard) == (record_key(record.shard), record.shard)
                assert told[key] == record.encode()
                lane.progress.append((told[key], now_ms))
                records.append(record)
        if records:
            self._host.history.reassigned(records)
            kafka.deals += 1

    def publisher(self, shard: int) -> SimulatedPublisher:
        of = Shard(self._kafka, shard, shard + 1)
        return _Publisher(of, self._fate, self._before_call)


def _backoff(host: Host) -> Backoff:
    return Backoff(host.clock, Random(0), *BACKOFF_MS)


class _Publisher(SimulatedPublisher):
    """The command's, of one shard."""

    def __init__(self, shard: Shard, fate: Callable[[], str], meanwhile: Callable[[], None]):
        super().__init__(shard, fate, meanwhile)
        self._before_call = meanwhile

    def peek(self) -> Progress | None:
        self._before_call()
        return super().peek()

    def start(self) -> Progress | None:
        self._before_call()
        return super().start()


class Resharding:
    """Of one run."""

    def __init__(
        self, seed: int, host: Host, dies: Callable[[], bool], write: Callable[[], None]
    ) -> None:
        """
        Args:
            seed: of the run.
            host: its shards.
            dies: whether a command ends before its next call.
            write: has some timers written.
        """
        self._rng, self._host = Random(f"dealt {seed}"), host
        self._dies, self._write = dies, write
        self.any = happens(seed)
        self._often = self._rng.choice((0.1, 0.3, 0.6))
        self._busy = self._rng.choice((0.0, 0.2, 0.5))  # others, while the command runs
        self._to: int | None = None  # of what was begun
        self._is_second = self._calm = False
        self._lazy: int | None = None  # a shard that falls behind

    def befalls(self) -> tuple[str, Callable[[], None]] | None:
        """What is to happen now, if anything is."""
        if not self.any:
            return None
        if self._to is not None:
            return ("reshard again", self._again) if self._rng.random() < 0.5 else None
        often = self._often if len(self._host.shards) == 1 else 0.2
        return ("reshard", self._begin) if self._rng.random() < often else None

    def choose(self) -> World:
        """The shard that has the next turn."""
        shards, rng = self._host.shards, self._rng
        if len(shards) == 1:
            return shards[0]
        if rng.random() < 0.1:
            self._lazy = rng.choice((None, *range(len(shards))))
        return rng.choice([each for each in shards if each.shard.index != self._lazy])

    def quiet_down(self) -> None:
        """What was begun comes to an end."""
        self._calm = True
        for _ in range(_AT_ONCE):
            if self._to is not None and not self._host.history.violations:
                self._run()

    def _begin(self) -> None:
        """As an operator does: first a look at what would be done."""
        host = self._host
        numbers = range(1, min(_SHARDS_MAX, len(host.kafka.partitions)) + 1)
        others = [number for number in numbers if number != len(host.shards)]
        if not others or not all(each.shard.progress for each in host.shards):
            return
        if len(host.shards) > 1 and self._rng.random() < 0.7:
            self._fall_apart()
        self._draw_keys()
        fewer = [number for number in others if number < len(host.shards)]
        to = self._rng.choice([*others, *fewer, *fewer])
        cluster = SimulatedCluster(host, lambda: "commit", lambda: None)
        try:
            Reassignment(cluster, to, _backoff(host), host.rng.getrandbits).run(dry_run=True)
        except RecoveryRefused as refused:
            self._judge_refusal(str(refused))
            return
        except KafkaUnavailable:
            return
        if self._rng.random() < 0.6:
            self._halve()
        for each in host.shards:
            if self._rng.random() < 0.3:
                each.stop("dequeue", "to be reassigned", {})
                each.stop("ingest", "to be reassigned", {})
        self._to = to
        self._run()

    def _draw_keys(self) -> None:
        """Some of several shards get keys of their own: then copies of each are in flight."""
        host = self._host
        for world in host.shards if len(host.shards) > 1 else ():
            if host.keys.rotates():
                host.history.counts["key rotated before a reshard"] += 1
                operators.rotate_key(world)

    def _fall_apart(self) -> None:
        """Some shards do nothing for a while: their partitions stand behind those of the others, at
        times by more than a ring.
        """
        host, rng, wheel = self._host, self._rng, self._host.setup.wheel
        self._write()
        for world in host.shards:
            for step in (world.step_dequeue, world.step_ingest) * 3:
                step({})
        lazy = rng.sample(host.shards, rng.randint(1, len(host.shards) - 1))
        host.history.say(f"  {[each.shard.index for each in lazy]} do nothing")
        rounds, reach_ms = rng.randint(1, 6), wheel.window_ms + wheel.margin_ms
        apart = 2 * wheel.ring - reach_ms // wheel.precision_ms
        for _ in range(rounds):
            if rng.random() < 0.5:
                self._write()
            host.clock.pass_ms(rng.randint(0, 1 + apart // rounds) * wheel.precision_ms)
            for world in host.shards:
                if world not in lazy or rng.random() < 0.1:
                    for _ in range(rng.randint(1, 4)):
                        rng.choice((world.step_ingest, world.step_dequeue))({})

    def _halve(self) -> None:
        """Timers come, and some that are due at once leave: slots are delivered in part."""
        host, rng = self._host, self._rng
        for _ in range(2):
            self._write()
            for world in host.shards:
                world.step_ingest({})
        host.clock.pass_ms(rng.randint(1, 3) * host.setup.wheel.precision_ms)
        for world in host.shards:
            world.step_dequeue({})

    def _again(self) -> None:
        """It is finished, or undone."""
        if self._rng.random() < 0.2:
            self._to = len(self._host.shards)
        self._run()

    def _run(self) -> None:
        """The command, once."""
        host = self._host
        assert self._to is not None
        host.dealing = True
        self._command(self._to)
        if host.history.shards != len(host.shards):
            self._settle(host.history.shards)
        host.dealing = any(self._is_sealed(each) for each in host.shards)
        if not host.dealing:
            self._to = None

    def _command(self, to: int) -> None:
        host, actor = self._host, Actor("operator")
        host.history.say(f"  reshard --to {to}")
        try:
            host.shards[0].run(actor, lambda: self._deal(to), {})
        finally:
            host.shards[0].release(actor)

    def _deal(self, to: int) -> None:
        host = self._host
        cluster = SimulatedCluster(host, self._fate, self._before_call)
        undoes = to == host.history.shards
        try:
            Reassignment(cluster, to, _backoff(host), host.rng.getrandbits).run(dry_run=False)
        except RecoveryRefused as refused:
            self._judge_refusal(str(refused))
            if undoes and not cluster.is_overtaken:
                host.history.violated("refused: undo", str(refused))
            self._to = host.history.shards  # what is sealed is undone
        except Fenced as fenced:
            host.history.say(f"  ends: {fenced}")
            host.history.counts["reshard overtaken"] += 1
            if not cluster.is_overtaken:
                host.history.violated("fenced", f"a command that nobody has followed: {fenced}")

    def _judge_refusal(self, reason: str) -> None:
        """Nobody begins a new shard on his own, or loses one."""
        history = self._host.history
        history.say(f"  refused: {reason}")
        history.counts["reshard refused"] += 1
        if not any(text in reason for text in _REFUSALS):
            history.violated("refused: reshard", reason)

    def _is_sealed(self, world: World) -> bool:
        newest = world.shard.newest()
        return newest is not None and newest.sealed_for is not None

    def _fate(self) -> str:
        return self._host.chances.fate() if self._rng.random() < _FAULTY else "commit"

    def _before_call(self) -> None:
        """Of the command: it may be killed; others may do something."""
        host, rng = self._host, self._rng
        if rng.random() < _FAULTY and self._dies():
            host.seam.die()
        if self._calm or self._is_second or rng.random() >= self._busy:
            return
        if rng.random() < 0.1:
            self._run_second()
            return
        if rng.random() < 0.05:
            # A reconfigure that has looked for sealed shards before there was one.
            host.history.counts["reconfigured within a reshard"] += 1
            operators.reconfigure(rng.choice(host.shards), {})
        for _ in range(rng.randint(1, 4)):
            world = rng.choice(host.shards)
            rng.choice((world.step_dequeue, world.step_dequeue, world.step_ingest))({})
            if rng.random() < 0.5:
                host.clock.pass_ms(world.setup.wheel.precision_ms)

    def _run_second(self) -> None:
        """Somebody else runs the command, and ends the first one."""
        self._is_second = True
        numbers = range(1, min(_SHARDS_MAX, len(self._host.kafka.partitions)) + 1)
        to = self._to = self._rng.choice(numbers)
        try:
            self._command(to)
        finally:
            self._is_second = False

    # ---- behind it -------------------------------------------------------------------------

    def _settle(self, count: int) -> None:
        """There are so many shards from here on."""
        host, rng = self._host, self._rng
        before = list(host.shards)
        host.history.say(f"! {len(before)} shards become {count}")
        host.history.counts[f"{len(before)} shards become {count}"] += 1
        for world in before:
            world.leave()
        first = before[0]
        for world in before[count:]:
            first.former += world.former
        host.shards[count:] = []
        for index in range(count):
            if index == len(host.shards):
                setup = replace(first.setup, config=first.setup.config)
                host.shards.append(World(host, Shard(host.kafka, index, count), setup, ""))
            world = host.shards[index]
            world.shard = Shard(host.kafka, index, count)
            config = replace(world.setup.config, shard=index, shards=count)
            world.setup = replace(world.setup, config=config)
            self._place(world)
            world.unsettle(parted=False)
        if rng.random() < 0.3:
            self._start_untold(rng.choice(before), len(before))

    def _place(self, world: World) -> None:
        """The directory in which it is served: that of before, another one's, or an empty one."""
        host = self._host
        locked = {shop.directory.path.name for each in host.shards for shop in each.former}
        host.history.counts["directories"] += 1
        new = f"dealt{host.history.counts['directories']}"
        own = [world.name] * 3 if world.name and world.name not in locked else []
        world.name = ""
        names = [name for name in host.unserved() if name not in own]
        world.name = self._rng.choice([*own, *names, new])

    def _start_untold(self, world: World, count: int) -> None:
        """Somebody starts a dequeue in a new directory, with the number of shards of before."""
        host, actor = self._host, Actor("dequeue")
        config = replace(world.setup.config, shard=self._rng.randrange(count), shards=count)
        shard = Shard(host.kafka, config.shard, count)
        host.history.counts["directories"] += 1
        path = host.root / f"untold{host.history.counts['directories']}"
        with host.seam.acting(actor), suppress(KafkaUnavailable, OSError, DiskFull):
            directory = WatchedDirectory.start(
                path, world.setup.wheel, Role.DEQUEUE, fs=host.files(actor)
            )
            publisher = SimulatedPublisher(shard, lambda: "commit", lambda: None)
            dequeue = Dequeue(directory, publisher, host.clock, config)
            try:
                dequeue.start()
                host.history.violated("ownership", f"shard {shard.index} of {count} is gone")
            except RecoveryRefused:
                host.history.counts["untold start refused"] += 1
            directory.stop()
        host.shards[0].release(actor)


def happens(seed: int) -> bool:
    """Whether the partitions of a run may be reassigned: such runs take some four times as long."""
    return Random(f"reshard {seed}").random() < 0.1
