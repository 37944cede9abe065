"""The parts of a LocalService (service.py): settings, a shard, clients connected to it."""

from __future__ import annotations

import logging
import random
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from unittest import mock

import structlog
from pydantic import ValidationError

from duewheel import factory
from duewheel.api.model import text_of
from duewheel.checkpoints.config_epochs import Epochs
from duewheel.checkpoints.process_role import Role
from duewheel.clock import SystemClock
from duewheel.config.settings import Settings
from duewheel.config.sources import read_file
from duewheel.errors import ConfigError
from duewheel.kafka.connect.clients import KafkaClients
from duewheel.kafka.log.leader_requests import LeaderRequests
from duewheel.schemas.batches import TopicPartition
from duewheel.testing.clock import ManualClock
from duewheel.testing.local_shard import LocalShard
from duewheel.testing.memory_cluster import PARTITIONS, MemoryCluster, MemoryLeaders
from duewheel.testing.memory_publisher import MemoryPublisher
from duewheel.testing.unsynced import Unsynced
from duewheel.wheel.slots import WheelConfig

START = datetime(2027, 1, 15, 8, tzinfo=UTC)
SLOT_MS = 100
WINDOW_MS = 8 * 3_600_000
SETTINGS: Mapping[str, Any] = {
    "timer": {
        "topics": ["timers"],
        "targets": ["*"],
        "reply_topic": "timers.replies",
        "topic": {"timers": {"recurring": True}},
    }
}
"""The settings where a test gives none: one timer topic, open for all targets and schedules."""


_WHEEL = WheelConfig(SLOT_MS, WINDOW_MS // SLOT_MS, WINDOW_MS, margin_ms=0)


def load_settings(given: Mapping[str, Any] | Path | str) -> Settings:
    """Checks the sections of a configuration, or those of a file; reads no environment.

    Raises:
        ConfigError: they cannot be used.
    """
    values = given if isinstance(given, Mapping) else read_file(Path(given))
    try:
        settings = Settings(**values)
    except ValidationError as error:
        raise ConfigError(f"the settings cannot be used: {text_of(error)}") from None
    if settings.timer.topics_pattern is not None:
        raise ConfigError("timer.topics_pattern: name the topics of a test in timer.topics")
    return settings


def timer_partitions(settings: Settings) -> list[TopicPartition]:
    """Lists the partitions of the timer topics."""
    return [(topic, number) for topic in settings.timer.topics for number in range(PARTITIONS)]


def epochs_of(shard: LocalShard) -> Epochs:
    """Returns the settings epochs of a started shard, with the key of its copies."""
    mirror = shard.directory(Role.DEQUEUE).state.mirror()
    assert mirror is not None, "written by the start"
    return mirror.progress.epochs


@contextmanager
def started_shard(
    settings: Settings, clock: ManualClock, cluster: MemoryCluster
) -> Iterator[LocalShard]:
    """Starts both processes of a new shard, on files that are removed in the end."""
    publisher = MemoryPublisher(cluster, clock, settings)
    config = factory.dequeue_config(settings)
    with tempfile.TemporaryDirectory(prefix="duewheel-") as folder:
        shard = LocalShard(Path(folder), _WHEEL, publisher, clock, config, fs=Unsynced())
        try:
            starts = dict.fromkeys(timer_partitions(settings), 0)
            shard.start_dequeue(starts, draw=random.Random(0).getrandbits)
            shard.start_ingest()
            yield shard
        finally:
            for role in Role:
                shard.kill(role)


@contextmanager
def clients_of(cluster: MemoryCluster, clock: ManualClock) -> Iterator[None]:
    """Connects duewheel's clients to the cluster, and gives them its clock."""

    def connect(_: KafkaClients, kind: type, __: object, **options: Any) -> Any:
        return cluster.open(kind, **options)

    with (
        mock.patch.object(KafkaClients, "open", connect),
        mock.patch.object(LeaderRequests, "connect", return_value=MemoryLeaders(cluster)),
        mock.patch.object(SystemClock, "now_ms", clock.now_ms),
    ):
        yield


@contextmanager
def without_log_lines() -> Iterator[None]:
    """Drops the engine's log lines below errors, unless the test configures structlog itself."""
    if structlog.is_configured():
        yield
        return
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    try:
        yield
    finally:
        structlog.reset_defaults()
