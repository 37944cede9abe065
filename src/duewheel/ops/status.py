"""`duewheel status`: reports a shard from its data directory alone, without a request to Kafka.

It takes no lock and reads mapped pages, so it works beside running processes, and while Kafka is
down.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing

from duewheel.api.shard import (
    DequeueView,
    DiskView,
    IngestView,
    QuotaView,
    RecoveringView,
    ShardView,
    StandbyView,
    TimerTopicsView,
)
from duewheel.checkpoints import fs
from duewheel.checkpoints.commit_and_close_pages import Marks
from duewheel.checkpoints.held_copies import copies
from duewheel.checkpoints.timer_topics_file import TopicSet
from duewheel.checkpoints.unfinished_recovery import Recovering
from duewheel.clock import Clock, SystemClock
from duewheel.config.settings import Settings
from duewheel.ops.bounds_in_force import bounds
from duewheel.ops.files import open_state
from duewheel.ops.readiness import supervised
from duewheel.runtime.readiness import ReadyBounds, not_ready
from duewheel.runtime.shard_facts import ShardFacts
from duewheel.wheel.inspect.pending_counts import PendingTimers
from duewheel.wheel.storage.data_directory import DataDirectory


def status(settings: Settings, clock: Clock | None = None) -> ShardView:
    """Reads the state of a shard.

    Raises:
        NoDataDirectory: the data directory does not exist yet.
    """
    with open_state(settings) as state:
        facts = ShardFacts(state, (clock or SystemClock()).now_ms())
        reasons = not_ready(facts, ReadyBounds.of(settings))
        pending, delivered = _counts(facts, settings)
        return ShardView(
            shard=settings.shard.index,
            role="standby" if facts.is_standby else "owner",
            data_dir=str(facts.data_dir),
            ready=not reasons,
            not_ready=reasons,
            run=supervised(facts.data_dir),
            ingest=_ingest(facts),
            timer_topics=_timer_topics(facts),
            open_targets=settings.timer.open_targets,
            quotas=_quotas(facts, settings.timer.quotas),
            dequeue=_dequeue(facts),
            disk=DiskView(
                **facts.disk(settings.storage.min_free)._asdict(),
                rows_without_room=facts.rows_without_room,
            ),
            standby=_standby(facts) if facts.is_standby else None,
            copies_signed=facts.copies_signed,
            bounds=bounds(settings),
            recovering=_recovering(facts.recovery),
            pending=pending,
            delivered=delivered,
        )


def _ingest(facts: ShardFacts) -> IngestView:
    commit, close = facts.state.commit(), facts.state.close()
    lag = facts.lag if facts.lag.polled_ms else None
    return IngestView(
        pid=facts.ingest.pid,
        state=facts.ingest.state,
        lag=lag and lag.messages,
        lag_ms=lag and lag.oldest_age_ms,
        batch_age_ms=lag and lag.batch_age_ms,
        lag_polled_ms=lag and lag.polled_ms,
        high_water=_named({**(close.marks if close else {}), **commit.marks}),
    )


def _timer_topics(facts: ShardFacts) -> TimerTopicsView | None:
    """Reads the timer topics as ingest last listed them; None before its first list."""
    topics = TopicSet.read(facts.data_dir)
    if topics is None:
        return None
    return TimerTopicsView(
        read=list(topics.topics),
        left_out=dict(topics.left_out),
        faulty=dict(topics.faulty),
        far_ahead=_named(facts.far_ahead),
    )


def _quotas(facts: ShardFacts, quotas: Mapping[str, int]) -> dict[str, QuotaView]:
    waiting = facts.quota_waiting(quotas)
    return {
        topic: QuotaView(per_second=quota, waiting=waiting[topic])
        for topic, quota in quotas.items()
    }


def _dequeue(facts: ShardFacts) -> DequeueView:
    alive, live = facts.dequeue.is_alive, facts.state.live
    skew_ms, blocks_closing = live.host_clock
    delivered, dead_letters, wait = live.deliveries
    held = copies(facts.mirror.progress.held) if facts.mirror else 0
    return DequeueView(
        pid=facts.dequeue.pid,
        state=facts.dequeue.state,
        floor_ms=facts.floor_ms,
        floor_ahead_ms=None if facts.floor_ms is None else facts.floor_ahead_ms,
        behind_ms=facts.behind_ms if alive and not facts.is_standby else None,
        clock_skew_ms=skew_ms if alive else None,
        closing_blocked=blocks_closing if alive else None,
        delivered=delivered if alive else None,
        dead_letters=dead_letters if alive else None,
        dead_letters_wait=wait if alive else None,
        copies_held=held if alive else None,
        targets_closed=dict(facts.obstacles.targets) if alive else None,
        transaction_blocked=facts.obstacles.transaction if alive else None,
    )


def _standby(facts: ShardFacts) -> StandbyView:
    """Compares a standby with its owner's closed slots."""
    close = facts.state.close()
    return StandbyView(
        missing=_named(facts.unread.missing) if facts.unread else {},
        behind_ms=facts.behind_ms,
        followed_slot=close.lower if close else None,
        promotion_wanted=facts.state.live.promotion_wanted(facts.now_ms),
    )


def _recovering(left: Recovering | None) -> RecoveringView | None:
    return left and RecoveringView(
        generation=left.generation, files_whole=left.files_whole, missing=_named(left.missing)
    )


def _named(marks: Marks) -> dict[str, int]:
    return {f"{topic}-{number}": count for (topic, number), count in marks.items()}


def _counts(facts: ShardFacts, settings: Settings) -> tuple[int, int]:
    """Returns the numbers of pending and of delivered timers."""
    state = facts.state
    if not facts.is_standby:
        delivered = facts.mirror.delivered_rows if facts.mirror else 0
        return state.commit().placed - delivered, delivered
    # No process of a standby counts what the owner delivers: the files are counted.
    pending = 0
    if not state.needs_recovery:
        with closing(DataDirectory(facts.data_dir, settings.wheel, fs.READING_FS)) as directory:
            pending = PendingTimers(directory).count().total
    return pending, max(0, state.commit().placed - pending)
