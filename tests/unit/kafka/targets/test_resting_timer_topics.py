"""Timer topics that rest, because their timers have held up those of all others."""

from __future__ import annotations

from collections.abc import Mapping

from duewheel.checkpoints.pauses import NONE_PAUSED, PausedTimers
from duewheel.kafka.targets.resting_timer_topics import RestingTimerTopics, WhenToRest
from duewheel.kafka.targets.throttles import TimerTopicThrottle
from duewheel.testing import ManualClock

AT_ONCE = WhenToRest.AT_ONCE


class Resting(RestingTimerTopics):
    """With a clock, and what it has noted."""

    def __init__(self) -> None:
        self.clock, self.noted = ManualClock(0), list[Mapping[str, str]]()
        super().__init__(self.noted.append, lambda: self.clock.now_ms() / 1000)

    @property
    def now(self) -> PausedTimers:
        return self.beside(NONE_PAUSED)

    def rest_s(self, topic: str) -> int:
        """How long this timer topic still rests."""
        seconds = 0
        while topic in self.now.timer_topics | self.now.slow_of:
            self.clock.sleep(1)
            seconds += 1
        return seconds


def test_after_a_long_transaction_with_slow_targets_their_timer_topic_rests() -> None:
    resting = Resting()
    resting.note_duration(frozenset("a"), 0.2)
    assert resting.now == NONE_PAUSED
    resting.note_duration(frozenset(), 2)
    assert resting.now == NONE_PAUSED
    resting.note_duration(frozenset("a"), 2)
    of = frozenset("a")
    assert resting.now == PausedTimers(slow_of=of, slow_alone=of)
    assert resting.rest_s("a") == 18, "nine times as long"
    resting.clock.sleep(590)
    assert resting.now == PausedTimers(slow_alone=of)
    resting.clock.sleep(20)
    assert resting.now == NONE_PAUSED


def test_all_timer_topics_together_take_a_tenth_of_the_time() -> None:
    """Each of them works for two seconds as soon as it may."""
    clock, worked_s = ManualClock(0), 0
    rests = TimerTopicThrottle(now_s=lambda: clock.now_ms() / 1000)
    topics = [f"t{number}" for number in range(20)]
    while clock.now_ms() < 10_000_000:
        able = [topic for topic in topics if topic not in rests.resting]
        clock.sleep(2)
        if able:
            worked_s += 2
            rests.note_duration(frozenset([able[0]]), 2)
    assert worked_s < 1_100


def test_after_a_refusal_the_timer_topic_rests_nine_times_as_long_as_it_has_cost() -> None:
    resting = Resting()
    resting.note_refusals({"a": "orders refused it"}, 0.5, AT_ONCE)
    assert resting.now == PausedTimers(timer_topics=frozenset("a"))
    resting.clock.sleep(1.5)  # until the next attempt is committed
    resting.note_commit()
    assert resting.rest_s("a") == 18
    assert resting.noted == [{"a": "orders refused it"}]
    resting.note_commit()
    assert resting.noted[1:] == [{}]


def test_such_a_rest_has_bounds() -> None:
    resting = Resting()
    resting.note_refusals({"a": "refused"}, 0.01, AT_ONCE)
    resting.note_commit()
    assert resting.rest_s("a") == 3
    resting.note_refusals({"a": "refused"}, 0.01, AT_ONCE)
    resting.clock.sleep(50)  # the broker is away meanwhile
    resting.note_commit()
    assert resting.rest_s("a") == 60


def test_the_rest_is_that_of_all_attempts_in_a_row() -> None:
    resting = Resting()
    for topic in "ab":
        resting.note_refusals({topic: "refused"}, 1, AT_ONCE)
        resting.clock.sleep(1)
    resting.note_commit()
    assert resting.now.timer_topics == frozenset("ab")
    assert resting.rest_s("b") == 57, "of three seconds, and there are two"


def test_what_is_paused_stays_so() -> None:
    resting, paused = Resting(), PausedTimers(frozenset("x"), frozenset("y"), frozenset("z"))
    resting.note_refusals({"a": "refused"}, 1, AT_ONCE)
    resting.note_duration(frozenset("b"), 1)
    found, of = resting.beside(paused), frozenset("b")
    assert found == PausedTimers(frozenset("x"), frozenset("ay"), frozenset("z"), of, of)
