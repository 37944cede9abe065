"""Decides whether a shard does its work (`ready` in `status`), and if not, why.

`status`, `health`, `/readyz` of `duewheel serve` and the metrics have the same answer. Any process
can decide it from the data directory alone: each process writes its heartbeat there,
dequeue also the lag of ingest (lag_watch.py), and `run` the state of both (run_file.py). A silent
process makes the shard not ready; a process that is paused by request does not.

Invariant: this module and all that it imports are light, because `duewheel health` runs every few
seconds: tuples with names, no dataclasses, whose import and classes would cost a quarter of it
(tests/unit/runtime/test_health.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from duewheel.api.process_state import ALIVE, ProcessState
from duewheel.checkpoints.file_lock import holder_of
from duewheel.checkpoints.obstacles import Obstacles
from duewheel.checkpoints.role import Role
from duewheel.checkpoints.unfinished_recovery import recovering
from duewheel.errors import KafkaUnavailable
from duewheel.runtime import run_file

if TYPE_CHECKING:  # pydantic would cost more than all else here
    from duewheel.checkpoints.state_file import State
    from duewheel.config.settings import Settings

PROCESSES = {"ingest": Role.INGEST, "dequeue": Role.DEQUEUE}

# Label values of the metric `not_ready`: alarms name them.
REASONS = (
    "ingest_not_running",
    "dequeue_not_running",
    "ingest_silent",
    "dequeue_silent",
    "ingest_failing",
    "dequeue_failing",
    "recovering",
    "ends_unknown",
    "transaction_blocked",
    "disk_full",
    "no_planner",
    "ingest_lag",
    "batch_stuck",
    "dequeue_behind",
)

# The effects of a reason, which are not reported beside it.
_LAG = {"ingest_lag", "batch_stuck"}
_EFFECTS = {
    **dict.fromkeys(("ingest_not_running", "ingest_failing", "disk_full", "no_planner"), _LAG),
    "transaction_blocked": {"dequeue_silent", "dequeue_behind"},
}
_EFFECTS_OF_NO_ANSWER = {
    "ingest_silent",
    "dequeue_silent",
    "ends_unknown",
    "no_planner",
    "dequeue_behind",
    *_LAG,
}


class ReadyBounds(NamedTuple):
    """Beyond these a shard is not ready, in ms.

    Attributes:
        silence_ms: since a process's last heartbeat, and since the last answer of Kafka with the
            ends of the timer topics. Without Kafka dequeue is silent, too.
        lag_ms: how long a message may be in a timer topic and not in the wheel.
        batch_ms: how long a batch may take while there is something to read.
        behind_ms: how long a slot may be past and not delivered.
        unplanned_ms: how long ingest may be without a process that plans batches.
    """

    silence_ms: int = 30_000
    lag_ms: int = 30_000
    batch_ms: int = 60_000
    behind_ms: int = 30_000
    unplanned_ms: int = 10_000

    @classmethod
    def of(cls, settings: Settings) -> ReadyBounds:
        """The bounds for these settings: a long trigger interval alone is no fault."""
        return cls.for_trigger(settings.ingest.trigger_ms)

    @classmethod
    def for_trigger(cls, trigger_ms: int) -> ReadyBounds:
        """The bounds for an interval between batches."""
        usual = cls()
        return cls(
            lag_ms=max(usual.lag_ms, 3 * trigger_ms),
            batch_ms=max(usual.batch_ms, 3 * trigger_ms),
        )


def process_state(state: State, name: str) -> tuple[int | None, ProcessState]:
    """Process id and state: `starting` until its first heartbeat, `paused` while it is idle by
    request.
    """
    role = PROCESSES[name]
    holder = holder_of(state.path.parent / role.lock_name)
    if holder is None:
        return None, "stopped"
    if state.live.heartbeat(role).pid != holder:
        return holder, "starting"
    return holder, "paused" if state.live.paused(role) else "running"


def not_ready(state: State, bounds: ReadyBounds, now_ms: int) -> dict[str, str]:
    """Why the shard is not ready, by REASONS, without the effects of a reason that is known; empty
    if it is.

    Args:
        state: of the data directory.
        bounds: of the shard's settings.
        now_ms: this host's clock.
    """
    found = {}
    supervised = run_file.read(state.path.parent) or {}
    for name, role in PROCESSES.items():
        _, how = process_state(state, name)
        silent_ms = now_ms - state.live.heartbeat(role).at_ms
        if how not in ALIVE:
            found[f"{name}_not_running"] = f"{name} is {how}"
        elif silent_ms > bounds.silence_ms:
            found[f"{name}_silent"] = f"no heartbeat of {name} for {_s(silent_ms)}"
        elif name == "ingest":
            found |= _ingest_waits(state, bounds, now_ms)
        if name == "dequeue" and how in ALIVE:
            found |= _blocked(state)
        known = supervised.get(name)
        if known is not None and known.is_failing:
            tried = known.next_try_ms
            then = "it was started again" if tried is None else f"next try in {_s(tried - now_ms)}"
            found[f"{name}_failing"] = (
                f"{name} ended with {known.last_exit_code}: {known.last_reason}; {then}"
            )
    found |= _recovery(state) | _late(state, bounds, now_ms)
    ended_without_kafka = {
        f"{name}_{how}"
        for name, known in supervised.items()
        if known.last_exit_code == KafkaUnavailable.exit_code
        for how in ("not_running", "failing")
    }
    found = _without_effects_of_no_answer(state, bounds, now_ms, found, ended_without_kafka)
    effects = set().union(*(_EFFECTS.get(reason, ()) for reason in found))
    return {reason: text for reason, text in found.items() if reason not in effects}


def _ingest_waits(state: State, bounds: ReadyBounds, now_ms: int) -> dict[str, str]:
    """Why ingest, which runs, takes nothing."""
    found = {}
    if rows := state.live.rows_without_room:
        found["disk_full"] = f"the disk is nearly full: {rows} messages wait (storage.min_free)"
    since_ms = state.live.heartbeat(Role.INGEST).detail
    if since_ms and now_ms - since_ms > bounds.unplanned_ms:
        found["no_planner"] = (
            f"ingest has had no process that plans batches for {_s(now_ms - since_ms)}: too few "
            "free processors"
        )
    return found


def _blocked(state: State) -> dict[str, str]:
    """Why dequeue, which runs, gets no transaction."""
    why = Obstacles.read(state.path.parent).transaction
    return {"transaction_blocked": why} if why else {}


def _without_effects_of_no_answer(
    state: State, bounds: ReadyBounds, now_ms: int, reasons: dict[str, str], more: set[str]
) -> dict[str, str]:
    """Names Kafka, if dequeue's last poll of it has failed, in the place of the effects, and of
    `more` of them.
    """
    lag, failed_ms = state.live.lag, state.live.no_answer_ms
    effects = reasons.keys() & (_EFFECTS_OF_NO_ANSWER | more)
    if not effects or failed_ms <= lag.polled_ms or now_ms - failed_ms > bounds.silence_ms:
        return reasons
    since = f"for {_s(now_ms - lag.polled_ms)}" if lag.polled_ms else "yet"
    kept = {reason: text for reason, text in reasons.items() if reason not in effects}
    return kept | {"ends_unknown": f"Kafka does not answer: no ends of the timer topics {since}"}


def _recovery(state: State) -> dict[str, str]:
    left = recovering(state)
    # A standby delivers nothing, whatever it still has to read.
    if left is None or (state.standby and left.files_whole):
        return {}
    count = sum(left.missing.values())
    text = f"{count} offsets are read again" if left.files_whole else "files are made whole"
    return {"recovering": f"{text}; nothing is delivered until then"}


def _late(state: State, bounds: ReadyBounds, now_ms: int) -> dict[str, str]:
    found, lag = {}, state.live.lag
    if now_ms - lag.polled_ms > bounds.silence_ms:
        since = f"for {_s(now_ms - lag.polled_ms)}" if lag.polled_ms else "yet"
        text = f"Kafka has not reported the ends of the timer topics {since}"
        _, how = process_state(state, "dequeue")
        found["ends_unknown"] = text if how in ALIVE else f"{text}: dequeue, which asks, is {how}"
    if lag.messages and not state.live.paused(Role.INGEST):
        oldest_ms, stuck_ms = lag.age_ms(now_ms), lag.batch_age_ms(now_ms)
        if oldest_ms > bounds.lag_ms:
            found["ingest_lag"] = (
                f"{lag.messages} offsets not taken, the oldest for {_s(oldest_ms)}"
            )
        if stuck_ms > bounds.batch_ms:
            found["batch_stuck"] = (
                f"no batch has ended for {_s(stuck_ms)}, with {lag.messages} offsets to take"
            )
    if not state.live.paused(Role.DEQUEUE):
        behind_ms = behind_now_ms(state, now_ms)
        if behind_ms > bounds.behind_ms:
            found["dequeue_behind"] = (
                f"delivery is {_s(behind_ms)} behind: timers due since then, if any, wait"
            )
    return found


def behind_now_ms(state: State, now_ms: int) -> int:
    """How far delivery is behind, in ms: as dequeue last reported it, plus the time since then."""
    beat = state.live.heartbeat(Role.DEQUEUE)
    return beat.detail + max(0, now_ms - beat.at_ms) if beat.at_ms else 0


def _s(ms: int) -> str:
    return f"{max(0, ms) / 1000:.0f} s"
