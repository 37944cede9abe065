"""The ingest process: Spark reads the timer topics, the engine takes what is new.

Start, in this order:

    1. the data directory is taken (ingest.lock), the timer topics' settings are checked
    2. Spark's JVM starts: it takes longest, and dequeue may be starting beside it
    3. the engine, once dequeue has decided how this start goes on (checkpoints/recovery.py) and
       that has been carried out (wheel/recovering.py)
    4. Spark's checkpoint is compared with the engine's marks
    5. the query runs, until SIGTERM or an error; the supervisor restarts the process, not the query

The engine's marks decide what is new. A checkpoint below them costs a second reading; one above
them, or one that cannot be read, would lose messages: it is set aside, and the query starts from
the marks. So is one whose batch was too large for the memory (streaming/row_limit.py).
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import structlog

from duewheel import logs, wiring
from duewheel.audit_history import AuditHistory
from duewheel.checkpoints.batch_limit import End
from duewheel.checkpoints.progress import Progress
from duewheel.checkpoints.recovery import (
    RecoveryRecord,
    dequeue_has_decided,
    require_same_shard,
)
from duewheel.checkpoints.spark_offsets import Resume, resume_point, set_aside
from duewheel.checkpoints.state import INGEST, State
from duewheel.clock import Clock
from duewheel.config import Settings
from duewheel.durability import CheckpointThread
from duewheel.errors import (
    BatchTooLarge,
    ConfigError,
    CorruptFile,
    KafkaUnavailable,
    RecoveryPending,
    RecoveryRefused,
)
from duewheel.ingest_metrics import IngestMetrics
from duewheel.jars import connector_jars
from duewheel.java import find_java
from duewheel.kafka_admin import KafkaAdmin
from duewheel.metrics import served
from duewheel.processes import forgiven_once, stop_signals
from duewheel.schemas.contract import parse, rejections
from duewheel.schemas.timers import TopicPartition
from duewheel.streaming.gaps import GapWatch, LogStart
from duewheel.streaming.judging import contracts, parse_by_epoch
from duewheel.streaming.progress import QueryProgress
from duewheel.streaming.query import QueryOptions, run_query
from duewheel.streaming.row_limit import RowLimit
from duewheel.streaming.session import Session, SessionOptions, start_session, stop_session
from duewheel.streaming.sink import TimerSink
from duewheel.streaming.source import EARLIEST, SourceOptions, timer_stream
from duewheel.wheel.data_directory import DataDirectory, Role
from duewheel.wheel.engine import Engine, require_same_topics
from duewheel.wheel.recovering import carry_out

# Below the data directory: everything of Spark's, and its checkpoint therein.
SPARK_DIR = "spark"
CHECKPOINT = "checkpoint"

_WAIT_S = 0.2
_WAIT_LOG_INTERVAL_MS = 10_000
_TOPIC_WATCH_MS = 10_000
_TOPIC_WATCH_DEADLINE_S = 3.0

_log = structlog.get_logger(__name__)

Marks = Mapping[TopicPartition, int]


def run_ingest(settings: Settings) -> None:
    """The ingest process: takes timers until it is told to stop.

    Raises:
        Locked: another ingest works in the data directory.
        ConfigError: a timer topic is not as it must be.
        RecoveryRefused: a timer topic ends below what was already taken from it.
        RecoveryPending: a file is damaged, or dequeue has decided on a recovery: start again.
        KafkaUnavailable: the brokers do not answer.
        DuewheelError: the query failed; a new start may help.
    """
    with stop_signals() as stopping:
        clock = wiring.StoppableClock(stopping)
        directory = DataDirectory.start(settings.storage.data_dir, settings.wheel, Role.INGEST)
        try:
            with forgiven_once(stopping):
                with _admin(settings, stopping) as admin:
                    admin.require_timer_topics(settings)
                with _session(settings) as spark, _admin(settings, stopping) as admin:
                    record = _decision(directory, clock, stopping)
                    if record is not None:
                        carry_out(directory, record, partial(_offsets_at, settings, admin))
                        with _checkpoint_forgiven(directory.path / SPARK_DIR):
                            _run(settings, directory, spark, admin, clock, stopping)
        finally:
            directory.stop()


def _run(
    settings: Settings,
    directory: DataDirectory,
    spark: Session,
    admin: KafkaAdmin,
    clock: Clock,
    stopping: threading.Event,
) -> None:
    topic_ids = _topic_ids(settings, admin)
    engine = Engine(directory, clock, topic_ids)
    _require_same_settings(settings, directory.state, engine)
    checkpoint = directory.path / SPARK_DIR / CHECKPOINT
    found = admin.end_offsets(settings.timer.topics)
    _require_topics(settings, found)
    ends = wiring.own(settings, found)
    close = directory.state.close()
    _require_not_below(close.c if close else {}, ends)
    starts = _starting_offsets(engine.marks, ends)
    limit = _row_limit(settings, directory.path / SPARK_DIR)
    limit.settle(checkpoint, engine.marks)
    settle_checkpoint(checkpoint, engine.marks, starts)
    gaps = GapWatch(_log_start(admin), clock)
    judges = contracts(engine.epochs, settings.dead_letter_topic)
    parsers = [partial(parse, contract=contract) for contract in judges]
    sink = TimerSink(
        engine,
        partial(parse_by_epoch, parsers=parsers, epochs=engine.epochs),
        checkpoint,
        gaps,
        clock,
        rejections=partial(rejections, rules=[r for judge in judges for r in judge.rules.rules]),
        paused=partial(directory.state.paused, INGEST),
    )
    source = SourceOptions(
        bootstrap_servers=settings.kafka.servers,
        topics=settings.timer.topics,
        starting_offsets=starts,
        max_offsets_per_trigger=limit.rows,  # of the first query
        only=settings.shard.count > 1,
        kafka=settings.kafka.source_options(),
    )
    query = QueryOptions(_name(settings), checkpoint, settings.ingest.trigger_ms)
    state = State.open(directory.path)
    metrics = IngestMetrics(state, clock, lambda: sink.statistics, AuditHistory(settings.audit_dir))
    watch = _TopicWatch(settings, clock, topic_ids, starts, lambda: engine.marks)
    interval_s = settings.storage.durable_interval.total_seconds()
    durable = CheckpointThread(directory.path, interval_s, stopping)
    durable.start()
    tick = _tick(directory, clock, sink, gaps, watch, metrics, durable, limit)
    try:
        with served(metrics, settings.metrics.host, settings.metrics.ingest_port), _told(limit):
            again = True
            while again:
                stream = timer_stream(spark, replace(source, max_offsets_per_trigger=limit.rows))
                limit.begun(engine.marks, sink.statistics.batches)
                again = run_query(stream, sink, query, stopping, tick)
    finally:
        state.release()
        counted = sink.statistics
        _log.info(
            "ingest stopped",
            batches=counted.batches,
            rows=counted.rows,
            rows_replayed=counted.rows_replayed,
            rows_lost=counted.rows_lost,
        )


def _row_limit(settings: Settings, directory: Path) -> RowLimit:
    known = settings.ingest
    return RowLimit(directory, known.max_offsets_per_trigger, known.driver_memory_bytes)


@contextmanager
def _told(limit: RowLimit) -> Iterator[None]:
    """The next start hears how this one has ended, unless nobody knows why."""
    try:
        yield
    except BatchTooLarge:
        limit.ended(End.OUT_OF_MEMORY)
        raise
    except (ConfigError, CorruptFile, KafkaUnavailable, RecoveryPending, RecoveryRefused):
        limit.ended(End.ORDERLY)
        raise
    else:
        limit.ended(End.ORDERLY)


def _require_same_settings(settings: Settings, state: State, engine: Engine) -> None:
    """Dequeue has refused other settings than the progress's; but its own may be others again."""
    mirror, shard = state.mirror(), settings.shard
    assert mirror is not None, "the engine has read it"
    require_same_shard(Progress.decode(mirror[2]), shard=shard.index, shards=shard.count)
    changes = engine.epochs.newest.changes(wiring.slot_values(settings))
    if changes:
        raise RecoveryRefused(f"dequeue was started with other settings: {', '.join(changes)}")


def _tick(
    directory: DataDirectory,
    clock: Clock,
    sink: TimerSink,
    gaps: GapWatch,
    watch: _TopicWatch,
    metrics: IngestMetrics,
    durable: CheckpointThread,
    limit: RowLimit,
) -> Callable[[QueryProgress], bool]:
    """What is done about twice a second beside the query."""
    pid = os.getpid()

    def tick(progress: QueryProgress) -> bool:
        if directory.state.needs_recovery:
            raise RecoveryPending("dequeue has decided on a recovery: starting anew")
        metrics.progress = progress
        known = sink.statistics
        waiting = known.rows_waiting + known.rows_held + known.rows_ahead
        lag = progress.behind + waiting
        # A batch that waits keeps Spark from telling what has come since.
        directory.state.beat(INGEST, pid, clock.now_ms(), max(lag, watch.behind * bool(waiting)))
        gaps.settle()
        watch.look()
        durable.require_alive()
        return limit.is_outgrown(known.batches, known.row_bytes, progress.behind)

    return tick


# ---- Spark and Kafka ----------------------------------------------------------------------------


@contextmanager
def _session(settings: Settings) -> Iterator[Session]:
    java = find_java()
    options = SessionOptions(
        app_name=_name(settings),
        work_dir=settings.storage.data_dir / SPARK_DIR,
        java_home=java.home,
        jars=connector_jars(java),
        driver_memory=settings.ingest.driver_memory,
        log_pattern=logs.jvm_pattern("ingest", logs.resolve(settings.log.format)),
        conf=settings.spark_conf(),
    )
    session = start_session(options)
    try:
        yield session
    finally:
        stop_session(session)


def _admin(settings: Settings, stopping: threading.Event) -> KafkaAdmin:
    return KafkaAdmin(settings.kafka.client_options("admin"), stopping=stopping)


def _name(settings: Settings) -> str:
    return f"{settings.app.id}.ingest.{settings.shard.index}"


def _topic_ids(settings: Settings, admin: KafkaAdmin) -> dict[str, str]:
    return {topic: str(found) for topic, found in admin.topic_ids(settings.timer.topics).items()}


class _TopicWatch:
    """Asked often, looks now and then whether the topics are still the same ones.

    Attributes:
        behind: how many offsets the engine's marks were behind the topics' ends at the last look.
    """

    def __init__(
        self,
        settings: Settings,
        clock: Clock,
        topic_ids: Mapping[str, str],
        partitions: Collection[TopicPartition],
        marks: Callable[[], Marks],
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._topic_ids = topic_ids
        self._partitions = partitions
        self._marks = marks
        self._looked_at_ms = clock.now_ms()
        self.behind = 0

    def look(self) -> None:
        """Look, if it is time to.

        Raises:
            RecoveryRefused: a topic was made anew, or has lost its end: its messages would be
                taken for old ones.
            RecoveryPending: a partition has come that the query does not find by itself.
        """
        if abs(self._clock.now_ms() - self._looked_at_ms) < _TOPIC_WATCH_MS:
            return
        self._looked_at_ms = self._clock.now_ms()
        # A client of its own: the other one is the sink's, and the heartbeat must not wait long.
        options = self._settings.kafka.client_options("admin")
        with suppress(KafkaUnavailable), KafkaAdmin(options, _TOPIC_WATCH_DEADLINE_S) as admin:
            require_same_topics(self._topic_ids, _topic_ids(self._settings, admin))
            marks = self._marks()  # before the ends: those never fall, unless messages are lost
            ends = wiring.own(self._settings, admin.end_offsets(self._settings.timer.topics))
            _require_not_below(marks, ends)
            self._require_known(ends)
            self.behind = sum(max(0, end - marks.get(p, end)) for p, end in ends.items())

    def _require_known(self, partitions: Iterable[TopicPartition]) -> None:
        if self._settings.shard.count > 1:
            added = [
                f"{topic}-{n}" for topic, n in partitions if (topic, n) not in self._partitions
            ]
            if added:
                raise RecoveryPending(f"{', '.join(added)} was added: starting anew to read it too")


def _log_start(admin: KafkaAdmin) -> LogStart:
    def log_start(topic: str, partition: int) -> int:
        # A partition that is gone has lost nothing that a gap could tell.
        return admin.log_start_offsets([topic]).get((topic, partition), 0)

    return log_start


# ---- where to begin -----------------------------------------------------------------------------


def _decision(
    directory: DataDirectory, clock: Clock, stopping: threading.Event
) -> RecoveryRecord | None:
    """Wait until the dequeue that lives now has decided how this start goes on.

    Returns:
        None if told to stop before.
    """
    logged_at_ms: int | None = None
    while (record := dequeue_has_decided(directory.state, directory.path)) is None:
        if stopping.is_set():
            return None
        boottime_ms = clock.boottime_ms()
        if logged_at_ms is None or boottime_ms - logged_at_ms >= _WAIT_LOG_INTERVAL_MS:
            _log.info("waiting for dequeue to start in this data directory")
            logged_at_ms = boottime_ms
        clock.sleep(_WAIT_S)
    return None if stopping.is_set() else record


def _offsets_at(settings: Settings, admin: KafkaAdmin, time_ms: int) -> Marks:
    """Where a time begins in the timer topics, for a recovery that reads everything again."""
    found = wiring.own(settings, admin.offsets_at(settings.timer.topics, time_ms))
    starts = wiring.own(settings, admin.log_start_offsets(settings.timer.topics))
    for partition, start in starts.items():
        if 0 < start == found.get(partition):
            _log.error(
                "the timer topic begins within the time that is read again: messages before that "
                "are gone, and those of them that were pending are lost",
                partition=f"{partition[0]}-{partition[1]}",
                log_start=start,
            )
    return found


@contextmanager
def _checkpoint_forgiven(spark_dir: Path) -> Iterator[None]:
    """A checkpoint that Spark's own query stumbles over is set aside by the next start.

    Raises:
        RecoveryPending: in its place.
    """
    try:
        yield
    except CorruptFile as error:
        if not error.path.is_relative_to(spark_dir):
            raise
        raise RecoveryPending(f"{error}: starting anew without it") from error


def _require_not_below(marks: Marks, ends: Marks) -> None:
    """Refuse partitions that end below what was taken from them.

    Raises:
        RecoveryRefused: naming the partition and both offsets.
    """
    for partition in ends.keys() & marks.keys():
        if ends[partition] < marks[partition]:
            raise RecoveryRefused(
                f"{partition[0]}-{partition[1]} ends at offset {ends[partition]}, but messages up "
                f"to {marks[partition]} were taken from it: the topic was made anew or has lost "
                "its end, and new messages would be taken for old ones. `duewheel reconfigure "
                f"--accept-loss {partition[0]}-{partition[1]}` lets the shard go on without"
            )


def _require_topics(settings: Settings, partitions: Iterable[TopicPartition]) -> None:
    missing = set(settings.timer.topics) - {topic for topic, _ in partitions}
    if missing:
        raise ConfigError(
            f"timer topic {', '.join(sorted(missing))} does not exist: `duewheel init` creates it"
        )


def _starting_offsets(marks: Marks, ends: Marks) -> dict[TopicPartition, int]:
    """Where a query without a checkpoint begins, for every partition of the shard.

    Args:
        marks: the engine's.
        ends: the offset of the next record, of every partition that there is.
    """
    _require_not_below(marks, ends)
    return {partition: marks.get(partition, EARLIEST) for partition in ends}


def settle_checkpoint(
    checkpoint: Path, marks: Marks, partitions: Mapping[TopicPartition, int]
) -> None:
    """Set Spark's checkpoint aside if going on with it could skip messages.

    Args:
        checkpoint: its directory; need not exist.
        marks: the engine's next offset per partition.
        partitions: those that there are.
    """
    try:
        resume = resume_point(checkpoint)
        reason = _misfit(resume, marks, partitions) if resume else None
    except CorruptFile as error:
        reason = str(error)
    if reason is None:
        return
    aside = set_aside(checkpoint)
    _log.warning(
        "Spark's checkpoint does not fit, starting from the marks", reason=reason, aside=str(aside)
    )


def _misfit(resume: Resume, marks: Marks, partitions: Mapping[TopicPartition, int]) -> str | None:
    """Why the query must not go on where its checkpoint says; None if it may."""
    topics = {topic for topic, _ in partitions}
    for (topic, number), offset in resume.offsets.items():
        name, mark = f"{topic}-{number}", marks.get((topic, number))
        if (topic, number) not in partitions:
            return f"it reads {name}, which is no partition of the timer topics"
        if mark is None and resume.batch_id > 0:
            return f"it has read {name}, of which the engine knows nothing"
        if mark is not None and offset > mark:
            return f"it goes on at offset {offset} of {name}, the engine at {mark}"
    missing = topics - {topic for topic, _ in resume.offsets}
    if missing:
        return f"it does not read {', '.join(sorted(missing))}"
    return None
