"""The dequeue process, and the first progress of a shard.

Steps of a start: take the data directory; check the topics, while the shard's progress is read;
claim the shard, a new one with its first progress (a standby follows its owner until then); deliver
until a signal, or until other settings are requested: then it takes them, and starts again
(take_settings.py). Any failure ends the process; its supervisor starts it again.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from duewheel import factory
from duewheel.checkpoints.local_state import read_local_state
from duewheel.checkpoints.obstacles import FILE_NAME, Obstacles
from duewheel.checkpoints.ownership import require_as_many, require_not_sealed, require_own_files
from duewheel.checkpoints.process_role import Role
from duewheel.checkpoints.progress import Progress
from duewheel.clock import Clock
from duewheel.config.instants import utc_text
from duewheel.config.settings import Settings
from duewheel.errors import ConfigError, Fenced, KafkaUnavailable, OwnerAlive, RecoveryPending
from duewheel.extras import require
from duewheel.kafka.progress.all_shards import all_shards
from duewheel.kafka.publish.publisher import KafkaPublisher, PublisherHooks
from duewheel.kafka.topics.admin import KafkaAdmin
from duewheel.kafka.topics.discovery import first_starts
from duewheel.osutil.priority_and_heap import do_without_pandas, share_one_heap
from duewheel.osutil.signals import ignore_kafka_errors_after_stop, stop_signals
from duewheel.runtime import take_settings
from duewheel.runtime.lag_watch import LagWatch
from duewheel.runtime.pause_watch import PauseWatch
from duewheel.schemas.batches import TopicPartition
from duewheel.threads import beside
from duewheel.wheel.dequeue.lifecycle import Dequeue
from duewheel.wheel.dequeue.prefetch import ReadAheadThread
from duewheel.wheel.dequeue.standby import Follower, Verdict
from duewheel.wheel.publisher_protocol import publish_progress
from duewheel.wheel.recovery.startup import first_progress
from duewheel.wheel.storage.data_directory import DataDirectory

if TYPE_CHECKING:
    from duewheel.runtime.delivery_traces import DeliveryTraces

log = structlog.get_logger(__name__)

_TAKE_OVER_AGAIN_S = 1.0


def run_dequeue(settings: Settings, *, take_over: bool = False, standby: bool = False) -> None:
    """Runs the dequeue process: it delivers until a signal. A `standby` follows the shard's owner
    first, unless that is this directory; it delivers once that is silent, or on `duewheel promote`.

    Raises:
        ConfigError: a topic is not as it must be.
        RecoveryRefused: the directory is another shard's.
        DuewheelError: see `Dequeue.start` and `Dequeue.tick`.
    """
    share_one_heap()
    do_without_pandas()
    with stop_signals() as stopping, ignore_kafka_errors_after_stop(stopping):
        clock = factory.StoppableClock(stopping)
        while not stopping.is_set():
            settings = take_settings.taken(settings, clock)
            _run(settings, clock, take_over=take_over, standby=standby)
            take_over = False


def _run(
    settings: Settings, clock: factory.StoppableClock, *, take_over: bool, standby: bool
) -> None:
    """Runs until a signal, or until other settings are requested."""
    stopping = clock.stopping
    directory = factory.start_directory(settings, Role.DEQUEUE)
    note_obstacles(directory.path, Obstacles())  # those of an earlier process
    pauses = PauseWatch(settings, clock)
    traces = _traces(settings)
    hooks = PublisherHooks(partial(note_obstacles, directory.path), pauses.now, traces)
    publisher = factory.publisher(settings, clock, hooks=hooks)
    config = factory.dequeue_config(settings)
    dequeue = Dequeue(directory, publisher, clock, config, stopping.is_set)
    try:
        local = read_local_state(directory.state, directory.path)
        require_own_files(local, settings.shard.index, directory.path)
        with pauses, LagWatch(settings, clock), ignore_kafka_errors_after_stop(stopping):
            topics = _TopicCheck(settings, directory, clock)
            if standby:
                topics.require()
                with _metrics(settings, clock, dequeue, traces):
                    if _stand_by(settings, directory, clock, publisher, dequeue):
                        _deliver(settings, directory, clock, dequeue, pauses)
            else:
                first = _first_if_new(settings, directory, clock, publisher, topics)
                start = partial(
                    dequeue.start, first, take_over=take_over, before_claim=topics.require
                )
                with topics.explaining():
                    is_owner = once_the_owner_is_silent(start, clock, publisher)
                if is_owner:
                    with _metrics(settings, clock, dequeue, traces):
                        _deliver(settings, directory, clock, dequeue, pauses)
        log.info("dequeue stopped", **_counters(dequeue))
    finally:
        dequeue.close()
        publisher.close()
        directory.stop()
        if traces is not None:
            traces.close()


def note_obstacles(directory: Path, obstacles: Obstacles) -> None:
    """Write why deliveries are blocked, for `status`; a full disk does not stop dequeue.

    Without room the file is removed: none is better than one that names a cause of the past.
    """
    try:
        obstacles.write(directory)
    except OSError as error:
        with suppress(OSError):
            (directory / FILE_NAME).unlink(missing_ok=True)
        log.warning("the obstacles of deliveries cannot be written", reason=str(error))


class _TopicCheck:
    """Checks duewheel's topics beside the first steps of the start, with a client of its own."""

    def __init__(
        self, settings: Settings, directory: DataDirectory, clock: factory.StoppableClock
    ) -> None:
        """Begins."""
        served = not read_local_state(directory.state, directory.path).is_fresh

        def check() -> None:
            with _admin(settings, clock) as admin:
                admin.require_topics(settings, served=served)

        self._outcome = beside("topic check", check)

    def require(self) -> None:
        """Waits for the end of the check.

        Raises:
            ConfigError: a topic is not as it must be.
            KafkaUnavailable: no answer in time.
        """
        self._outcome.result()

    @contextmanager
    def explaining(self) -> Iterator[None]:
        """Raises the error of the check, which names every topic, before that of a step beside it,
        which met one of them.
        """
        try:
            yield
        except ConfigError:
            self.require()
            raise


def once_the_owner_is_silent(
    start: Callable[[], None], clock: factory.StoppableClock, publisher: KafkaPublisher
) -> bool:
    """Starts, and waits while another directory may own the shard; False if a signal came before.

    An empty directory waits here after the loss of the old one: an end of the process instead would
    be restarted with a growing back-off, which outlasts the silence that is waited for.
    """
    while not clock.stopping.is_set():
        try:
            start()
        except OwnerAlive as alive:
            publisher.close()
            wait_s = alive.left_ms / 1000 + _TAKE_OVER_AGAIN_S
            log.warning(
                "waiting for the shard's owner to be silent",
                reason=str(alive),
                until=utc_text(clock.now_ms() + round(wait_s * 1000)),
            )
            clock.sleep(wait_s)
        else:
            return True
    return False


def _deliver(
    settings: Settings,
    directory: DataDirectory,
    clock: factory.StoppableClock,
    dequeue: Dequeue,
    pauses: PauseWatch,
) -> None:
    pauses.wait(clock.stopping)
    with _read_ahead(settings, clock, dequeue):
        dequeue.run(until=lambda: bool(directory.state.live.wanted_settings))


def _stand_by(
    settings: Settings,
    directory: DataDirectory,
    clock: factory.StoppableClock,
    publisher: KafkaPublisher,
    dequeue: Dequeue,
) -> bool:
    """Follow the owner until this directory owns the shard; False if a signal came before."""
    reader = factory.progress_reader(settings, clock)
    config, stopping = factory.dequeue_config(settings), clock.stopping
    try:
        while True:
            verdict = Follower(directory, reader, clock, config, stopping.is_set).run()
            if verdict is None:
                return False
            log.warning("taking over", reason=verdict.value)
            try:
                dequeue.start(take_over=verdict is Verdict.PROMOTED)
            except (Fenced, KafkaUnavailable, RecoveryPending) as error:
                # Fenced: another standby was quicker.
                log.warning("not taken over: following the owner again", reason=str(error))
                publisher.close()
                clock.sleep(_TAKE_OVER_AGAIN_S)
            else:
                return True
    finally:
        reader.close()


@contextmanager
def _metrics(
    settings: Settings, clock: Clock, dequeue: Dequeue, traces: DeliveryTraces | None
) -> Iterator[None]:
    """Serve the process's metrics, if a port is configured."""
    if settings.metrics.dequeue_port is None:
        yield
        return
    # Not at the top: without a port neither the start nor the memory pays for them.
    from duewheel.osutil.metrics_server import Together, served
    from duewheel.runtime.dequeue_metrics import DequeueMetrics
    from duewheel.runtime.shard_metrics import ShardMetrics

    with closing(DataDirectory(settings.storage.data_dir, settings.wheel)) as beside:
        spans = None if traces is None else lambda: traces.outcomes
        own = DequeueMetrics(beside, clock, lambda: dequeue.statistics, spans)
        source = Together(own, ShardMetrics(settings, clock))
        with served(
            source, settings.metrics.host, settings.metrics.dequeue_port, "metrics.dequeue_port"
        ):
            yield


def _traces(settings: Settings) -> DeliveryTraces | None:
    """The spans of deliveries, if they are wanted.

    Raises:
        ConfigError: their libraries are not installed, or a variable OTEL_… cannot be used.
    """
    if not settings.traces.enabled:
        return None
    require("otel")
    from duewheel.runtime.delivery_traces import DeliveryTraces

    return DeliveryTraces.to_collector(settings)


def _read_ahead(settings: Settings, clock: Clock, dequeue: Dequeue) -> ReadAheadThread:
    return ReadAheadThread(
        settings.storage.data_dir,
        settings.wheel,
        factory.read_ahead_config(settings),
        clock,
        lambda: dequeue.delivered_slot if dequeue.is_ready else None,
    )


def _admin(settings: Settings, clock: factory.StoppableClock) -> KafkaAdmin:
    return factory.kafka_admin(settings, stopping=clock.stopping)


def _counters(dequeue: Dequeue) -> dict[str, int]:
    statistics = dequeue.statistics
    return {
        "delivered": statistics.delivered,
        "dead_letters": sum(statistics.dead_letters.values()),
        "dead_letters_kept": statistics.letters_kept,
        "rolled": sum(statistics.rolled.values()),
        "parked": sum(statistics.parked.values()),
        "cancelled": statistics.cancelled,
        "dropped": statistics.dropped,
        "missed": statistics.missed,
        "transactions": statistics.transactions,
        "doubts": statistics.doubts,
        "lateness_max_ms": statistics.lateness.max_ms,
    }


def _first_if_new(
    settings: Settings,
    directory: DataDirectory,
    clock: factory.StoppableClock,
    publisher: KafkaPublisher,
    topics: _TopicCheck,
) -> Progress | None:
    """Returns the first progress of a shard, if its timer topics have never had a message.

    If they hold messages, only an operator can know that none was scheduled before: the shard then
    begins by `duewheel init`.
    """
    if not read_local_state(directory.state, directory.path).is_fresh:
        return None
    topics.require()
    with _admin(settings, clock) as admin:
        starts, are_empty = first_starts(settings, admin)
    if not are_empty:
        return None
    return _first_progress(settings, directory, starts, clock, publisher)


def _first_progress(
    settings: Settings,
    directory: DataDirectory,
    starts: Mapping[TopicPartition, int],
    clock: factory.StoppableClock,
    publisher: KafkaPublisher,
) -> Progress:
    """The first progress of a shard, by the earlier of host's and brokers' clocks: a floor from a
    clock that is ahead would delay every timer below it for ever.

    Raises:
        RecoveryRefused: other shards exist, and count their shards differently.
    """
    shards = all_shards(settings, clock.stopping)
    require_as_many((each.progress for each in shards.values()), settings.shard.count)
    now_ms = min(clock.now_ms(), publisher.broker_now_ms())
    first = first_progress(directory, factory.dequeue_config(settings), starts, now_ms)
    return replace(first, epochs=first.epochs.drawing_key(secrets.randbits))


def init_progress(settings: Settings) -> bool:
    """Writes the first progress of the shard if there is none, for `duewheel init`; returns whether
    it was written. All messages from the timer topics' log start on count as not scheduled yet.

    Raises:
        RecoveryRefused: there is no such shard: partitions belong to others.
    """
    with stop_signals() as stopping:
        clock = factory.StoppableClock(stopping)
        directory = factory.start_directory(settings, Role.DEQUEUE)
        publisher = factory.publisher(settings, clock)
        try:
            # Files with a mirror of the progress hold timers: the next start continues from it.
            found = publisher.start()
            if found is not None:
                require_not_sealed(found)
            if found is not None or directory.state.mirror() is not None:
                return False
            with _admin(settings, clock) as admin:
                starts, _ = first_starts(settings, admin)
            first = _first_progress(settings, directory, starts, clock, publisher)
            publish_progress(publisher, first)
            return True
        finally:
            publisher.close()
            directory.stop()
