"""Decides whether a shard does its work (`ready` in `status`), and if not, why.

`status`, `health`, `/readyz` of `duewheel serve` and the metrics have the same answer, from the
same facts (shard_facts.py, whose head says why this module is light, too). A silent process makes
the shard not ready; a process that is paused by request does not.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from duewheel.api.reasons import REASONS, effects
from duewheel.checkpoints.fs import READING_FS
from duewheel.checkpoints.state_file import State
from duewheel.errors import ConfigError, CorruptFile, KafkaUnavailable
from duewheel.runtime.shard_facts import ShardFacts

if TYPE_CHECKING:  # pydantic would cost more than all else here
    from duewheel.config.settings import Settings


class ReadyBounds(NamedTuple):
    """Beyond these a shard is not ready, in ms; and the geometry of its files."""

    precision_ms: int
    slots: int
    # Since a process's last heartbeat, and since the last answer of Kafka with the ends of the
    # timer topics. Without Kafka dequeue is silent, too.
    silence_ms: int = 30_000
    lag_ms: int = 30_000  # of a message in a timer topic that is not in the wheel
    batch_ms: int = 60_000  # of a batch while there is something to read
    behind_ms: int = 30_000  # of a slot that is past and not delivered
    unplanned_ms: int = 10_000  # of ingest without a process that plans batches

    @classmethod
    def of(cls, settings: Settings) -> ReadyBounds:
        """The bounds for these settings."""
        wheel = settings.wheel
        return cls.for_trigger(settings.ingest.trigger_ms, wheel.precision_ms, wheel.slots)

    @classmethod
    def for_trigger(cls, trigger_ms: int, precision_ms: int, slots: int) -> ReadyBounds:
        """The bounds for an interval between batches: a long one alone is no fault."""
        usual = cls(precision_ms, slots)
        return usual._replace(
            lag_ms=max(usual.lag_ms, 3 * trigger_ms),
            batch_ms=max(usual.batch_ms, 3 * trigger_ms),
        )


def not_ready_in(data_dir: Path, bounds: ReadyBounds, now_ms: int) -> dict[str, str]:
    """As `not_ready`, of the files in a directory; also why they cannot be read.

    Raises:
        FileNotFoundError, NotADirectoryError: there are none.
    """
    try:
        with State.open(data_dir, READING_FS) as state:
            return not_ready(ShardFacts(state, now_ms), bounds)
    except (FileNotFoundError, NotADirectoryError):
        raise
    except (ConfigError, CorruptFile, OSError) as error:
        return _unreadable(data_dir, error)


def _unreadable(data_dir: Path | str, error: Exception) -> dict[str, str]:
    return {"unreadable": f"{data_dir} cannot be read: {error}"}


def not_ready(facts: ShardFacts, bounds: ReadyBounds) -> dict[str, str]:
    """Why the shard is not ready, by REASONS, without the effects of a reason that is known; empty
    if it is.
    """
    try:
        facts.state.require(bounds.precision_ms, bounds.slots)
    except ConfigError as error:
        return _unreadable(facts.data_dir, error)
    found = {}
    supervised = facts.run or {}
    for name, process in facts.processes.items():
        if not process.is_alive:
            found[f"{name}_not_running"] = f"{name} is {process.state}"
        elif process.silent_ms > bounds.silence_ms:
            found[f"{name}_silent"] = f"no heartbeat of {name} for {_s(process.silent_ms)}"
        elif name == "ingest":
            found |= _ingest_waits(facts, bounds)
        known = supervised.get(name)
        if known is not None and known.is_failing:
            tried = known.next_try_ms
            next_s = "" if tried is None else _s(tried - facts.now_ms)
            then = f"next try in {next_s}" if next_s else "it was started again"
            found[f"{name}_failing"] = (
                f"{name} ended with {known.last_exit_code}: {known.last_reason}; {then}"
            )
    found |= _recovery(facts) | _late(facts, bounds)
    ended_without_kafka = {
        f"{name}_{how}"
        for name, known in supervised.items()
        if known.last_exit_code == KafkaUnavailable.exit_code
        for how in ("not_running", "failing")
    }
    found = _without_effects_of_no_answer(facts, bounds, found, ended_without_kafka)
    hidden = effects(found)
    return {reason: text for reason, text in found.items() if reason not in hidden}


def _ingest_waits(facts: ShardFacts, bounds: ReadyBounds) -> dict[str, str]:
    """Why ingest, which runs, takes nothing."""
    found = {}
    if rows := facts.rows_without_room:
        found["disk_full"] = f"the disk is nearly full: {rows} messages wait (storage.min_free)"
    if (unplanned_ms := facts.ingest.unplanned_ms) > bounds.unplanned_ms:
        found["no_planner"] = (
            f"ingest has had no process that plans batches for {_s(unplanned_ms)}: too few free "
            "processors"
        )
    return found


def _without_effects_of_no_answer(
    facts: ShardFacts, bounds: ReadyBounds, reasons: dict[str, str], more: set[str]
) -> dict[str, str]:
    """Names Kafka, if dequeue's last poll of it has failed, in the place of the effects, and of
    `more` of them.
    """
    failed_ms, polled_ms = facts.state.live.no_answer_ms, facts.ingest.lag_polled_ms or 0
    kept = {
        reason: text
        for reason, text in reasons.items()
        if not (REASONS[reason].is_without_kafka or reason in more)
    }
    is_old = failed_ms <= polled_ms or facts.since_ms(failed_ms) > bounds.silence_ms
    if len(kept) == len(reasons) or is_old:
        return reasons
    text = f"Kafka does not answer: no ends of the timer topics {_since_poll(facts)}"
    return kept | {"ends_unknown": text}


def _since_poll(facts: ShardFacts) -> str:
    age_ms = facts.ingest.poll_age_ms
    return "yet" if age_ms is None else f"for {_s(age_ms)}"


def _recovery(facts: ShardFacts) -> dict[str, str]:
    left = facts.recovering
    if left is None:
        return {}
    text = (
        f"{sum(left.missing.values())} offsets are read again"
        if left.files_whole
        else "files are made whole"
    )
    return {"recovering": f"{text}; nothing is delivered until then"}


def _late(facts: ShardFacts, bounds: ReadyBounds) -> dict[str, str]:
    found, ingest, dequeue = {}, facts.ingest, facts.dequeue
    if ingest.poll_age_ms is None or ingest.poll_age_ms > bounds.silence_ms:
        text = f"Kafka has not reported the ends of the timer topics {_since_poll(facts)}"
        by_whom = "" if dequeue.is_alive else f": dequeue, which asks, is {dequeue.state}"
        found["ends_unknown"] = f"{text}{by_whom}"
    if not ingest.is_paused:
        if (age_ms := ingest.lag_ms or 0) > bounds.lag_ms:
            found["ingest_lag"] = f"{ingest.lag} offsets not taken, the oldest for {_s(age_ms)}"
        if (age_ms := ingest.batch_age_ms or 0) > bounds.batch_ms:
            left = f"with {ingest.lag} offsets to take"
            found["batch_stuck"] = f"no batch has ended for {_s(age_ms)}, {left}"
    if not dequeue.is_paused and facts.behind_ms > bounds.behind_ms:
        found["dequeue_behind"] = (
            f"delivery is {_s(facts.behind_ms)} behind: timers due since then, if any, wait"
        )
    return found


def _s(ms: int) -> str:
    return f"{max(0, ms) / 1000:.0f} s"
