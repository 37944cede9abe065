"""The ingest process: Spark reads the timer topics, the engine takes the new rows.

Start, in this order:

    1. the data directory is taken (ingest.lock), the timer topics' settings are checked
    2. Spark's JVM starts, and on a cluster executors: they take longest, and dequeue may be
       starting beside them
    3. the engine, once dequeue has decided how this start continues
       (wheel/recovery/kept_files.py) and that has been carried out (wheel/recovery/rebuild.py)
    4. Spark's checkpoint is compared with the engine's marks
    5. the query runs, until SIGTERM or an error; the supervisor restarts the process. Another query
       follows in the same session if topics change, or if the planning process is away. `ingest is
       ready` follows the first batch, or the first plan if there is nothing to read. Only then this
       process and Spark lower their priority: dequeue goes first, and a start is not delayed

The engine's marks decide which rows are new. A checkpoint below them costs a second read; one above
them, or one that cannot be read, would lose messages: it is set aside, and the query starts from
the marks. So is one whose batch was too large for the memory (streaming/batch_size.py).
"""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from pathlib import Path

import structlog

from duewheel import factory
from duewheel.audit.history import AuditHistory
from duewheel.backoff import Backoff
from duewheel.checkpoints.commit_and_close_pages import Marks
from duewheel.checkpoints.disk_room import Room
from duewheel.checkpoints.local_state import RecoveryRecord, dequeue_has_decided, read_local_state
from duewheel.checkpoints.process_role import Role
from duewheel.checkpoints.state_file import State
from duewheel.checkpoints.taken_topics import TakenTopics
from duewheel.checkpoints.unfinished_recovery import recovering
from duewheel.clock import Clock, Interval
from duewheel.config.settings import Settings
from duewheel.errors import (
    CorruptFile,
    DuewheelError,
    KafkaUnavailable,
    PlannerUnavailable,
    RecoveryPending,
    RecoveryRefused,
    SettingsChange,
)
from duewheel.java.spark_session import spark_session
from duewheel.kafka import shard_settings
from duewheel.kafka.topics.admin import KafkaAdmin
from duewheel.kafka.topics.discovery import discover
from duewheel.osutil.metrics_server import Together, served
from duewheel.osutil.priority_and_heap import do_without_pandas, yield_processors
from duewheel.osutil.signals import ignore_kafka_errors_after_stop, stop_signals
from duewheel.runtime.checkpointer import CheckpointThread
from duewheel.runtime.ingest_metrics import IngestMetrics
from duewheel.runtime.shard_metrics import ShardMetrics
from duewheel.runtime.topic_watch import TopicWatch
from duewheel.schemas.batches import TopicPartition
from duewheel.schemas.partition_names import partition_name
from duewheel.streaming import read_task
from duewheel.streaming.batch_attempt import SPARK_DIR
from duewheel.streaming.batch_size import RowLimit
from duewheel.streaming.batch_taker import BatchTaker
from duewheel.streaming.disk_guard import DiskGuard
from duewheel.streaming.early_ends import EarlyEnds
from duewheel.streaming.executor_python import require_python
from duewheel.streaming.executors import Executors
from duewheel.streaming.handover_folder import shared_folder
from duewheel.streaming.offset_gaps import GapWatch
from duewheel.streaming.query import QueryOptions, run_query
from duewheel.streaming.query_progress import QueryProgress
from duewheel.streaming.session import Session, scratch_folder
from duewheel.streaming.sink import TimerSink
from duewheel.streaming.source import SourceOptions, timer_stream
from duewheel.streaming.spark_checkpoint import settle_checkpoint
from duewheel.streaming.task_rows import take_timers
from duewheel.streaming.task_share import TaskSettings
from duewheel.wheel.append.engine import Engine
from duewheel.wheel.recovery.rebuild import apply_recovery
from duewheel.wheel.storage.data_directory import DataDirectory

# Spark's checkpoint, in SPARK_DIR.
CHECKPOINT = "checkpoint"

_WAIT_S = 0.2
_QUERY_BACKOFF_MS = 200, 5_000
_WAIT_LOG_INTERVAL_MS = 10_000

_log = structlog.get_logger(__name__)


def run_ingest(settings: Settings) -> None:
    """Run the ingest process: take timers until a signal.

    Raises:
        Locked: another ingest works in the data directory.
        ConfigError: a timer topic is not as it must be, at the first start.
        RecoveryRefused: a timer topic ends below the offsets that were taken from it.
        RecoveryPending: a file is damaged, or dequeue has decided on a recovery: start again.
        KafkaUnavailable: the brokers do not answer.
        SparkUnavailable: the cluster has no master, or no executor for a minute.
        DuewheelError: the query failed; a new start may help.
    """
    do_without_pandas()
    with stop_signals() as stopping:
        clock = factory.StoppableClock(stopping)
        begun_ms = clock.boottime_ms()
        directory = factory.start_directory(settings, Role.INGEST)
        try:
            with ignore_kafka_errors_after_stop(stopping):
                if read_local_state(directory.state, directory.path).is_fresh:
                    with _admin(settings, stopping) as admin:
                        admin.require_timer_topics(settings)
                with _session(settings) as spark, _admin(settings, stopping) as admin:
                    executors = Executors(spark, clock)
                    while not executors.poll() and not stopping.wait(_WAIT_S):
                        pass
                    record = None
                    if not stopping.is_set():
                        folder = _prepare(executors, settings, spark, directory.state.uuid)
                        record = _decision(directory, clock, stopping)
                    if record is not None:
                        cut = list[TopicPartition]()
                        offsets_at = partial(_offsets_at, settings, directory.state, admin, cut)
                        apply_recovery(directory, record, offsets_at)
                        with _damage_pending(directory.path / SPARK_DIR):
                            IngestRun(
                                settings,
                                directory,
                                spark,
                                executors,
                                admin,
                                clock,
                                stopping,
                                folder,
                                begun_ms,
                                cut,
                            ).run()
        finally:
            directory.stop()


class IngestRun:
    """Steps 3 to 5, in a directory that is recovered. Not thread-safe."""

    def __init__(
        self,
        settings: Settings,
        directory: DataDirectory,
        spark: Session,
        executors: Executors,
        admin: KafkaAdmin,
        clock: Clock,
        stopping: threading.Event,
        folder: str,
        begun_ms: int,
        cut: Sequence[TopicPartition],
    ) -> None:
        """Raises as `run_ingest`. `folder` is that of TaskSettings, `begun_ms` the boottime of the
        start, `cut` the partitions that the recovery could not read from their beginning.
        """
        self._settings, self._directory, self._stopping = settings, directory, stopping
        self._spark, self._executors, self._admin, self._clock = spark, executors, admin, clock
        state, spark_dir = directory.state, directory.path / SPARK_DIR
        self._watch = self._topic_watch()
        self._engine = Engine(directory, clock, self._watch.find(admin))
        _require_fits(settings, state)
        self._checkpoint = spark_dir / CHECKPOINT
        self._folder, self._begun_ms, self._cut = folder, begun_ms, cut
        self._is_ready = self._has_all = False
        self._unplanned_ms = 0  # wall time since which no process plans; 0: one does
        self._unplanned = Interval(clock, _WAIT_LOG_INTERVAL_MS)
        self._query_backoff = Backoff(clock, random.Random(), *_QUERY_BACKOFF_MS)
        self._limit = RowLimit(spark_dir, settings.ingest.max_offsets_per_trigger)
        self._limit.settle(self._checkpoint, self._engine.marks)
        self._gaps = GapWatch(admin.starts, clock)
        taker = BatchTaker(
            self._engine,
            self._gaps,
            clock,
            paused=partial(state.live.paused, Role.INGEST),
            guard=_guard(settings, directory),
        )
        timers = partial(take_timers, folder=self._folder)
        self._sink = TimerSink(taker, timers, self._checkpoint, EarlyEnds(spark_dir))
        interval_s = settings.storage.durable_interval.total_seconds()
        self._durable = CheckpointThread(directory.path, interval_s, stopping)

    def run(self) -> None:
        """Queries, one after another, until the stop; a new one where the topics have changed, or
        the settings.

        Raises:
            DuewheelError: see `run_ingest`.
        """
        sink, limit = self._sink, self._limit
        source = self._source()
        self._durable.start()
        with self._metrics() as metrics, limit.noting_the_end(self._stopping.is_set, sink):
            while True:
                stream = partial(timer_stream, self._spark, source)
                limit.begun(self._engine.marks, sink.statistics.batches)
                settings = self._settings
                query = QueryOptions(_name(settings), self._checkpoint, settings.ingest.trigger_ms)
                with (
                    self._another_planner(),
                    _restart_on_topic_change(self._watch),
                    suppress(SettingsChange),
                ):
                    if not run_query(
                        stream, sink, query, self._stopping, partial(self._tick, metrics)
                    ):
                        break
                if self._stopping.is_set() or not self._follow_settings():
                    break
                next_source = self._next_source()
                if next_source is None:
                    break
                source = next_source
            counted = sink.statistics
            _log.info(
                "ingest stopped",
                batches=counted.batches,
                rows=counted.rows,
                rows_replayed=counted.rows_replayed,
                rows_lost=sum(counted.rows_lost.values()),
            )

    def _next_source(self) -> SourceOptions | None:
        """Returns the source of the next query once Kafka answers; None if a signal came before.

        The broker has closed a connection that was idle since the last query; or it is away. A new
        process would take a minute to come to this point, and JVM and session are here.
        """
        while not self._stopping.is_set():
            try:
                self._engine.add_topic_ids(self._watch.find(self._admin))
                return self._source()
            except KafkaUnavailable as error:
                self._await_another_query(error)
                self._beat()
        return None

    def _follow_settings(self) -> bool:
        """Waits while the shard is to take other settings, then loads those that it has. No query
        runs: each parses under one list of epochs. Returns False if a signal came before.

        Raises:
            RecoveryPending: dequeue has decided on a recovery.
            RecoveryRefused: the configuration of this process has others.
            ConfigError: it cannot be used.
        """
        state = self._directory.state
        while state.live.wanted_settings:
            if self._stopping.is_set():
                return False
            self._beat()
            self._clock.sleep(_WAIT_S)
        before = self._engine.epochs
        self._engine.load_epochs()
        if self._engine.epochs != before:
            self._settings = self._settings.reloaded()
            _require_fits(self._settings, state)
            self._watch = self._topic_watch()
            _log.info("messages are read under other settings from here on")
        return True

    def _topic_watch(self) -> TopicWatch:
        state = self._directory.state
        return TopicWatch(self._settings, state, self._clock, lambda: state.commit().marks)

    def _source(self) -> SourceOptions:
        """Returns the topics and offsets of the next query."""
        settings = self._settings
        starts = self._watch.starts(self._admin)
        ends = self._admin.ends(sorted({topic for topic, _ in starts}), committed=True)
        marks = self._engine.marks
        settle_checkpoint(self._checkpoint, marks, starts, ends)
        waiting = sum(max(0, ends.get(p, 0) - max(0, start)) for p, start in starts.items())
        self._has_all = all(marks.get(p, 0) >= ends.get(p, 0) for p in starts)
        _log.info("reading the timer topics", partitions=len(starts), offsets_waiting=waiting)
        task = TaskSettings(
            kafka=settings.kafka.client_options("consumer"),
            topics=self._watch.topic_set.topics,
            epochs=self._engine.epochs.text,
            dead_letter_topic=settings.dead_letter_topic,
            folder=self._folder,
        )
        return SourceOptions(
            task,
            starts,
            str(self._checkpoint.parent),
            settings.ingest.max_offsets_per_trigger,
            settings.ingest.max_bytes_per_trigger,
            only=settings.shard.count > 1,
            poll_ms=settings.ingest.trigger_ms,
            quotas=settings.by_topic("quota_per_second"),
            data_dir=str(self._directory.path.absolute()),
        )

    @contextmanager
    def _another_planner(self) -> Iterator[None]:
        """Continue after a query whose planning process is away: the next one starts another, in
        the JVM that is there. A new JVM would take minutes where processors are scarce.
        """
        try:
            yield
        except PlannerUnavailable as error:
            self._await_another_query(error)

    def _await_another_query(self, error: DuewheelError) -> None:
        wait_s = self._query_backoff.next_ms() / 1000
        _log.warning("another query follows", reason=str(error), wait_s=wait_s)
        self._stopping.wait(wait_s)

    @contextmanager
    def _metrics(self) -> Iterator[IngestMetrics]:
        """The metrics, served while the queries run."""
        settings, clock = self._settings, self._clock
        with State.open(self._directory.path) as state:
            audits, counted = AuditHistory(settings.audit_dir), lambda: self._sink.statistics
            metrics = IngestMetrics(state, clock, counted, settings, audits, self._cut)
            families = Together(metrics, ShardMetrics(settings, clock))
            with served(
                families, settings.metrics.host, settings.metrics.ingest_port, "metrics.ingest_port"
            ):
                yield metrics

    def _tick(self, metrics: IngestMetrics, progress: QueryProgress) -> bool:
        """Runs once a second beside the query; returns whether another query must replace it."""
        metrics.progress = progress
        statistics = self._sink.statistics
        self._directory.state.live.note_rows_without_room(statistics.rows_without_room)
        # A sink is called with a batch that is planned; its progress comes when it has ended.
        is_planned = progress.batch_id >= 0 or self._sink.is_busy
        self._note_planner(is_planned)
        if is_planned and not self._is_ready and (statistics.batches or self._has_all):
            self._become_ready(statistics.rows)
        self._beat()
        self._gaps.settle()
        self._durable.require_alive()
        self._executors.poll()
        self._limit.grow(self._engine.marks, statistics.batches, progress.behind)
        return self._watch.poll() or self._engine.settings_change

    def _note_planner(self, is_planned: bool) -> None:
        """Notes since when no process has planned a batch; a line in the log says so at times."""
        if is_planned:
            self._unplanned_ms = 0
            self._query_backoff.succeeded()
            return
        now_ms = self._clock.now_ms()
        self._unplanned_ms = self._unplanned_ms or now_ms
        if now_ms - self._unplanned_ms > _WAIT_LOG_INTERVAL_MS and self._unplanned.is_over():
            waited_s = (now_ms - self._unplanned_ms) / 1000
            _log.warning("waiting for the process that plans batches", waited_s=waited_s)

    def _beat(self) -> None:
        state = self._directory.state
        if state.needs_recovery:
            raise RecoveryPending("dequeue has decided on a recovery: restarting")
        now_ms = self._clock.now_ms()
        state.live.beat(Role.INGEST, os.getpid(), now_ms, self._unplanned_ms)

    def _become_ready(self, rows: int) -> None:
        """Lowers the priority: from now on a timer that is taken later is not late; one that is
        delivered later is.
        """
        self._is_ready = True
        yield_processors(self._settings.ingest.niceness)
        took_s = (self._clock.boottime_ms() - self._begun_ms) / 1000
        _log.info("ingest is ready", rows=rows, took_s=took_s)


@contextmanager
def _restart_on_topic_change(watch: TopicWatch) -> Iterator[None]:
    """Continue after a query that failed because a topic was deleted or recreated: the next query
    reads the remaining topics. A listed topic's loss is raised.
    """
    try:
        yield
    except DuewheelError as error:
        if type(error) not in {DuewheelError, RecoveryRefused} or not watch.has_changed():
            raise
        _log.warning("the timer topics have changed: another query follows", reason=str(error))


def _guard(settings: Settings, directory: DataDirectory) -> DiskGuard:
    state = directory.state
    return DiskGuard(
        partial(Room.of, directory.path, settings.storage.min_free.of),
        lambda: not state.standby and recovering(state) is not None,
    )


def _require_fits(settings: Settings, state: State) -> None:
    """Refuses settings other than those of the progress: dequeue, which wrote it, may have been
    started with another configuration.
    """
    mirror = state.mirror()
    assert mirror is not None, "the engine has read it"
    factory.dequeue_config(settings).require_fits(mirror.progress, settings.wheel)


# ---- Spark and Kafka ----------------------------------------------------------------------------


def _session(settings: Settings) -> AbstractContextManager[Session]:
    return spark_session(
        settings,
        app_name=_name(settings),
        work_dir=settings.storage.data_dir / SPARK_DIR,
    )


def _scratch(settings: Settings) -> Path:
    return scratch_folder(settings.storage.data_dir / SPARK_DIR)


def _prepare(executors: Executors, settings: Settings, spark: Session, directory: str) -> str:
    """Give executors the code; returns the folder for TaskSettings."""
    if executors.are_local:
        return str(_scratch(settings))
    require_python(spark, [read_task.__name__], _scratch(settings))
    shared = settings.ingest.shared_folder
    return "" if shared is None else str(shared_folder(spark, shared, directory))


def _admin(settings: Settings, stopping: threading.Event) -> KafkaAdmin:
    return factory.kafka_admin(settings, stopping=stopping)


def _name(settings: Settings) -> str:
    return f"{settings.app.id}.ingest.{settings.shard.index}"


# ---- where to begin -----------------------------------------------------------------------------


def _decision(
    directory: DataDirectory, clock: Clock, stopping: threading.Event
) -> RecoveryRecord | None:
    """Waits until the running dequeue has decided how this start continues; None if a signal came
    before.
    """
    line = Interval(clock, _WAIT_LOG_INTERVAL_MS)
    while (record := dequeue_has_decided(directory.state, directory.path)) is None:
        if stopping.is_set():
            return None
        if line.is_over():
            _log.info("waiting for dequeue to start in this data directory")
        clock.sleep(_WAIT_S)
    return None if stopping.is_set() else record


def _offsets_at(
    settings: Settings,
    state: State,
    admin: KafkaAdmin,
    cut: list[TopicPartition],
    time_ms: int,
) -> Marks:
    """The offsets at `time_ms` in the timer topics, for a recovery that reads them again. Appends
    to `cut` the partitions whose messages before the log's start are gone.
    """
    taken = TakenTopics.of(state)
    existing = discover(settings, admin, taken)
    for topic in taken.topics & existing.left_out.keys():
        _log.error(
            "a timer topic cannot be read again: its pending messages are lost",
            topic=topic,
            reason=existing.left_out[topic],
        )
    found = shard_settings.own(settings, admin.offsets_at(existing.topics, time_ms))
    starts = shard_settings.own(settings, admin.starts(existing.topics))
    for partition, start in starts.items():
        if 0 < start == found.get(partition):
            cut.append(partition)
            _log.error(
                "the timer topic's log begins within the time that is read again: pending messages "
                "before that are lost",
                partition=partition_name(partition),
                log_start=start,
            )
    return found


@contextmanager
def _damage_pending(spark_dir: Path) -> Iterator[None]:
    """A damaged checkpoint of Spark's ends this run; the next start sets it aside.

    Raises:
        RecoveryPending: in its place.
    """
    try:
        yield
    except CorruptFile as error:
        if not error.path.is_relative_to(spark_dir):
            raise
        raise RecoveryPending(f"{error}: restarting without it") from error
