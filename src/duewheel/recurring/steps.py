"""The next step of a schedule: a pure function of schedule, position and clock.

Instants are written up to AHEAD_MS before they are due, so that a restart of the scheduler makes
none late. An instant is written exactly if it lies behind the position, in the transaction that
moves the position.

After a change, firings ahead of it belong to the former revision. They are cancelled first, the
latest one first, and the replies are awaited: what was cancelled has not left and never will, so
the new revision may fire at the same instant; what was not counts as fired. As slots close in their
order, the cancelled ones are the last ones. An instant before the change has fired, even if its
shard is behind and has not delivered it; only a stop cancels that, too.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, replace

from duewheel.recurring.schedule import FiringPosition, Schedule, firing_id

AHEAD_MS = 60_000
LATE_MS = 60_000
"""An instant that is no later than this is not missed: a schedule that is set or resumed just
before an instant fires, whatever its policy for missed ones is."""
MISSED_MAX = 1_000
"""The most missed instants that fire."""
FIRINGS_MAX = 50
"""The most firings of one step."""


@dataclass(frozen=True, slots=True)
class FiringCancels:
    """The firings ahead of a former revision are to be cancelled, in this order.

    Attributes:
        timer_topic: of the firings.
        timers: instant, partition and timer id of each.
    """

    timer_topic: str
    timers: tuple[tuple[int, int, str], ...]


@dataclass(frozen=True, slots=True)
class Write:
    """One transaction has to write the firings and the position.

    Attributes:
        position: the new one, still without the firings ahead; None: the schedule is no more.
        firings: the instants, in their order.
        skipped: missed instants that do not fire: behind the first number, up to the second.
    """

    position: FiringPosition | None
    firings: tuple[int, ...] = ()
    skipped: tuple[int, int] | None = None


def next_step(
    name: str, schedule: Schedule | None, position: FiringPosition | None, now_ms: int
) -> FiringCancels | Write | None:
    """Returns what is to be done now; None: nothing yet."""
    if position is not None and (schedule is None or schedule.revision != position.revision):
        since_ms = position.done_ms if schedule is None else schedule.since_ms
        pending = [each for each in position.ahead if each[0] > since_ms]
        if pending:
            timers = (
                (at, partition, firing_id(name, at, position.revision))
                for at, partition in reversed(pending)
            )
            return FiringCancels(position.timer_topic, tuple(timers))
        if schedule is None:
            return Write(None)
    if schedule is None:
        return None
    begun = position if position and position.revision == schedule.revision else None
    at = begun or _begin(schedule, position)
    if schedule.paused:
        return None if begun else Write(at)
    firings, done_ms, skipped = _due(schedule, at.written_ms, now_ms)
    if begun and not firings and done_ms == at.written_ms:
        return None
    left = [each for each in at.ahead if each[0] <= now_ms]
    at = replace(at, fired_ms=at.fired_by(now_ms))
    return Write(
        replace(at, done_ms=max([at.done_ms, *(ms for ms, _ in left)]), ahead=at.ahead[len(left) :])
        if firings or not begun
        else replace(at, done_ms=done_ms, ahead=()),
        firings,
        skipped,
    )


def without(position: FiringPosition, cancelled: Collection[int]) -> FiringPosition:
    """The position once the cancels of its firings ahead are answered: those that were not stopped
    count as fired.
    """
    fired = [at for at, _ in position.ahead if at not in cancelled]
    fired_ms = max(fired, default=position.fired_ms)
    return replace(position, done_ms=max([position.done_ms, *fired]), ahead=(), fired_ms=fired_ms)


def wake_ms(schedule: Schedule | None, position: FiringPosition | None) -> int | None:
    """When the next step is due, once there is none; None: after a change."""
    if schedule is None or position is None or schedule.paused:
        return None
    instant = next(schedule.instants().after(position.written_ms), None)
    return None if instant is None else instant - AHEAD_MS


def _begin(schedule: Schedule, former: FiringPosition | None) -> FiringPosition:
    done_ms = max(schedule.since_ms, former.done_ms if former else 0)
    fired_ms = former.fired_by(schedule.since_ms) if former else None
    return FiringPosition(schedule.revision, schedule.timer_topic, done_ms, fired_ms=fired_ms)


def _due(
    schedule: Schedule, written_ms: int, now_ms: int
) -> tuple[tuple[int, ...], int, tuple[int, int] | None]:
    """The instants to write now; the last one that is decided, and the missed ones left out."""
    most = MISSED_MAX if schedule.missed == "all" else 1
    past, begin_ms = _last_instants(schedule, written_ms, now_ms, most)
    skipped = None if begin_ms == written_ms else (written_ms, begin_ms)
    if schedule.missed == "skip" and past and now_ms - past[-1] > LATE_MS:
        skipped, past = (written_ms, past[-1]), []
    behind_ms = max(written_ms, now_ms)
    ahead = itertools.takewhile(
        lambda at: at <= now_ms + AHEAD_MS, schedule.instants().after(behind_ms)
    )
    firings = tuple(itertools.islice(itertools.chain(past, ahead), FIRINGS_MAX))
    decided_ms = firings[-1] if firings else skipped[1] if skipped else written_ms
    return firings, decided_ms, skipped


def _last_instants(
    schedule: Schedule, after_ms: int, until_ms: int, most: int
) -> tuple[list[int], int]:
    """The last instants in (after_ms, until_ms], `most` at most; and an instant behind which these
    are all: `after_ms`, or the last one left out.

    It looks at longer and longer times before `until_ms`: after years, an instant per second is not
    counted one by one.
    """
    span_ms = 1_000 * most
    while True:
        begin_ms = max(after_ms, until_ms - span_ms)
        upcoming = schedule.instants().after(begin_ms)
        within = itertools.takewhile(lambda at: at <= until_ms, upcoming)
        last = deque(within, most + 1)
        if len(last) > most:
            return list(last)[1:], last[0]
        if begin_ms == after_ms:
            return list(last), after_ms
        span_ms *= 4
