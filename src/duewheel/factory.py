"""Builds from the settings of a shard the parts that know no settings, such as wheel's.

kafka/shard_settings.py derives its partitions, transactional id and time limits.
"""

from __future__ import annotations

import os
import threading
from functools import cache
from typing import Any, Literal

import structlog

from duewheel.checkpoints.disk_room import copies_on_write
from duewheel.checkpoints.process_role import Role
from duewheel.checkpoints.progress import record_key
from duewheel.clock import SystemClock
from duewheel.config.settings import Settings
from duewheel.config.values import as_millis
from duewheel.kafka.connect.clients import KafkaClients
from duewheel.kafka.log.compression import Compression
from duewheel.kafka.progress.progress_reader import KafkaProgressReader
from duewheel.kafka.progress.state_topic import state_partition
from duewheel.kafka.publish.fenced_session import ShardNames
from duewheel.kafka.publish.publisher import NO_HOOKS, KafkaPublisher, PublisherHooks
from duewheel.kafka.shard_settings import publisher_limits, transactional_id
from duewheel.kafka.topics.admin import KafkaAdmin
from duewheel.osutil.terminal import bar_of_bytes
from duewheel.schemas.request.acceptance_rules import Rules, compile_suite, load_suite
from duewheel.schemas.request.parser import Contract
from duewheel.wheel.dequeue.prefetch import ReadAheadConfig
from duewheel.wheel.dequeue.receipt_rows import Receipts
from duewheel.wheel.dequeue_config import DequeueConfig
from duewheel.wheel.policies import table as policies
from duewheel.wheel.storage.data_directory import DataDirectory

log = structlog.get_logger(__name__)

COPIES_ON_WRITE = (
    "copies on write: while it is full, each store to a mapped file kills the process; use ext4 or "
    "xfs, or reserve space that nothing else can take"
)


class StoppableClock(SystemClock):
    """This host's clock; sleeps end early once the process is stopping."""

    def __init__(self, stopping: threading.Event) -> None:
        self.stopping = stopping

    def sleep(self, seconds: float) -> None:
        self.stopping.wait(seconds)


def start_directory(settings: Settings, role: Role) -> DataDirectory:
    """Starts the data directory in this role; a bar shows the progress of creating a wheel.

    Raises:
        DuewheelError: as `DataDirectory.start`.
    """
    # RocksDB, the JVM and Spark's tasks would let others read their files, with message bodies.
    os.umask(0o077)
    with bar_of_bytes("making the wheel") as progress:
        directory = DataDirectory.start(settings.storage.data_dir, settings.wheel, role, progress)
    kind = copies_on_write(directory.path)
    if kind is not None:
        log.warning(COPIES_ON_WRITE, file_system=kind, path=str(directory.path))
    return directory


def contract(settings: Settings) -> Contract:
    """The rules for messages."""
    timer = settings.timer
    forbidden = sorted({*timer.topics, *settings.service_topics.values()})
    return Contract(
        levels_ms=timer.levels_ms,
        topics=timer.contracts,
        dead_letter_topic=settings.dead_letter_topic,
        rules=_rules(as_millis(timer.max_delay), tuple(forbidden), settings.timer_topics.regex),
        default=timer.default_contract,
    )


@cache  # `serve` and `send-lines` check each new timer
def _rules(max_delay_ms: int, forbidden_targets: tuple[str, ...], timer_topics: str) -> Rules:
    parameters = {
        "max_delay_ms": max_delay_ms,
        "forbidden_targets": list(forbidden_targets),
        "timer_topics": timer_topics,
    }
    return compile_suite(load_suite(), parameters)


def slot_values(settings: Settings) -> dict[str, Any]:
    """The settings that decide a record's slot, as the progress stores them."""
    return dequeue_config(settings).slot_values(settings.wheel)


def dequeue_config(settings: Settings) -> DequeueConfig:
    """Bounds and identity of the dequeue loop."""
    return DequeueConfig(
        shard=settings.shard.index,
        shards=settings.shard.count,
        slot_config=contract(settings).slot_values(),
        chunk_records=settings.dequeue.chunk_records,
        chunk_bytes=settings.dequeue.chunk_bytes,
        take_over_after_ms=as_millis(settings.shard.take_over_after),
        clock_skew_max_ms=as_millis(settings.dequeue.clock_skew_max),
        policies=policies.configured(settings),
        reply_topic=settings.timer.reply_topic,
        lateness_p99_ms=settings.by_topic("lateness_p99"),
    )


def read_ahead_config(settings: Settings) -> ReadAheadConfig:
    """Bounds of reading ahead into the page cache."""
    return ReadAheadConfig(
        ahead_ms=as_millis(settings.dequeue.read_ahead),
        bytes_max=settings.dequeue.read_ahead_bytes,
    )


def publisher(
    settings: Settings,
    clock: StoppableClock,
    shard: int | None = None,
    hooks: PublisherHooks = NO_HOOKS,
) -> KafkaPublisher:
    """The publisher of a shard, by default this one; its calls end early once it is stopping."""
    number = settings.shard.index if shard is None else shard
    return KafkaPublisher(
        settings.kafka.client_options("producer"),
        ShardNames(
            transactional_id(settings, number),
            settings.state_topic,
            settings.dead_letter_topic,
            number,
        ),
        clock,
        limits=publisher_limits(settings),
        compression=Compression(
            settings.dequeue.compression, settings.dequeue.compression_by_topic
        ),
        receipts=receipts(settings),
        stopping=clock.stopping,
        hooks=hooks,
    )


def receipts(settings: Settings) -> Receipts:
    """The rule which deliveries have a receipt, or a header with their lateness."""
    return Receipts(
        topic=settings.timer.receipts_topic,
        without=frozenset(settings.by_topic("receipts")),
        lateness_headers=frozenset(settings.by_topic("lateness_header")),
    )


def kafka_clients(settings: Settings, kind: Literal["consumer", "producer"]) -> KafkaClients:
    """Clients of the cluster, with the options of a kind."""
    return KafkaClients(settings.kafka.client_options(kind))


def kafka_admin(settings: Settings, stopping: threading.Event | None = None) -> KafkaAdmin:
    """An admin client; once `stopping` is set, no call waits longer than a moment."""
    return KafkaAdmin(settings.kafka.client_options("admin"), stopping=stopping)


def progress_reader(settings: Settings, clock: StoppableClock) -> KafkaProgressReader:
    """A standby's reader of its shard's progress."""
    return KafkaProgressReader(
        kafka_clients(settings, "consumer"),
        state_partition(settings.state_topic, settings.shard.index),
        record_key(settings.shard.index),
        transactional_id(settings),
        stopping=clock.stopping,
    )
