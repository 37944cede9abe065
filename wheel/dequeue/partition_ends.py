"""Where timer partitions end, as Kafka tells, however many of them have nobody who does."""

from __future__ import annotations

from collections.abc import Iterable

import structlog

from duewheel.clock import Clock
from duewheel.errors import ConfigError, KafkaUnavailable
from duewheel.schemas.batches import TopicPartition, is_retired
from duewheel.wheel.publisher import Publisher

log = structlog.get_logger(__name__)

_ASK_AGAIN_MS = 10_000  # after there was no answer


class LogEnds:
    """Asks for them. Not thread-safe: the loop owns it."""

    def __init__(self, publisher: Publisher, clock: Clock) -> None:
        """
        Args:
            publisher: who asks.
            clock: spaces questions that had no answer.
        """
        self._publisher = publisher
        self._clock = clock
        self._next_ms: dict[TopicPartition, int] = {}  # of those of which nobody told

    def of(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Those that are told now; others may be asked for again.

        What was not told before does not keep others waiting: it has a request of its own.
        """
        now_ms, again = self._clock.boottime_ms(), self._next_ms
        due = [p for p in partitions if again.get(p, 0) <= now_ms]
        ends = self._ask([p for p in due if p not in again])
        ends |= self._ask([p for p in due if p in again])
        for partition in due:
            if partition in ends:
                again.pop(partition, None)
            else:
                again[partition] = self._clock.boottime_ms() + _ASK_AGAIN_MS
        return ends

    def _ask(self, wanted: list[TopicPartition]) -> dict[TopicPartition, int]:
        # What was given up sends its copies to another topic, where they begin anew.
        ends = {p: 0 for p in wanted if is_retired(p[0])}
        there = [p for p in wanted if p not in ends]
        try:
            told = self._publisher.log_ends(there) if there else {}
        except (KafkaUnavailable, ConfigError) as error:
            log.warning("the ends of timer partitions are not known", reason=str(error))
            return ends
        return {**ends, **told}
