"""Whether what waits for its target has to, and what leaves may: targets that take no writes, and
pauses. Parking is no policy: it is the judge of the rows that no policy sends back.
"""

from __future__ import annotations

from itertools import product

from tests.simulation.policies.judge import Leaving, PolicyJudge, Taken
from tests.simulation.timers import DEAD, TARGET_PARTITIONS, TARGETS, TOPIC, Copy

from duewheel.wheel.dequeue.requeue import Waits
from duewheel.wheel.slots import WheelConfig


def waits_of(wheel: WheelConfig) -> Waits:
    """How long parked timers wait here: some slots."""
    return wheel.precision_ms, 3 * wheel.precision_ms, 5 * wheel.precision_ms


class ParkingJudge(PolicyJudge[None]):
    """Judges parking, and dead letters that wait."""

    def _set_up(self) -> None:
        self._waits_ms = waits_of(self._wheel)
        self._parked_ms = 0
        self._closed = frozenset[tuple[str, int]]()  # partitions that get no timer
        self._letters_wait = False

    def begins(self, taken: Taken) -> None:
        super().begins(taken)
        paused, numbers = taken.paused, range(TARGET_PARTITIONS)
        names = TARGETS[:DEAD] if TOPIC in paused.timer_topics else paused.targets
        self._closed = taken.down | frozenset(product(names, numbers))
        letters = {(TARGETS[DEAD], number) for number in numbers}
        self._letters_wait = TARGETS[DEAD] in taken.absent or letters <= taken.down
        self._parked_ms = taken.parked_ms

    def leaves(self, row: Leaving) -> None:
        if row.postponed and not row.is_letter:
            return
        timer, sent_back = row.copy.timer, row.sent_back
        name, is_closed = timer.source.decode(), timer.target_partitions <= self._closed
        if row.is_letter:
            is_closed = self._letters_wait
        if row.rolls and not sent_back:
            self._violated("bytes", f"{name} is not rolled")
        elif sent_back and not row.rolls and not is_closed:
            self._violated("6 held up", f"{name} is parked, its target takes writes")
        elif not sent_back and is_closed:
            self._violated("6 held up", f"{name} goes to what takes no writes")

    def copied(self, row: Leaving, copy: Copy) -> None:
        """From the first wait, doubled at first, then a tenth longer; less a quarter at most."""
        if copy.retries != row.copy.retries + 1:
            self._violated("bytes", f"copy {copy.offset} was parked {copy.retries} times")
        longest_ms, doubled_ms, last_ms = self._waits_ms
        for _ in range(copy.retries - 1):
            longer_ms = min(2 * longest_ms, doubled_ms)
            longest_ms = longer_ms if longest_ms < doubled_ms else longest_ms * 11 // 10
        longest_ms = min(longest_ms, last_ms) + 1  # each step above was rounded
        waits_ms = copy.not_before_ms - self._parked_ms
        if not 3 * longest_ms // 4 < waits_ms <= longest_ms:
            self._violated("bytes", f"copy {copy.offset} waits {waits_ms} ms, not {longest_ms}")
