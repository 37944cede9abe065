"""An operator who changes the settings of the shard, as `duewheel reconfigure` does."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

from tests.simulation.kafka_model import SimulatedPublisher, offsets_at
from tests.simulation.seam import Actor, Plan
from tests.simulation.settings import MAPPING, mapped, mapped_to
from tests.simulation.world import Setup, World

from duewheel.checkpoints.epochs import WINDOW
from duewheel.errors import CorruptFile, RecoveryRefused
from duewheel.wheel.data_directory import DataDirectory, Role, hold_role
from duewheel.wheel.reconfiguring import plan, take
from duewheel.wheel.surveying import survey


def reconfigure(world: World, plan_of: Plan) -> None:
    """Everything is stopped, and perhaps goes on with other settings."""
    # Nobody else can start meanwhile: the command has both locks.
    plan_of = {store: what for store, what in plan_of.items() if what != "meanwhile"}
    if not world.kafka.progress:
        return
    for name in ("ingest", "dequeue"):
        world.stop(name, "for other settings", {})
    setup, actor = _other(world), Actor("operator")
    try:
        world.run(actor, lambda: _change(world, setup), plan_of)
    finally:
        world.release(actor)
        _go_by_what_holds(world, setup)


def _go_by_what_holds(world: World, setup: Setup) -> None:
    """Whatever became of the command: a start is told by its refusal which settings hold."""
    newest = world.kafka.newest()
    assert newest is not None
    values = newest.epochs.newest.values
    wheel = replace(setup.wheel, window_ms=values[WINDOW])
    config = replace(setup.config, slot_config={MAPPING: values[MAPPING]})
    world.setup = replace(setup, wheel=wheel, config=config)


def _other(world: World) -> Setup:
    setup, rng = world.setup, world.rng
    wheel, config = setup.wheel, setup.config
    p = wheel.precision_ms
    if rng.random() < 0.8:
        longest = wheel.slots - wheel.margin_ms // p
        # Far apart, so that rows of the one look odd to the other.
        slots = rng.choice((1, 2, longest, longest, rng.randint(1, longest)))
        wheel = replace(wheel, window_ms=slots * p)
    if rng.random() < 0.5:
        config = replace(config, slot_config=mapped_to(1 - mapped(config.slot_config)))
    return replace(setup, wheel=wheel, config=config)


def _change(world: World, setup: Setup) -> None:
    def at(ms: int) -> dict[tuple[str, int], int]:
        return offsets_at(world.kafka, ms)

    publisher = SimulatedPublisher(world.kafka, world.chances.fate, lambda: None)
    counts = world.history.counts
    try:
        local = survey(world.path, setup.wheel)
        if not plan(publisher.peek(), local, setup.wheel, setup.config, at).changes:
            return
        directory = DataDirectory.start(world.path, setup.wheel, Role.DEQUEUE)
        ingest = hold_role(world.path, Role.INGEST)
        try:
            planned = take(directory, publisher, setup.config, at)
            counts["epochs dropped"] += planned.dropped
        finally:
            ingest.close()
            with suppress(OSError):
                directory.stop()
    except RecoveryRefused as refused:
        counts["reconfigure refused"] += 1
        world.history.say(f"  refused: {refused}")
    except CorruptFile:
        if world.whole and world.settled:
            raise
