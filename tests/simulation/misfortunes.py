"""Faults of a whole shard, its host and its disk: losses of directory, host and progress."""

from __future__ import annotations

from tests.simulation.losses import spoil
from tests.simulation.timers import DEAD, TARGET_PARTITIONS, TARGETS
from tests.simulation.world import World


def lose_power(world: World) -> None:
    """The host stops, and boots with what its disk has."""
    world.history.say("! the power is lost")
    world.history.counts["power lost"] += 1
    world.host.end()
    world.disk.lose_power(world.rng)
    world.host.boot()
    world.chances.clock()
    world.host.unsettle()


def lose_disk(world: World) -> None:
    """Everything is gone."""
    world.host.end()
    world.disk.clear()
    world.host.whole = True
    world.host.unsettle(parted=True)


def restore(world: World, backup: dict[str, bytes | None]) -> None:
    """The files are those of another time."""
    if backup:
        world.host.end()
        world.disk.replace(backup)
        world.host.unsettle(parted=True)


def lose_file(world: World) -> None:
    """One file of the data directory is lost or damaged, perhaps while the power was."""
    if not world.shard.progress:
        return  # nothing is known of a shard that never ran
    if world.rng.random() < 0.4:
        lose_power(world)
    world.end()
    what = spoil(world.path, world.rng) if (world.path / "state").exists() else ""
    world.history.say(f"  {what}")
    # What has changed is noticed when it is used, or never.
    world.host.whole &= not what.endswith("changed")
    # A lost state file is a lost directory.
    world.unsettle(parted=True if what in {"state deleted", "state cut"} else None)


def rival(world: World) -> None:
    """Another instance takes over, in another directory; the one here does not know."""
    if not world.shard.progress:
        return  # there is nothing to take over
    world.history.say("! another instance takes over")
    world.history.counts["rivals"] += 1
    served = world.shop is not None
    world.set_aside_owner()
    names = world.host.unserved()
    if not served and world.path.exists():
        names = sorted([*names, world.name])
    name = f"data{world.history.counts['rivals']}"
    if world.path.exists() and world.rng.random() < 0.4:
        world.disk.copy_folder(world.name, name)
    world.name = world.rng.choice([*names, name, name])
    world.unsettle(parted=True)
    world.take_over = True
    world.step_dequeue({})


def lose_progress(world: World) -> None:
    """The state topic is emptied; only while the local copy of the progress is its equal, and there
    is one shard.
    """
    if world.shop is None or not world.settled or world.former or world.shard.transaction:
        return
    if world.host.dealing or len(world.host.shards) > 1 or world.shard.lane.held:
        return
    mirror = world.shop.directory.state.mirror()
    if mirror is None or mirror.record != world.shard.progress[-1][0]:
        return
    world.history.counts["progress lost"] += 1
    world.end()
    for lane in world.kafka.lanes.values():
        lane.progress.clear()
    # Nothing else may be lost before the local copy is there again, and the disk takes it at last.
    world.kafka.away, world.host.seam.failing = 0, 0
    while not world.shard.progress and not world.history.violations:
        world.step_dequeue({})


def target_unavailable(world: World) -> None:
    """Some or all partitions of a target take no writes; or those that took none do again."""
    kafka, rng = world.kafka, world.rng
    if kafka.down and rng.random() < 0.15:
        kafka.down = frozenset()
        return
    numbers = range(TARGET_PARTITIONS)
    some = rng.choice((numbers, rng.sample(numbers, rng.randint(1, TARGET_PARTITIONS - 1))))
    topic = rng.choice([name for name in TARGETS if name != TARGETS[DEAD]])
    others = {(name, number) for name, number in kafka.down if name != topic}
    kafka.down = frozenset((topic, number) for number in some) | others
    world.history.say(f"  {topic}: {sorted(some)}")
