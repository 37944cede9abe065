"""Timer topics rest if their timers have held up those of all others.

- refused: a target has refused a record, because its `max.message.bytes` was lowered, or because
  another client has written under the shard's producer id. That aborts the transaction, also for
  the timers of others. All timers of the timer topic are parked, for at most a minute from the next
  commit on. Otherwise the owner of many targets could abort one transaction after the other. After
  a failure that happens to a careful team, too, the timer topic rests only if it is the second one
  within a minute: a target is deleted, its bounds of timestamps are changed, or the right to write
  to it is lost.
- slow: a transaction with timers for slow targets (slow_targets.py) took long. Such timers of the
  timer topic are parked. For some minutes after that, they share no transaction with such timers of
  other timer topics: so each slow transaction has one cause.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from enum import Enum, auto

import structlog

from duewheel.checkpoints.pauses import PausedTimers
from duewheel.kafka.targets.throttles import RefusalThrottle, TimerTopicThrottle
from duewheel.kafka.targets.ttl_cache import TtlCache

_LATELY_S = 60.0
_USUAL_S = 0.25  # a transaction that takes no longer is followed by no rest

log = structlog.get_logger(__name__)


class WhenToRest(Enum):
    """When the timer topics rest whose timers are in a batch that has failed."""

    NEVER = auto()
    AFTER_ANOTHER = auto()  # if they had another such batch lately
    AT_ONCE = auto()


class RestingTimerTopics:
    """See the module's head. The publisher's thread changes it; any thread may call `beside`."""

    def __init__(
        self,
        on_change: Callable[[Mapping[str, str]], None] = lambda _: None,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """`on_change` gets the timer topics whose timers are all parked, each with the reason."""
        self._on_change = on_change
        self._refused = RefusalThrottle(now_s)
        self._slow = TimerTopicThrottle(now_s=now_s)
        self._warned: TtlCache[str, bool] = TtlCache(now_s=now_s)  # would rest at once next time
        self._why: dict[str, str] = {}  # those of `_refused`

    def beside(self, paused: PausedTimers) -> PausedTimers:
        """The paused timers, and those of timer topics that rest."""
        timer_topics = paused.timer_topics | self._refused.resting
        return paused._replace(
            timer_topics=timer_topics,
            slow_of=self._slow.resting,
            slow_alone=self._slow.remembered,
        )

    def note_duration(self, topics: frozenset[str], seconds: float) -> None:
        """A transaction with timers of these topics for slow targets took so long, and may have
        failed.
        """
        if topics and seconds > _USUAL_S:
            self._slow.note_duration(topics, seconds)

    def note_refusals(self, why: Mapping[str, str], seconds: float, rest: WhenToRest) -> None:
        """An attempt of so many seconds is aborted, because of these timer topics."""
        if rest is WhenToRest.AFTER_ANOTHER:
            again = {topic: text for topic, text in why.items() if self._warned.get(topic)}
            for topic in why:
                self._warned.put(topic, True, _LATELY_S)
            why = again
        if not why:
            return
        self._refused.note_refusals(frozenset(why), seconds)
        log.warning("timer topics rest after a refusal: their timers are parked", topics=dict(why))
        self._change({**self._why, **why})

    def note_commit(self) -> None:
        """A transaction is committed."""
        self._refused.note_commit()
        if self._why:
            resting = self._refused.resting
            self._change({topic: text for topic, text in self._why.items() if topic in resting})

    def _change(self, why: dict[str, str]) -> None:
        if why == self._why:
            return
        if over := sorted(self._why.keys() - why):
            log.info("timer topics rest no longer", topics=over)
        self._why = why
        self._on_change(why)
