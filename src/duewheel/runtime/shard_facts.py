"""What `status`, `health`, the metrics and the HTTP API say of a shard, from the files of its data
directory at one moment. Each fact is computed here alone. Times are milliseconds, and none is below
0 if a clock was set back; instants are epoch ms by this host's clock.

Invariant: this module and all that it imports are light, because `duewheel health` runs every few
seconds: tuples with names, no dataclasses, whose import and classes would cost a quarter of it
(tests/unit/runtime/test_health.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from duewheel.api.process_state import ALIVE, ProcessState
from duewheel.checkpoints import fs
from duewheel.checkpoints.file_lock import holder_of
from duewheel.checkpoints.obstacles import Obstacles
from duewheel.checkpoints.role import Role
from duewheel.checkpoints.unfinished_recovery import Recovering, recovering
from duewheel.runtime import run_file

if TYPE_CHECKING:  # they import pydantic, numpy or pyarrow
    from duewheel.checkpoints.commit_and_close_pages import Marks
    from duewheel.checkpoints.progress_mirror import Mirror
    from duewheel.checkpoints.state_file import State
    from duewheel.config.values import Share


_REPORTED_MS = 1_000  # dequeue reports twice a second


class ProcessFacts(NamedTuple):
    """One of the two processes."""

    pid: int | None
    state: ProcessState  # starting until its first heartbeat; paused while it is idle by request
    silent_ms: int  # since its last heartbeat
    is_paused: bool  # by request, whether it runs or not

    @property
    def is_alive(self) -> bool:
        """Whether it writes heartbeats."""
        return self.state in ALIVE


class LagFacts(NamedTuple):
    """The lag of ingest, as dequeue last measured it (lag_watch.py)."""

    messages: int  # offsets that can be read and are not in the wheel
    oldest_age_ms: int  # of these, since a poll first saw it
    batch_age_ms: int  # without a finished batch, while there were some to read
    polled_ms: int  # when Kafka last returned the ends of the timer topics; 0: never
    poll_age_ms: int  # since then
    open: int  # offsets behind an open transaction


class DiskFacts(NamedTuple):
    """Free bytes of the data directory's disk, and those that ingest must leave."""

    free_bytes: int
    min_free_bytes: int


class ShardFacts:
    """See the module's head."""

    def __init__(self, state: State, now_ms: int) -> None:
        """`state` stays open meanwhile; `now_ms` is the moment."""
        self.state, self.now_ms = state, now_ms
        self.data_dir = state.path.parent
        self.is_standby = state.standby

    def since_ms(self, instant_ms: int) -> int:
        """How long ago an instant was."""
        return max(0, self.now_ms - instant_ms)

    @cached_property
    def ingest(self) -> ProcessFacts:
        """Ingest."""
        return self._process(Role.INGEST)

    @cached_property
    def dequeue(self) -> ProcessFacts:
        """Dequeue."""
        return self._process(Role.DEQUEUE)

    @property
    def processes(self) -> dict[str, ProcessFacts]:
        """Both, by name."""
        return {"ingest": self.ingest, "dequeue": self.dequeue}

    def _process(self, role: Role) -> ProcessFacts:
        beat, is_paused = self.state.live.heartbeat(role), self.state.live.paused(role)
        holder = holder_of(self.data_dir / role.lock_name)
        how: ProcessState
        if holder is None:
            how = "stopped"
        elif beat.pid != holder:
            how = "starting"
        else:
            how = "paused" if is_paused else "running"
        return ProcessFacts(holder, how, self.since_ms(beat.at_ms), is_paused)

    @cached_property
    def supervised(self) -> Mapping[str, run_file.Supervised] | None:
        """The processes as `duewheel run` sees them; None without one."""
        return run_file.read(self.data_dir)

    @cached_property
    def lag(self) -> LagFacts:
        """The lag of ingest; zeros before the first poll."""
        lag = self.state.live.lag
        return LagFacts(
            lag.messages,
            lag.age_ms(self.now_ms),
            lag.batch_age_ms(self.now_ms),
            lag.polled_ms,
            self.since_ms(lag.polled_ms),
            lag.open,
        )

    @property
    def unplanned_ms(self) -> int:
        """How long ingest has had no process that plans batches."""
        since_ms = self.state.live.heartbeat(Role.INGEST).detail
        return self.since_ms(since_ms) if since_ms else 0

    @property
    def rows_without_room(self) -> int:
        """Messages that wait for room on the disk."""
        return self.state.live.rows_without_room if self.ingest.is_alive else 0

    @property
    def behind_ms(self) -> int:
        """Age of the oldest slot that is not delivered, as dequeue last reported it, plus the time
        since; of a standby: of the oldest that its owner has closed and it has not taken. 0 below a
        second: an idle shard is up to a slot and a heartbeat behind.
        """
        beat = self.state.live.heartbeat(Role.DEQUEUE)
        silent_ms = self.since_ms(beat.at_ms) if beat.at_ms else 0
        age_ms = beat.detail + (silent_ms if silent_ms >= _REPORTED_MS else 0)
        return age_ms if age_ms >= _REPORTED_MS else 0

    @cached_property
    def floor_ms(self) -> int | None:
        """End of the last closed slot; None before the first."""
        close = self.state.close()
        return None if close is None else close.floor * int(self.state.identity["precision_ms"])

    @property
    def floor_ahead_ms(self) -> int:
        """How far that is ahead of this host's clock: timers that are due before it are late."""
        return max(0, (self.floor_ms or 0) - self.now_ms)

    @cached_property
    def obstacles(self) -> Obstacles:
        """What keeps deliveries from leaving; nothing while dequeue does not run."""
        return Obstacles.read(self.data_dir) if self.dequeue.is_alive else Obstacles()

    @cached_property
    def unread(self) -> Recovering | None:
        """The closed offsets that are not taken yet, if any; a standby usually has some."""
        return recovering(self.state)

    @property
    def recovery(self) -> Recovering | None:
        """The recovery that stops the deliveries. A standby has none, whatever it still reads."""
        is_following = self.is_standby and self.unread is not None and self.unread.files_whole
        return None if is_following else self.unread

    @property
    def missing(self) -> int:
        """Offsets that are read again, transaction markers included."""
        return sum(self.unread.missing.values()) if self.unread else 0

    @cached_property
    def mirror(self) -> Mirror | None:
        """Dequeue's copy of its newest progress; None before the first."""
        return self.state.mirror()

    @property
    def copies_signed(self) -> bool | None:
        """Whether copies carry a MAC; None before the first progress, and in a recovery."""
        if self.state.needs_recovery or self.mirror is None:
            return None
        return self.mirror.signs_copies

    def disk(self, min_free: Share) -> DiskFacts:
        """The disk, with its setting `storage.min_free`."""
        space = fs.space(self.data_dir)
        return DiskFacts(space.free_bytes, min_free.of(space.total_bytes))

    @property
    def far_ahead(self) -> Marks:
        """The partitions that wait at a record that leads too far ahead, and its offset."""
        from duewheel.streaming.batch_attempt import SPARK_DIR
        from duewheel.streaming.early_ends import waiting_far_ahead

        return waiting_far_ahead(self.data_dir / SPARK_DIR)

    def quota_waiting(self, quotas: Mapping[str, int]) -> dict[str, int]:
        """Messages that wait in Kafka because of their topic's quota, by each topic with one."""
        from duewheel.checkpoints.quota_waiting import QuotaWaiting

        waiting = QuotaWaiting.read_valid(self.data_dir, self.now_ms).by_topic
        return {topic: waiting[topic] for topic in quotas}
