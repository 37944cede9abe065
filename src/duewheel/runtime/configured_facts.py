"""The facts of a shard that need its settings (shard_facts.py has the others)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import NamedTuple

from duewheel.checkpoints import fs
from duewheel.checkpoints.commit_and_close_pages import Marks
from duewheel.checkpoints.quota_waiting import QuotaWaiting
from duewheel.checkpoints.state_file import State
from duewheel.checkpoints.timer_topics_file import TopicSet
from duewheel.config.settings import Settings
from duewheel.runtime.readiness import ReadyBounds, not_ready
from duewheel.runtime.shard_facts import ShardFacts
from duewheel.streaming.batch_attempt import SPARK_DIR
from duewheel.streaming.early_ends import waiting_far_ahead


class TopicFacts(NamedTuple):
    """The timer topics, as ingest last listed them."""

    read: tuple[str, ...]
    left_out: Mapping[str, str]
    faulty: Mapping[str, str]
    far_ahead: Marks


class QuotaFacts(NamedTuple):
    """The quota of a timer topic."""

    per_second: int
    waiting: int


class DiskFacts(NamedTuple):
    """The disk of the data directory."""

    free_bytes: int
    min_free_bytes: int
    rows_without_room: int


class ConfiguredFacts(ShardFacts):
    """The facts of the shard with these settings."""

    def __init__(
        self,
        state: State,
        now_ms: int,
        settings: Settings,
        count: Callable[[], int] | None = None,
    ) -> None:
        """As ShardFacts."""
        super().__init__(state, now_ms, count)
        self.settings, self.shard = settings, settings.shard.index
        self.open_targets = settings.timer.open_targets

    @cached_property
    def not_ready(self) -> Mapping[str, str]:
        return not_ready(self, ReadyBounds.of(self.settings))

    @property
    def ready(self) -> bool:
        return not self.not_ready

    @property
    def timer_topics(self) -> TopicFacts | None:
        """None before the first list of ingest."""
        topics = TopicSet.read(self.path)
        if topics is None:
            return None
        far_ahead = waiting_far_ahead(self.path / SPARK_DIR)
        return TopicFacts(topics.topics, topics.left_out, topics.faulty, far_ahead)

    @cached_property
    def quotas(self) -> Mapping[str, QuotaFacts]:
        waiting = QuotaWaiting.read_valid(self.path, self.now_ms).by_topic
        quotas = self.settings.timer.quotas.items()
        return {topic: QuotaFacts(quota, waiting[topic]) for topic, quota in quotas}

    @cached_property
    def disk(self) -> DiskFacts:
        space = fs.space(self.path)
        least = self.settings.storage.min_free.of(space.total_bytes)
        return DiskFacts(space.free_bytes, least, self.rows_without_room)
