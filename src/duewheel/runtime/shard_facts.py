"""The facts of a shard that its data directory alone gives, each computed here alone; those that
need settings, too, are in configured_facts.py. The properties have the names of api/shard.py, which
declares them.

Ages are milliseconds up to one moment, `now_ms`, and none is below 0 if a clock was set back;
instants are epoch ms by this host's clock. The files may change between the reads of two facts.

Invariant: this module and all that it imports are light, because `duewheel health` runs every few
seconds: no dataclasses, whose import and classes would cost a quarter of it
(tests/unit/runtime/test_health_command.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING

from duewheel.api.process_state import ALIVE, ProcessState
from duewheel.checkpoints.file_lock import holder_of
from duewheel.checkpoints.obstacles import Obstacles
from duewheel.checkpoints.pauses import PauseRecord, PausesFile, in_force
from duewheel.checkpoints.process_role import Role
from duewheel.checkpoints.unfinished_recovery import Recovering, recovering
from duewheel.runtime import run_file
from duewheel.runtime.pending_total import TimerTotals, totals_of

if TYPE_CHECKING:  # they import pydantic, numpy or pyarrow
    from duewheel.api.shard import StandbyView
    from duewheel.checkpoints.commit_and_close_pages import Marks
    from duewheel.checkpoints.progress_mirror import Mirror
    from duewheel.checkpoints.state_file import State

_REPORTED_MS = 1_000  # dequeue reports twice a second


class ProcessFacts:
    """One of the two processes."""

    state: ProcessState

    def __init__(self, shard: ShardFacts, role: Role) -> None:
        live = shard.state.live
        beat = live.heartbeat(role)
        self.detail, self.silent_ms = beat.detail, shard.since_ms(beat.at_ms)
        self.is_paused = live.paused(role)  # by request, whether it runs or not
        self.pid = holder_of(shard.path / role.lock_name)
        if self.pid is None:
            self.state = "stopped"
        elif beat.pid != self.pid:
            self.state = "starting"
        else:
            self.state = "paused" if self.is_paused else "running"
        self.is_alive = self.state in ALIVE  # it writes heartbeats


class IngestFacts(ProcessFacts):
    """Ingest, with its lag as dequeue last measured it (lag_watch.py); None before that."""

    def __init__(self, shard: ShardFacts) -> None:
        super().__init__(shard, Role.INGEST)
        lag = shard.state.live.lag
        known = lag if lag.polled_ms else None
        self.lag = known and known.messages
        self.lag_ms = known and known.age_ms(shard.now_ms)
        self.batch_age_ms = known and known.batch_age_ms(shard.now_ms)
        self.lag_polled_ms = known and known.polled_ms
        self.open_messages = known and known.open
        self.poll_age_ms = known and shard.since_ms(known.polled_ms)
        # How long it has had no process that plans batches.
        self.unplanned_ms = shard.since_ms(self.detail) if self.detail else 0
        self._state = shard.state

    @property
    def high_water(self) -> Marks:
        return self._state.commit().high_water(self._state.close())


class DequeueFacts(ProcessFacts):
    """Dequeue; most are None while it does not run."""

    def __init__(self, shard: ShardFacts) -> None:
        super().__init__(shard, Role.DEQUEUE)
        alive = shard.state.live if self.is_alive else None
        self.floor_ms = shard.floor_ms
        self.floor_ahead_ms = self.floor_ms and max(0, self.floor_ms - shard.now_ms)
        self.behind_ms = shard.behind_ms if alive and not shard.is_standby else None
        self.clock_skew_ms = alive and alive.host_clock[0]
        self.closing_blocked = alive and alive.host_clock[1]
        self.delivered = alive and alive.deliveries[0]
        self.dead_letters = alive and alive.deliveries[1]
        self.dead_letters_wait = alive and alive.deliveries[2]
        self._shard = shard

    @property
    def copies_held(self) -> int | None:
        return self._shard.copies_held if self.is_alive else None

    @cached_property
    def _obstacles(self) -> Obstacles | None:
        return Obstacles.read(self._shard.path) if self.is_alive else None

    @property
    def targets_closed(self) -> Mapping[str, str] | None:
        return self._obstacles and self._obstacles.targets

    @property
    def timer_topics_resting(self) -> Mapping[str, str] | None:
        return self._obstacles and self._obstacles.timer_topics

    @cached_property
    def paused_timers(self) -> dict[str, str] | None:
        if not self.is_alive:
            return None
        found = in_force(PausesFile.read(self._shard.path).of, self._shard.now_ms)
        return {name.replace("/", " ", 1): _end_of(pause) for name, pause in found.items()}

    @property
    def paused_selections(self) -> int | None:
        return None if self.paused_timers is None else len(self.paused_timers)


def _end_of(pause: PauseRecord) -> str:
    from duewheel.config.instants import utc_text  # `health` needs none of it

    end = "until `resume`" if pause.until_ms is None else f"until {utc_text(pause.until_ms)}"
    return f"{end} ({pause.note})" if pause.note else end


class ShardFacts:
    """The facts of both processes, and of the shard."""

    def __init__(
        self, state: State, now_ms: int, count: Callable[[], int | None] | None = None
    ) -> None:
        """`state` stays open meanwhile; `now_ms` is the moment; `count` counts the timers in the
        files, for a standby.
        """
        self.state, self.now_ms, self._count = state, now_ms, count
        self.path, self.data_dir = state.path.parent, str(state.path.parent)
        self.is_standby = state.standby
        self.role = "standby" if self.is_standby else "owner"

    def since_ms(self, instant_ms: int) -> int:
        """How long ago an instant was."""
        return max(0, self.now_ms - instant_ms)

    @cached_property
    def ingest(self) -> IngestFacts:
        return IngestFacts(self)

    @cached_property
    def dequeue(self) -> DequeueFacts:
        return DequeueFacts(self)

    @property
    def processes(self) -> dict[str, ProcessFacts]:
        return {"ingest": self.ingest, "dequeue": self.dequeue}

    @cached_property
    def run(self) -> Mapping[str, run_file.Supervised] | None:
        """The processes as `duewheel run` sees them; None without one."""
        return run_file.read(self.path)

    @property
    def rows_without_room(self) -> int:
        return self.state.live.rows_without_room if self.ingest.is_alive else 0

    @property
    def behind_ms(self) -> int:
        """Age of the oldest slot that is not delivered, as dequeue last reported it, plus the time
        since; of a standby: of the oldest that its owner has closed and it has not taken. 0 below a
        second: an idle shard is up to a slot and a heartbeat late.
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

    @cached_property
    def unread(self) -> Recovering | None:
        """The closed offsets that are not taken yet, if any; a standby usually has some."""
        return recovering(self.state)

    @property
    def recovering(self) -> Recovering | None:
        """The recovery that stops the deliveries. A standby has none, whatever it still reads."""
        is_following = self.is_standby and self.unread is not None and self.unread.files_whole
        return None if is_following else self.unread

    @property
    def is_recovering(self) -> bool:
        return self.recovering is not None

    @property
    def standby(self) -> StandbyView | None:
        """None in an owner's directory."""
        from duewheel.api.shard import StandbyView, by_partition

        if not self.is_standby:
            return None
        close = self.state.close()
        return StandbyView(
            behind_ms=self.behind_ms,
            missing=by_partition(self.unread.missing if self.unread else {}),
            followed_slot=close.lower if close else None,
            promotion_wanted=self.state.live.promotion_wanted(self.now_ms),
        )

    @cached_property
    def mirror(self) -> Mirror | None:
        """Dequeue's copy of its newest progress; None before the first."""
        return self.state.mirror()

    @property
    def copies_held(self) -> int:
        from duewheel.checkpoints.held_copies import copies

        return copies(self.mirror.progress.held) if self.mirror else 0

    @property
    def copies_signed(self) -> bool | None:
        """None before the first progress, and in a recovery."""
        if self.state.needs_recovery or self.mirror is None:
            return None
        return self.mirror.signs_copies

    @property
    def copies_unsigned(self) -> bool:
        return self.copies_signed is False

    @cached_property
    def _totals(self) -> TimerTotals:
        return totals_of(self.state, self.mirror, self._count)

    @property
    def pending(self) -> int | None:
        return self._totals.pending

    @property
    def delivered(self) -> int:
        return self._totals.delivered
