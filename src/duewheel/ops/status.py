"""`duewheel status`: reports a shard from its data directory alone, without a request to Kafka.

It takes no lock and reads mapped pages, so it works beside running processes, and while Kafka is
down.
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from duewheel.api.process_state import ALIVE
from duewheel.api.shard import (
    DequeueView,
    DiskView,
    IngestView,
    QuotaView,
    RecoveringView,
    ShardView,
    StandbyView,
    SupervisedProcess,
    TimerTopicsView,
)
from duewheel.checkpoints import fs
from duewheel.checkpoints.commit_and_close_pages import Marks
from duewheel.checkpoints.held_copies import copies
from duewheel.checkpoints.obstacles import Obstacles
from duewheel.checkpoints.quota_waiting import QuotaWaiting
from duewheel.checkpoints.role import Role
from duewheel.checkpoints.state_file import State
from duewheel.checkpoints.timer_topics_file import TopicSet
from duewheel.checkpoints.unfinished_recovery import recovering
from duewheel.clock import SystemClock
from duewheel.config.settings import Settings
from duewheel.ops.limits import bounds
from duewheel.runtime import run_file
from duewheel.runtime.readiness import ReadyBounds, behind_now_ms, not_ready, process_state
from duewheel.wheel.inspect.pending_counts import PendingTimers
from duewheel.wheel.storage.data_directory import DataDirectory

_REPORTED_MS = 1_000  # dequeue reports twice a second


def status(settings: Settings) -> ShardView:
    """Reads the state of a shard.

    Raises:
        NoDataDirectory: the data directory does not exist yet.
    """
    data_dir = settings.storage.data_dir
    try:
        state = State.open(data_dir, fs.READING_FS)
    except FileNotFoundError as error:
        raise settings.no_data_dir() from error
    with state:
        now_ms = SystemClock().now_ms()
        reasons = not_ready(state, ReadyBounds.of(settings), now_ms)
        pending, delivered = _counts(state, settings)
        return ShardView(
            shard=settings.shard.index,
            role="standby" if state.standby else "owner",
            data_dir=str(data_dir),
            ready=not reasons,
            not_ready=reasons,
            run=_run(data_dir),
            ingest=_ingest(state, now_ms),
            timer_topics=_timer_topics(settings),
            open_targets=settings.timer.open_targets,
            quotas=_quotas(settings, now_ms),
            dequeue=_dequeue(state, settings, now_ms),
            disk=_disk(state, settings),
            standby=_standby(state, now_ms),
            copies_signed=_copies_signed(state),
            bounds=bounds(settings),
            recovering=_recovering(state),
            pending=pending,
            delivered=delivered,
        )


def _run(data_dir: Path) -> dict[str, SupervisedProcess] | None:
    """Reads what the supervisor wrote of its processes; None without a running supervisor."""
    processes = run_file.read(data_dir)
    if processes is None:
        return None
    return {
        name: SupervisedProcess(**one._asdict(), is_failing=one.is_failing)
        for name, one in processes.items()
    }


def _ingest(state: State, now_ms: int) -> IngestView:
    commit, close, lag = state.commit(), state.close(), state.live.lag
    marks = {**(close.marks if close else {}), **commit.marks}
    pid, how = process_state(state, "ingest")
    is_polled = lag.polled_ms > 0
    return IngestView(
        pid=pid,
        state=how,
        lag=lag.messages if is_polled else None,
        lag_ms=lag.age_ms(now_ms) if is_polled else None,
        batch_age_ms=lag.batch_age_ms(now_ms) if is_polled else None,
        lag_polled_ms=lag.polled_ms or None,
        high_water=_named(marks),
    )


def _timer_topics(settings: Settings) -> TimerTopicsView | None:
    """Reads the timer topics as ingest last listed them; None before its first list."""
    topics = TopicSet.read(settings.storage.data_dir)
    if topics is None:
        return None
    return TimerTopicsView(
        read=list(topics.topics), left_out=dict(topics.left_out), faulty=dict(topics.faulty)
    )


def _quotas(settings: Settings, now_ms: int) -> dict[str, QuotaView]:
    """Reports the quota of each topic that has one, and its messages that wait because of it."""
    waiting = QuotaWaiting.read_valid(settings.storage.data_dir, now_ms).by_topic
    return {
        topic: QuotaView(per_second=quota, waiting=waiting[topic])
        for topic, quota in settings.timer.quotas.items()
    }


def _dequeue(state: State, settings: Settings, now_ms: int) -> DequeueView:
    close = state.close()
    floor_ms = close.floor * settings.timer.precision_ms if close else None
    pid, how = process_state(state, "dequeue")
    alive = how in ALIVE
    skew_ms, blocks_closing = state.live.host_clock
    delivered, dead_letters, wait = state.live.deliveries
    obstacles = Obstacles.read(settings.storage.data_dir)
    return DequeueView(
        pid=pid,
        state=how,
        floor_ms=floor_ms,
        floor_ahead_ms=None if floor_ms is None else max(0, floor_ms - now_ms),
        behind_ms=_behind_ms(state, now_ms) if alive and not state.standby else None,
        clock_skew_ms=skew_ms if alive else None,
        closing_blocked=blocks_closing if alive else None,
        delivered=delivered if alive else None,
        dead_letters=dead_letters if alive else None,
        dead_letters_wait=wait if alive else None,
        copies_held=_copies_held(state) if alive else None,
        targets_closed=dict(obstacles.targets) if alive else None,
        transaction_blocked=obstacles.transaction if alive else None,
    )


def _behind_ms(state: State, now_ms: int) -> int:
    """Reports how far delivery is behind; 0 while that may be the age of dequeue's report alone."""
    behind_ms = behind_now_ms(state, now_ms)
    return behind_ms if behind_ms >= _REPORTED_MS else 0


def _copies_held(state: State) -> int:
    """Counts the held copies in the mirrored progress."""
    mirror = state.mirror()
    return copies(mirror.progress.held) if mirror else 0


def _copies_signed(state: State) -> bool | None:
    """Reports whether copies carry a MAC; None before the first progress, and in a recovery."""
    mirror = None if state.needs_recovery else state.mirror()
    return mirror.signs_copies if mirror else None


def _disk(state: State, settings: Settings) -> DiskView:
    space = fs.space(settings.storage.data_dir)
    _, how = process_state(state, "ingest")
    return DiskView(
        free_bytes=space.free_bytes,
        min_free_bytes=settings.storage.min_free.of(space.total_bytes),
        rows_without_room=state.live.rows_without_room if how in ALIVE else 0,
    )


def _standby(state: State, now_ms: int) -> StandbyView | None:
    """Reports how far a standby is behind its owner's closed slots; None in other directories."""
    if not state.standby:
        return None
    records, close = recovering(state), state.close()
    return StandbyView(
        missing=_named(records.missing) if records else {},
        behind_ms=state.live.heartbeat(Role.DEQUEUE).detail,
        followed_slot=close.lower if close else None,
        promotion_wanted=state.live.promotion_wanted(now_ms),
    )


def _recovering(state: State) -> RecoveringView | None:
    records = recovering(state)
    if records is None or (state.standby and records.files_whole):
        return None
    return RecoveringView(
        generation=records.generation,
        files_whole=records.files_whole,
        missing=_named(records.missing),
    )


def _named(marks: Marks) -> dict[str, int]:
    return {f"{topic}-{number}": count for (topic, number), count in marks.items()}


def _counts(state: State, settings: Settings) -> tuple[int, int]:
    """Returns the numbers of pending and of delivered timers."""
    if state.standby:
        return _counts_of_standby(state, settings)
    mirror = state.mirror()
    delivered = mirror.delivered_rows if mirror else 0
    return state.commit().placed - delivered, delivered


def _counts_of_standby(state: State, settings: Settings) -> tuple[int, int]:
    """Counts in the files: no process of a standby counts what the owner delivers."""
    pending = 0
    if not state.needs_recovery:
        with closing(DataDirectory(state.path.parent, settings.wheel, fs.READING_FS)) as directory:
            pending = PendingTimers(directory).count().total
    return pending, max(0, state.commit().placed - pending)
