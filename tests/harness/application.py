"""An application of several shards, and their records in Kafka."""

from __future__ import annotations

import threading
import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.harness.config_file import write_config
from tests.harness.shared_broker import SharedBroker
from tests.harness.timer_shard import TimerShard

from duewheel import factory
from duewheel.api.reshard import Resharded
from duewheel.checkpoints.config_epochs import Epochs
from duewheel.checkpoints.progress import PartitionProgress, Progress
from duewheel.clock import SystemClock
from duewheel.config.settings import Settings, load
from duewheel.kafka.progress.all_shards import all_shards
from duewheel.kafka.topics.admin import KafkaAdmin
from duewheel.ops import reshard
from duewheel.wheel.publisher_protocol import publish_progress


class Application:
    """An application of four partitions, and what is known of its shards."""

    def __init__(self, path: Path, broker: SharedBroker) -> None:
        self.path = path
        self.name = f"reshard-{uuid.uuid4().hex[:8]}"
        timer = {
            "dead_letter_topic": f"{self.name}.dead",
            "state_topic": f"{self.name}.state",
            "slots": 2048,
            "roll_window": "60s",
            "margin": "0s",
        }
        self.config = write_config(path, broker.bootstrap_servers, self.name, timer=timer)
        self.settings = load(self.config)
        self.topic = f"{self.name}.timers"
        self.clock = factory.StoppableClock(threading.Event())
        with KafkaAdmin(self.settings.kafka.client_options("admin")) as admin:
            admin.init_topics(self.settings, partitions=4)

    def of(self, index: int, count: int) -> Settings:
        """The settings of a shard."""
        shard = {"index": index, "count": count}
        data_dir = str(self.path / f"{index} of {count}")
        return load(self.config, {"shard": shard, "storage": {"data_dir": data_dir}})

    def begin(self, count: int = 1, *, behind: int = 0) -> dict[int, Progress]:
        """As many shards as that have progress, each a bit further than the one before it."""
        self.have_room(count)
        now = SystemClock().now_ms() // self.settings.timer.precision_ms
        epochs = Epochs.first(factory.slot_values(self.settings))
        for index in range(count):
            r = now - behind * (count - index)
            parts = {
                (self.topic, n): PartitionProgress(r, 10 * n, 10 * n + 5, 10 * n + 1, half_rows=1)
                for n in range(index, 4, count)
            }
            publisher = factory.publisher(self.settings, self.clock, index)
            publisher.start()
            publish_progress(publisher, Progress(index, count, "a directory", 9, 3, epochs, parts))
            publisher.close()
        return self.records()

    def have_room(self, shards: int) -> None:
        """A partition of the state topic for each, as their `init` adds them."""
        with KafkaAdmin(self.settings.kafka.client_options("admin")) as admin:
            admin.have_partitions(self.settings.state_topic, shards)

    def records(self) -> dict[int, Progress]:
        found = all_shards(self.settings, past_open=True)
        return {index: written.progress for index, written in found.items()}

    def parts(self) -> dict[Any, PartitionProgress]:
        """Of all shards; each partition is in the one it belongs to."""
        found: dict[Any, PartitionProgress] = {}
        for index, record in self.records().items():
            for partition, part in record.partitions.items():
                assert partition[1] % record.shards == index
                assert partition not in found
                found[partition] = part
        return found

    def reshard(self, to: int, *, dry_run: bool = False) -> Resharded:
        return reshard.reassign_partitions(self.settings, to, dry_run=dry_run)

    def local(
        self, index: int, count: int, settings: Settings | None = None, **config: Any
    ) -> TimerShard:
        """A shard whose loop runs here, on the real Kafka."""
        settings = settings or self.of(index, count)
        publisher = factory.publisher(settings, self.clock)
        changed: dict[str, Any] = {"progress_interval_ms": 1, **config}
        configured = replace(factory.dequeue_config(settings), **changed)
        path = settings.storage.data_dir
        return TimerShard(path, settings.wheel, publisher, self.clock, configured)
