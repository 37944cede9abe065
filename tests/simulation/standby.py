"""A standby of the simulation: a follower and an ingest, in a directory of their own.

The real Follower, Engine and sink. It begins in an empty directory, or in one whose instance has
lost the shard, and may be killed at any store. Once it is promoted, or its owner has been silent
for too long, its ingest becomes the shard's, and a dequeue starts in its directory.

    warm    a standby with whole files needs a recovery to take over
"""

from __future__ import annotations

from tests.simulation.processes import Following, Standby
from tests.simulation.seam import Actor, Plan
from tests.simulation.shard_model import SimulatedReader
from tests.simulation.watched_parts import WatchedDirectory
from tests.simulation.world import World

from duewheel.checkpoints.local_state import RecoveryRecord
from duewheel.checkpoints.process_role import Role
from duewheel.checkpoints.state_file import State
from duewheel.wheel.dequeue.standby import Follower, Verdict


def stand_by(world: World) -> None:
    """There is a standby from here on."""
    if world.standby is None:
        world.history.counts["standbys"] += 1
        name = f"standby{world.history.counts['standbys']}"
        world.standby = Standby(world.rng.choice([*world.host.unserved(), name, name]))
        world.history.say(f"  in {world.standby.name}")


def want_promotion(world: World) -> None:
    """The operator tells it to take over, most often once it is warm."""
    standby = world.standby
    if standby is None or standby.follower is None:
        return
    if standby.ingest is not None or world.rng.random() < 0.2:
        with State.open(world.root / standby.name, world.host.files(None)) as state:
            state.live.want_promotion(world.clock.now_ms())


def step(world: World, plan: Plan) -> None:
    """A turn of one of its processes."""
    standby = world.standby
    if standby is None:
        return
    if standby.follower is None or world.rng.random() < 0.5:
        step_follower(world, standby, plan)
    else:
        world.step_ingest_of(standby, plan)
    if standby.verdict is not None and world.standby is standby:
        take_over(world, standby)


def step_follower(world: World, standby: Standby, plan: Plan) -> None:
    """Start the follower, or one look of it."""
    if standby.follower is None:
        actor = Actor("follower")
        world.history.say("follower starts")
        world.run(actor, lambda: _start(world, standby, actor), plan)
        world.let_go_unless_known(actor)
    else:
        world.history.say("follower looks")
        world.run(standby.follower.actor, standby.look, plan)


def _start(world: World, standby: Standby, actor: Actor) -> None:
    setup, path = world.setup, world.root / standby.name
    directory = WatchedDirectory.start(path, setup.wheel, Role.DEQUEUE, fs=world.host.files(actor))
    reader = SimulatedReader(world.shard)
    follower = Follower(directory, reader, world.clock, setup.config)
    standby.follower = Following(actor, directory, follower)
    standby.look()


def take_over(world: World, standby: Standby) -> None:
    """The follower's process becomes a dequeue; ingest runs on."""
    verdict, standby.verdict = standby.verdict, None
    if verdict is None or standby.follower is None:
        return  # it has died since
    world.history.say(f"! the standby takes over: {verdict.value}")
    state = standby.follower.directory.state
    whole = world.host.whole and not state.needs_recovery
    world.hand_over(standby, told=verdict is Verdict.PROMOTED)
    if world.shop is not None and world.settled and world.name == standby.name:
        record = RecoveryRecord.read(world.path)
        case = record.case if record else "none"
        world.history.counts[f"promoted: {case}"] += 1
        # In a new directory there is nothing yet that could be kept.
        if whole and case not in {"standby", "intact", "new"}:
            world.history.violated("warm", f"{case} is carried out")
