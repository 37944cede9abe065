"""Writes to timer topics as any client does, with a DelayProducer for each."""

from __future__ import annotations

from collections.abc import Callable

from duewheel.client import DelayProducer
from duewheel.clock import Clock
from duewheel.config.settings import Settings
from duewheel.kafka.connect.bootstrap import require_connection
from duewheel.ops.changes.producer_pool import BOUNDS_MS, ProducerPool

REQUESTS_AT_ONCE = 1_000  # records that wait for their acknowledgement


def connect_producer(settings: Settings, timer_topic: str) -> DelayProducer:
    """Connects a producer of a timer topic, which can read replies.

    Raises:
        KafkaUnavailable: no server logs a client in.
    """
    require_connection(settings)
    return DelayProducer(
        timer_topic,
        levels_ms=settings.timer.levels_ms,
        max_delay=settings.timer.max_delay,
        reply_topic=settings.timer.reply_topic,
        **BOUNDS_MS | settings.kafka.client_options("producer"),
    )


class TimerWriter(ProducerPool[DelayProducer]):
    """The producers of timer topics, of a command or of `duewheel serve`. Thread-safe."""

    def __init__(
        self,
        settings: Settings,
        clock: Clock,
        open_producer: Callable[[Settings, str], DelayProducer] = connect_producer,
    ) -> None:
        """Connects nothing."""
        super().__init__(settings, open_producer)
        self.clock = clock
