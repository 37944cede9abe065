"""Reconfigures the shard of a recovery world."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tests.harness.local_world import PRECISION_MS
from tests.harness.recovery_world import RecoveryWorld, half_delivered

from duewheel.checkpoints.process_role import Role
from duewheel.checkpoints.progress import RECORD_BYTES_MAX
from duewheel.wheel.admin.change_settings import Plan, Rotation, take
from duewheel.wheel.dequeue_config import DequeueConfig
from duewheel.wheel.slots import WheelConfig
from duewheel.wheel.storage.data_directory import DataDirectory, hold_role

OTHER = DequeueConfig(0, 1, {"levels_ms": [1]}, 2, progress_interval_ms=PRECISION_MS)


@contextmanager
def alone(world: RecoveryWorld, wheel: WheelConfig | None = None) -> Iterator[DataDirectory]:
    """The directory, with both roles."""
    directory = DataDirectory.start(world.path, wheel or world.wheel, Role.DEQUEUE)
    ingest = hold_role(world.path, Role.INGEST)
    try:
        yield directory
    finally:
        ingest.close()
        directory.close()


def reconfigure(
    world: RecoveryWorld,
    config: DequeueConfig,
    wheel: WheelConfig | None = None,
    record_bytes_max: int = RECORD_BYTES_MAX,
    rotation: Rotation | None = None,
) -> Plan:
    """Change the settings; the world goes on with them."""
    with alone(world, wheel) as directory:
        offsets_at = world.shard.offsets_at
        planned = take(directory, world.publisher, config, offsets_at, record_bytes_max, rotation)
    use(world, config, wheel)
    return planned


def caught_up(world: RecoveryWorld) -> None:
    """Rows placed, some of them delivered, everything stopped."""
    half_delivered(world)
    world.ingest()
    world.kill()


def use(world: RecoveryWorld, config: DequeueConfig, wheel: WheelConfig | None = None) -> None:
    world.wheel = wheel or world.wheel
    world.config = config
    world.shard = world.beside(world.path)
