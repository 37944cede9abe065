"""A shard without Spark, in this process, whose dequeue publishes to a real Kafka."""

from __future__ import annotations

from pathlib import Path

from tests.harness.fault_judge import FaultTopics
from tests.harness.timer_shard import TimerShard

from duewheel.checkpoints.process_role import Role
from duewheel.clock import SystemClock
from duewheel.kafka.log.compression import Compression
from duewheel.kafka.publish.fenced_session import ShardNames
from duewheel.kafka.publish.publisher import KafkaPublisher
from duewheel.kafka.transaction_limits import TransactionLimits
from duewheel.runtime.shard_facts import ShardFacts
from duewheel.wheel.append.engine import Engine
from duewheel.wheel.dequeue.lifecycle import Dequeue
from duewheel.wheel.dequeue.statistics import Statistics
from duewheel.wheel.dequeue_config import DequeueConfig
from duewheel.wheel.slots import WheelConfig

CLOCK = SystemClock()


class KafkaShard:
    """Not started; what ingest takes is up to the class that derives from it.

    Attributes:
        local: its processes.
    """

    def __init__(
        self,
        path: Path,
        servers: str,
        topics: FaultTopics,
        wheel: WheelConfig,
        config: DequeueConfig,
        limits: TransactionLimits,
        compression: Compression | None = None,
    ) -> None:
        """
        Args:
            path: of the data directory.
            servers: where dequeue reaches Kafka.
            topics, wheel, config, limits, compression: of the shard.
        """
        self.topics = topics
        names = ShardNames(
            f"{topics.state}-{config.shard}", topics.state, topics.dead_letters, config.shard
        )
        client = {"bootstrap_servers": servers}
        self.publisher = KafkaPublisher(
            *(client, names, CLOCK), limits=limits, compression=compression
        )
        self.local = TimerShard(path, wheel, self.publisher, CLOCK, config)

    @property
    def engine(self) -> Engine:
        assert self.local.ingest is not None, "ingest does not run"
        return self.local.ingest

    @property
    def dequeue(self) -> Dequeue:
        assert self.local.dequeue is not None, "dequeue does not run"
        return self.local.dequeue

    @property
    def statistics(self) -> Statistics:
        return self.dequeue.statistics

    @property
    def copies_held(self) -> int:
        """As `status` and the metric have it."""
        return ShardFacts(self.local.directory(Role.DEQUEUE).state, CLOCK.now_ms()).copies_held

    def stop(self) -> None:
        for role in Role:
            self.local.kill(role)
        self.publisher.close()
