"""What befalls a shard as a whole: its host, its disk, its directory, its place, its progress."""

from __future__ import annotations

from contextlib import suppress

from tests.simulation.losses import spoil
from tests.simulation.seam import SEAM
from tests.simulation.world import World

from duewheel.checkpoints.state import Damage, State
from duewheel.errors import CorruptFile


def lose_power(world: World) -> None:
    """The host stops, and boots with what its disk has."""
    world.history.say("! the power is lost")
    world.history.counts["power lost"] += 1
    world.end()
    world.disk.lose_power(world.rng)
    world.boot()
    world.unsettle()


def lose_disk(world: World) -> None:
    """Everything is gone."""
    world.end()
    world.disk.clear()
    world.unsettle(parted=True)


def restore(world: World, backup: dict[str, bytes | None]) -> None:
    """The files are those of another time."""
    if backup:
        world.end()
        world.disk.replace(backup)
        world.unsettle(parted=True)


def lose_file(world: World) -> None:
    """One file of the data directory is lost or damaged, perhaps while the power was."""
    if not world.kafka.progress:
        return  # nothing is known of a shard that never ran
    powerless = world.rng.random() < 0.4
    if powerless:
        lose_power(world)
    world.end()
    what, verified = "", False
    if (world.path / "state").exists():
        # A host that went down after a clean stop has lost nothing: not every byte is read.
        with suppress(CorruptFile):
            verified = powerless and State.open(world.path).damage is not Damage.NONE
        what = spoil(world.path, world.rng, verified=verified)
    world.history.say(f"  {what}")
    # A lost state file is a lost directory.
    world.unsettle(parted=world.parted or what.startswith("state "))


def rival(world: World) -> None:
    """Another instance takes over, in another directory; the dequeue here does not know."""
    if not world.kafka.progress:
        return  # there is nothing to take over
    world.history.say("! another instance takes over")
    world.history.counts["rivals"] += 1
    world.kill("ingest")
    if world.shop is not None:
        world.former.append(world.shop)
        world.shop = None
    served = {shop.directory.path.name for shop in world.former}
    names = sorted(path.name for path in world.root.iterdir() if path.name not in served)
    name = f"data{world.history.counts['rivals']}"
    if world.path.exists() and world.rng.random() < 0.4:
        with SEAM.acting(None):  # not the doing of the dequeue in whose turn this comes
            world.disk.copy_folder(world.name, name)
    world.name = world.rng.choice([*names, name, name])
    world.unsettle(parted=True)
    world.take_over = True
    world.step_dequeue({})


def lose_progress(world: World) -> None:
    """The state topic is emptied; only while the local copy of the progress is its equal."""
    if world.shop is None or not world.settled or world.former or world.kafka.transaction:
        return
    mirror = world.shop.directory.state.mirror()
    if mirror is None or mirror[2] != world.kafka.progress[-1][0]:
        return
    world.history.counts["progress lost"] += 1
    world.end()
    world.kafka.progress.clear()
    world.step_dequeue({})
