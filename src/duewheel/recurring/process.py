"""The process `duewheel recur`: the scheduler over Kafka, until a signal."""

from __future__ import annotations

import random

import structlog

from duewheel import factory
from duewheel.backoff import Backoff
from duewheel.config.settings import Settings
from duewheel.errors import Displaced, DuewheelError
from duewheel.osutil.metrics_server import served
from duewheel.osutil.signals import stop_signals
from duewheel.recurring.kafka_store import KafkaStore
from duewheel.recurring.metrics import RecurMetrics
from duewheel.recurring.scheduler import Scheduler

log = structlog.get_logger(__name__)

_TURN_S = 0.1


def run_recur(settings: Settings) -> None:
    """Write the firings of all schedules until a signal. While another instance is alive this one
    stands by.

    Raises:
        ConfigError: the settings name no topic for schedules, or it is missing.
    """
    with stop_signals() as stopping:
        clock = factory.StoppableClock(stopping)
        store = KafkaStore(settings, clock)
        scheduler = Scheduler(store, clock)
        backoff = Backoff(clock, random.Random())
        with served(
            RecurMetrics(scheduler),
            settings.metrics.host,
            settings.metrics.recur_port,
            "metrics.recur_port",
        ):
            try:
                while not stopping.is_set():
                    try:
                        scheduler.open()
                        while not stopping.is_set():
                            scheduler.turn()
                            backoff.succeeded()
                            clock.sleep(_TURN_S)
                    except DuewheelError as error:
                        if not error.retriable:
                            raise
                        if isinstance(error, Displaced):
                            log.warning("another scheduler has taken over: standing by")
                        elif not stopping.is_set():
                            log.warning("opening again", reason=str(error))
                        backoff.wait(backoff.next_ms())
            finally:
                store.close()
        log.info("recur stopped", firings=scheduler.statistics.firings)
