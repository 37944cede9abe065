"""The facts of a shard that need its settings (shard_facts.py has the others)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property

from duewheel.api.reasons import REASONS
from duewheel.api.shard import DiskView, QuotaView, RateView, TimerTopicsView, by_partition
from duewheel.checkpoints.disk_room import Room
from duewheel.checkpoints.quota_waiting import QuotaWaiting
from duewheel.checkpoints.state_file import State
from duewheel.checkpoints.timer_topics_file import TopicSet
from duewheel.config.settings import Settings
from duewheel.config.values import show_rate
from duewheel.runtime.readiness import ReadyBounds, not_ready
from duewheel.runtime.shard_facts import ShardFacts
from duewheel.streaming.batch_attempt import SPARK_DIR
from duewheel.streaming.early_ends import waiting_far_ahead
from duewheel.wheel.policies.rate import queue_of


class ConfiguredFacts(ShardFacts):
    """The facts of the shard with these settings."""

    def __init__(
        self,
        state: State,
        now_ms: int,
        settings: Settings,
        count: Callable[[], int | None] | None = None,
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
    def by_reason(self) -> dict[str, bool]:
        """Whether each reason holds."""
        return {reason: reason in self.not_ready for reason in (*REASONS, "unreadable")}

    @property
    def timer_topics(self) -> TimerTopicsView | None:
        """None before the first list of ingest."""
        topics = TopicSet.read(self.path)
        if topics is None:
            return None
        return TimerTopicsView(
            read=list(topics.topics),
            left_out=dict(topics.left_out),
            faulty=dict(topics.faulty),
            far_ahead=by_partition(waiting_far_ahead(self.path / SPARK_DIR)),
        )

    @cached_property
    def quotas(self) -> dict[str, QuotaView]:
        waiting = QuotaWaiting.read_valid(self.path, self.now_ms).by_topic
        return {
            topic: QuotaView(per_second=quota, waiting=waiting[topic])
            for topic, quota in self.settings.by_topic("quota_per_second").items()
        }

    @cached_property
    def rates(self) -> dict[str, RateView]:
        """By the newest progress of this directory; a standby has none of its own."""
        mirror = self.mirror if self.settings.rates else None
        charged_ms = mirror.progress.charged_ms if mirror else {}
        views = {}
        for target, per_second in self.settings.rates.items():
            waiting, wait_ms = queue_of(charged_ms.get(target, 0), self.now_ms, per_second)
            rate = show_rate(per_second)
            views[target] = RateView(rate=rate, waiting=waiting, wait_ms=wait_ms)
        return views

    @cached_property
    def disk(self) -> DiskView:
        room = Room.of(self.path, self.settings.storage.min_free.of)
        return DiskView(**room._asdict(), rows_without_room=self.rows_without_room)
