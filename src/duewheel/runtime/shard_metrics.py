"""The metrics of a shard that both of its processes serve: lag, readiness, restarts.

So an alarm still sees one process when the other is down.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client.core import Metric

from duewheel.checkpoints.fs import READING_FS
from duewheel.checkpoints.state_file import State
from duewheel.clock import Clock
from duewheel.config.settings import Settings
from duewheel.osutil.metrics_server import counters, gauge, gauges
from duewheel.runtime import run_file
from duewheel.runtime.readiness import REASONS, ReadyBounds, not_ready
from duewheel.runtime.shard_facts import LagFacts, ShardFacts


class ShardMetrics:
    """The families of a shard.

    Args:
        settings: of the shard.
        clock: this host's.
    """

    def __init__(self, settings: Settings, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock

    def families(self) -> Iterator[Metric]:
        """See metrics_server.Source."""
        settings = self._settings
        with State.open(settings.storage.data_dir, READING_FS) as state:
            facts = ShardFacts(state, self._clock.now_ms())
            yield from _supervised(facts.supervised)
            yield from _readiness(not_ready(facts, ReadyBounds.of(settings)))
            if facts.lag.polled_ms:
                yield from _lag(facts.lag)
            yield from _waiting(settings.timer.quotas, facts.quota_waiting(settings.timer.quotas))


def _waiting(quotas: Mapping[str, int], waiting: Mapping[str, int]) -> Iterator[Metric]:
    yield gauges(
        "quota_waiting",
        "Messages that wait in Kafka because of their topic's quota.",
        "topic",
        waiting,
    )
    yield gauges(
        "quota_waiting_seconds",
        "How long they wait at the rate of the quota, until the last one is taken.",
        "topic",
        {topic: waiting[topic] / quota for topic, quota in quotas.items()},
    )


def _readiness(reasons: Mapping[str, str]) -> Iterator[Metric]:
    yield gauge("ready", "1 if the shard does its work: see `duewheel status`.", int(not reasons))
    yield gauges(
        "not_ready",
        "1 for each reason why the shard is not ready.",
        "reason",
        {reason: int(reason in reasons) for reason in REASONS},
    )


def _lag(lag: LagFacts) -> Iterator[Metric]:
    yield gauge(
        "ingest_lag_messages",
        "Offsets of the timer topics that can be read and are not in the wheel, without those that "
        "wait for a quota, or at a record that leads too far ahead.",
        lag.messages,
    )
    yield gauge(
        "ingest_lag_seconds",
        "Age of the oldest of these offsets, since a poll first saw it.",
        lag.oldest_age_ms / 1000,
    )
    yield gauge(
        "ingest_batch_age_seconds",
        "Time without a finished batch while there were messages to read.",
        lag.batch_age_ms / 1000,
    )
    yield gauge(
        "ingest_lag_asked_age_seconds",
        "Time since Kafka last returned the ends of the timer topics.",
        lag.poll_age_ms / 1000,
    )
    yield gauge(
        "ingest_open_messages",
        "Offsets behind an open transaction: readers of committed records do not see them yet.",
        lag.open,
    )


def _supervised(supervised: Mapping[str, run_file.Supervised] | None) -> Iterator[Metric]:
    if supervised is None:
        return
    yield counters(
        "process_restarts",
        "Starts of a process after its first, since `run` began.",
        "process",
        {name: each.restarts for name, each in supervised.items()},
    )
    yield gauges(
        "process_failing",
        "1 from the end of a process until the heartbeat of its successor.",
        "process",
        {name: int(each.is_failing) for name, each in supervised.items()},
    )
    yield gauges(
        "process_last_exit_code",
        "Last exit code; negative: the signal. See `duewheel status` for the reason.",
        "process",
        {
            n: each.last_exit_code
            for n, each in supervised.items()
            if each.last_exit_code is not None
        },
    )
    yield gauges(
        "process_next_try_timestamp_seconds",
        "When a process that does not run is started again.",
        "process",
        {
            n: each.next_try_ms / 1000
            for n, each in supervised.items()
            if each.next_try_ms is not None
        },
    )
