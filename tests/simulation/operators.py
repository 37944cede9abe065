"""An operator who changes settings or accepts the loss of a partition: `duewheel reconfigure`."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from random import Random

from tests.simulation.host import Setup
from tests.simulation.kafka_model import Partition
from tests.simulation.seam import Actor, Plan
from tests.simulation.settings import MAPPING, mapped, mapped_to
from tests.simulation.shard_model import SimulatedPublisher, offsets_at, offsets_of
from tests.simulation.timers import TOPIC
from tests.simulation.watched_files import WatchedFileSystem
from tests.simulation.watched_parts import WatchedDirectory
from tests.simulation.world import TOPIC_IDS, World

from duewheel.checkpoints.config_epochs import WINDOW
from duewheel.checkpoints.process_role import Role
from duewheel.checkpoints.state_file import State
from duewheel.errors import CorruptFile, RecoveryRefused
from duewheel.wheel.admin.accept_loss import KafkaTopics, accept, losses
from duewheel.wheel.admin.change_settings import Rotation, plan, take
from duewheel.wheel.recovery.survey import survey
from duewheel.wheel.storage.data_directory import hold_role

_ATTEMPTS = 20  # at a command, while Kafka is away


def reconfigure(world: World, plan_of: Plan) -> None:
    """Everything is stopped, and perhaps goes on with other settings, or another key for copies."""
    _run_change(world, _other, plan_of, rotates=world.host.keys.rotates())


def rotate_key(world: World) -> None:
    """Everything is stopped, and goes on with another key for copies."""
    _run_change(world, lambda _: world.setup, {}, rotates=True)


def _run_change(
    world: World, wanted: Callable[[World], Setup], plan_of: Plan, *, rotates: bool
) -> None:
    if not world.shard.progress:
        return
    # By what is there: another draw would make another run of each seed.
    runs = not rotates and (world.path / "state").exists() and len(world.shard.progress) % 2 == 0
    if not runs:
        # Nobody else can start meanwhile: the command has both locks.
        plan_of = {store: what for store, what in plan_of.items() if what != "meanwhile"}
        world.stop("ingest", "for other settings", {})
    setup, actor = wanted(world), Actor("operator")
    if runs:
        _request(world)
    world.stop("dequeue", "for other settings", {})
    change = partial(_change, world, setup, world.host.files(actor), rotates=rotates, runs=runs)
    try:
        world.run(actor, change, plan_of)
    finally:
        world.release(actor)
        _go_by_what_holds(world, setup)


def _request(world: World) -> None:
    """The shard is to take other settings while it runs; the end of dequeue's loop comes later."""
    world.history.counts["settings requested"] += 1
    with suppress(CorruptFile), State.open(world.path) as state:
        state.live.want_settings(1)
    for _ in range(len(world.shard.progress) % 3):
        world.step_ingest({})


def _go_by_what_holds(world: World, setup: Setup) -> None:
    """Whatever became of the command: a start is told by its refusal which settings hold."""
    newest = world.shard.newest()
    assert newest is not None
    values = newest.epochs.newest.values
    wheel = replace(setup.wheel, window_ms=values[WINDOW])
    config = replace(setup.config, slot_config={MAPPING: values[MAPPING]})
    world.setup = replace(setup, wheel=wheel, config=config)


def _other(world: World) -> Setup:
    setup, rng = world.setup, world.rng
    wheel, config = setup.wheel, setup.config
    others = [each.setup for each in world.host.shards if each is not world]
    if others and rng.random() < 0.7:
        # Those of another shard: the partitions may be reassigned only if all have the same.
        other = rng.choice(others)
        config = replace(config, slot_config=other.config.slot_config)
        return replace(setup, wheel=other.wheel, config=config)
    p = wheel.precision_ms
    if rng.random() < 0.8:
        longest = wheel.slots - wheel.margin_ms // p
        # Far apart, so that rows of the one look odd to the other.
        slots = rng.choice((1, 2, longest, longest, rng.randint(1, longest)))
        wheel = replace(wheel, window_ms=slots * p)
    if rng.random() < 0.5:
        config = replace(config, slot_config=mapped_to(1 - mapped(config.slot_config)))
    return replace(setup, wheel=wheel, config=config)


def _change(
    world: World, setup: Setup, fs: WatchedFileSystem, *, rotates: bool, runs: bool
) -> None:
    def at(ms: int) -> dict[tuple[str, int], int]:
        return offsets_at(world.shard, ms)

    publisher = SimulatedPublisher(world.shard, world.chances.fate, lambda: None)
    counts, keys = world.history.counts, world.host.keys
    rotation = None
    if rotates:
        rotation = Rotation(keys.draw, lambda _: offsets_of(world.shard, "end"))
    terms = setup.config, at
    try:
        local = survey(world.path, setup.wheel, fs)
        planned = plan(publisher.peek(), local, setup.wheel, *terms, rotation=rotation, runs=runs)
        if not planned.changes and rotation is None:
            return
        directory = WatchedDirectory.start(world.path, setup.wheel, Role.DEQUEUE, fs=fs)
        ingest = None if runs else hold_role(world.path, Role.INGEST, fs)
        try:
            planned = take(directory, publisher, *terms, rotation=rotation)
            counts["epochs dropped"] += planned.dropped
            counts["key rotated"] += rotation is not None
            counts["settings taken while ingest runs"] += world.ingest is not None
        finally:
            if ingest is not None:
                ingest.close()
            with suppress(OSError):
                directory.stop()
    except RecoveryRefused as refused:
        counts["reconfigure refused"] += 1
        world.history.say(f"  refused: {refused}")
    except CorruptFile:
        if world.host.whole and world.settled:
            raise


def cut_short(world: World, rng: Random, plan_of: Plan) -> None:
    """A partition loses its end, and the operator accepts that; or, where it may not be accepted
    yet, the end is found again. While it is not accepted nobody writes to the partition: what lies
    below the marks then was read.
    """
    kafka = world.kafka
    if not world.shard.progress or world.former or world.standby is not None:
        return
    if world.host.dealing or any(each.former for each in world.host.shards):
        return
    kafka.end_slow()
    for _ in range(rng.randint(5, 30)):
        rng.choice((world.step_ingest, world.step_dequeue, world.step_dequeue))({})
        world.clock.pass_ms(rng.choice((0, world.setup.wheel.precision_ms)))
    for name in ("ingest", "dequeue"):
        world.stop(name, "a partition has lost its end", {})
    known = [each for each in world.shard.partitions if _mark(world, each.number)]
    if not (known and world.settled and world.host.whole) or world.shard.transaction:
        return
    if world.shard.lane.held:
        return  # not simulated: copies that outlive their first copies
    partition = rng.choice(known)
    mark = _mark(world, partition.number)
    end = partition.before_open(rng.randint(max(0, mark - rng.choice((2, 5, 20))), mark - 1))
    world.history.say(f"  partition {partition.number} is cut at {end}, it was taken up to {mark}")
    tail = partition.cut(end)
    _accept_cut(world, partition, plan_of)
    # Killed behind its last step, it is refused when it is run again: nothing is lost then.
    if _mark(world, partition.number) <= end:
        world.history.cut(partition.number, end, mark)
        world.history.counts["loss accepted"] += 1
    else:
        partition.put_back(tail)


def _accept_cut(world: World, partition: Partition, plan_of: Plan) -> None:
    """Run the command until it has done all, if it may."""
    kafka = world.kafka
    told, ended = len(world.shard.progress), False
    kills = {store: what for store, what in plan_of.items() if what == "kill"}
    for attempt in range(_ATTEMPTS):
        if not ended and not world.history.violations:
            ended = _run_accept(world, partition, {} if attempt else kills)
    if len(world.shard.progress) > told:
        # Its transaction is what accepts the loss: the rest is done once disk and Kafka work again.
        world.host.seam.failing, kafka.away = 0, 0
        for _ in range(_ATTEMPTS):
            if _mark(world, partition.number) > partition.end and not world.history.violations:
                _run_accept(world, partition, {})


def _run_accept(world: World, partition: Partition, plan_of: Plan) -> bool:
    """Returns whether the command has come to its end."""
    actor, ended = Actor("operator"), list[bool]()
    try:
        world.run(
            actor,
            lambda: ended.append(_accept(world, partition, world.host.files(actor))),
            plan_of,
        )
    finally:
        world.release(actor)
    return bool(ended)


def _mark(world: World, number: int) -> int:
    local = survey(world.path, world.setup.wheel)
    return local.commit.marks.get((TOPIC, number), 0)


def _accept(world: World, partition: Partition, fs: WatchedFileSystem) -> bool:
    """Returns whether it could be."""
    setup, name = world.setup, (TOPIC, partition.number)
    publisher = SimulatedPublisher(world.shard, world.chances.fate, lambda: None)
    directory = WatchedDirectory.start(world.path, setup.wheel, Role.DEQUEUE, fs=fs)
    ingest = hold_role(world.path, Role.INGEST, fs)
    try:
        topics = KafkaTopics(
            TOPIC_IDS, offsets_of(world.shard, "start"), offsets_of(world.shard, "end")
        )
        local = survey(world.path, setup.wheel, fs)
        found, told = losses([name], publisher.start(), local, setup.config, topics)
        accept(directory, publisher, found, told, TOPIC_IDS)
    except RecoveryRefused as refused:
        world.history.counts["loss refused"] += 1
        world.history.say(f"  refused: {refused}")
        return False
    finally:
        ingest.close()
        with suppress(OSError):
            directory.stop()
    return True
