"""`duewheel audit`: validates a range of the timer topics with Great Expectations.

    1. determines the range: committed records of this shard's partitions, as far as its settings
       epochs go back; evenly spread chunks of it if it is longer than `audit.rows_max`
    2. reads one chunk after the other, and validates its parts (validation.py)
    3. checks the operator's own suites on the timers of their topics (topic_suites.py)
    4. stores the results in a project of Great Expectations, which makes Data Docs of them
       (data_docs.py); writes a result for programs, and metrics (history.py)

An audit is a process of its own, beside those of the shard or on another host. It only reads, takes
no lock of the shard and runs at low priority. Findings are disagreements, and critical expectations
across rows, or of the operator, that fail. A rejected message is no finding. A failure discards the
whole audit.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from itertools import chain
from typing import Any

import structlog

from duewheel import factory
from duewheel.api.audit import (
    AuditResult,
    AuditSummary,
    Disagreements,
    EpochResults,
    SummedAudit,
)
from duewheel.audit import data_docs
from duewheel.audit import metrics as audit_metrics
from duewheel.audit.expectations import GreatExpectations, Tally
from duewheel.audit.history import AuditHistory, project_folder
from duewheel.audit.range import offsets_in, ranges, reached, split_range
from duewheel.audit.topic_suites import TopicSuites
from duewheel.audit.validation import AuditValidator
from duewheel.checkpoints.commit_and_close_pages import Marks
from duewheel.checkpoints.config_epochs import Epochs
from duewheel.checkpoints.progress import Progress
from duewheel.checkpoints.taken_topics import TakenTopics
from duewheel.config.range_ends import Bound
from duewheel.config.settings import Settings
from duewheel.config.values import as_millis
from duewheel.deadline import Deadline
from duewheel.errors import ConfigError, DuewheelError
from duewheel.kafka import shard_settings
from duewheel.kafka.log.columns import committed_records
from duewheel.kafka.log.connection import STALLED_S
from duewheel.kafka.log.reader import LogReader
from duewheel.kafka.topics.admin import KafkaAdmin
from duewheel.kafka.topics.discovery import discover, require_some
from duewheel.osutil.signals import stop_signals
from duewheel.osutil.terminal import Steps, steps
from duewheel.registry.values import registry_values
from duewheel.schemas.batches import OffsetRanges, TopicPartition
from duewheel.schemas.partition_names import by_name, partition_named
from duewheel.streaming.epoch_parser import contracts

LAST = "last"  # as `--from`: the end of the last gapless audit

_HOUR_MS = 3_600_000
_NICE = 10
_PART_BYTES = 8 << 20  # read and validated at a time

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Wanted:
    """The topics and the range to audit."""

    topics: Sequence[str] = ()  # some of the timer topics; all if empty
    since: str | None = None  # the first offset or time, or LAST; None: an hour ago
    until: str | None = None  # the exclusive end; None: the end of the committed records


def run_audit(settings: Settings, wanted: Wanted) -> SummedAudit:
    """Audits a range.

    Raises:
        ConfigError: a topic, an end of the range or a setting of audits cannot be used.
        Locked: another audit is running.
        KafkaUnavailable: the brokers do not answer.
    """
    project, history = project_folder(settings), AuditHistory(settings.audit_dir)
    os.nice(_NICE)
    if not settings.audit.context:  # there the operator's own mask decides
        os.umask(0o077)
    own = _topic_suites(settings)
    with history.locked(), stop_signals() as stopping, steps("reading the progress") as step:
        clock = factory.StoppableClock(stopping)
        begun_ms, audited = clock.now_ms(), _audited(history)
        progress = _progress(settings, clock)
        # Without progress the shard has no epoch yet: validate by the one that it would begin with.
        epochs = progress.epochs if progress else Epochs.first(factory.slot_values(settings))
        with factory.kafka_admin(settings, stopping=stopping) as admin:
            topics = _topics(settings, admin, wanted, progress)
            starts, ends = _range(settings, admin, topics, wanted, begun_ms, audited)
        starts = _validated_starts(starts, ends, epochs)
        between = ranges(starts, ends)
        chunks = split_range(between, settings.audit.rows_max)
        message_contracts = contracts(epochs, settings.dead_letter_topic)
        step.begin("starting Great Expectations")
        library = GreatExpectations(project)
        validator = AuditValidator(epochs, message_contracts, library, own)
        if chunks:
            client = factory.kafka_clients(settings, "consumer")
            with closing(
                LogReader(client, topics, partial(Deadline, STALLED_S, stopping))
            ) as reader:
                _take(validator, reader, chunks, stopping.is_set, step)
        step.begin("comparing rows, writing Data Docs")
        audit = _id(begun_ms)
        by_topic = own.check(library)
        run = data_docs.run_of(audit, begun_ms)
        across = _keep(settings, library, validator, by_topic, run)
        ended_ms = clock.now_ms()
        rows_suite = [tally.result() for tally in across]
        topic_suites = {
            topic: [tally.result() for tally in totals] for topic, totals in by_topic.items()
        }
        every = [*rows_suite, *chain.from_iterable(topic_suites.values())]
        bad = [each for each in every if not each.success and each.severity == "critical"]
        disagreements = validator.disagreements
        result = AuditResult(
            id=audit,
            shard=settings.shard.index,
            started_ms=begun_ms,
            ended_ms=ended_ms,
            took_s=(ended_ms - begun_ms) / 1000,
            ranges={name: list(both) for name, both in by_name(between).items()},
            audited=by_name(reached(audited, starts, ends)),
            skipped_offsets=offsets_in(between) - sum(map(offsets_in, chunks)),
            ok=not disagreements.count and not bad,
            rows=validator.rows,
            rejected=dict(validator.rejected),
            disagreements=Disagreements(count=disagreements.count, first=disagreements.first),
            rules_suite=[
                EpochResults(epoch=number, expectations=[tally.result() for tally in totals])
                for number, totals in sorted(validator.rules.items())
            ],
            rows_suite=rows_suite,
            topic_suites=topic_suites,
        )
        history.add(result, audit_metrics.text(result))
        return SummedAudit(**dict(result), summary=_summary(result, library))


def _topic_suites(settings: Settings) -> TopicSuites:
    decoded = settings.by_topic("value_schema")
    return TopicSuites(settings.by_topic("suite"), registry_values(settings), decoded)


def _parameters(settings: Settings) -> dict[str, Any]:
    """Returns the parameters of the suite that compares rows with each other."""
    return {
        "rows_min": settings.audit.rows_min,
        "rejected_max": settings.audit.rejected_max,
        "timestamp_step_min_ms": -as_millis(settings.timer.margin),
    }


# ---- the range ----------------------------------------------------------------------------------


def _progress(settings: Settings, clock: factory.StoppableClock) -> Progress | None:
    with closing(factory.progress_reader(settings, clock)) as reader:
        seen = reader.newest()
    return seen.progress if seen else None


def _topics(
    settings: Settings, admin: KafkaAdmin, wanted: Wanted, progress: Progress | None
) -> Sequence[str]:
    """Returns the timer topics to audit."""
    taken = None if progress is None else TakenTopics.of_progress(progress)
    timer_topics = require_some(settings, discover(settings, admin, taken))
    strangers = set(wanted.topics) - set(timer_topics)
    if strangers:
        names = ", ".join(sorted(strangers))
        raise ConfigError(f"--timer-topic {names}: no timer topic that is read")
    return wanted.topics or timer_topics


def _range(
    settings: Settings,
    admin: KafkaAdmin,
    topics: Sequence[str],
    wanted: Wanted,
    now_ms: int,
    audited: Marks,
) -> tuple[Marks, Marks]:
    """Returns the first offset and the end of every partition."""
    ends: Marks = shard_settings.own(settings, admin.ends(topics, committed=True))
    missing = set(topics) - {topic for topic, _ in ends}
    if missing:
        raise ConfigError(f"timer topic {', '.join(sorted(missing))} does not exist")

    def at_time(time_ms: int) -> Marks:
        return admin.offsets_at(topics, time_ms)

    since = wanted.since
    if since is None or since == LAST:
        firsts = Bound(time_ms=now_ms - _HOUR_MS).offsets(ends, at_time)
        if since == LAST:
            go_on = {p: o for p, o in audited.items() if o <= ends.get(p, -1)}
            firsts = {p: go_on.get(p, first) for p, first in firsts.items()}
    else:
        firsts = Bound.parse("--from", since).firsts(ends, at_time)
    if wanted.until is not None:
        ends = Bound.parse("--to", wanted.until).offsets(ends, at_time)
    log_starts = admin.starts(topics)
    return {p: max(first, log_starts.get(p, 0)) for p, first in firsts.items()}, ends


def _validated_starts(starts: Marks, ends: Marks, epochs: Epochs) -> Marks:
    """Returns the first offsets at or above `starts` that have a settings epoch."""
    validated = {p: max(start, epochs.begins_at(p)) for p, start in starts.items()}
    skipped = sum(min(validated[p], end) - min(starts[p], end) for p, end in ends.items())
    if skipped:
        log.warning("no settings epoch is left for these offsets: not audited", offsets=skipped)
    return validated


def _audited(history: AuditHistory) -> dict[TopicPartition, int]:
    """Returns the end of the earlier audits, by partition."""
    newest = history.newest()
    named = {} if newest is None else newest.audited
    return {partition_named(name): offset for name, offset in named.items()}


# ---- reading and keeping ------------------------------------------------------------------------


def _take(
    validator: AuditValidator,
    reader: LogReader,
    chunks: Sequence[OffsetRanges],
    stopped: Callable[[], bool],
    step: Steps,
) -> None:
    begun_s = time.monotonic()
    step.begin("validating offsets", sum(map(offsets_in, chunks)))
    for chunk in chunks:
        for part in reader.read(chunk, _PART_BYTES):
            if stopped():
                raise DuewheelError("the audit was stopped: it has no result")
            for records in committed_records(part, chunk):
                validator.take(records)
        step.advance(offsets_in(chunk))
    log.info("range validated", rows=validator.rows, took_s=round(time.monotonic() - begun_s, 1))


def _keep(
    settings: Settings,
    library: GreatExpectations,
    validator: AuditValidator,
    by_topic: Mapping[str, Sequence[Tally]],
    run: Any,
) -> list[Tally]:
    """Stores the results in the project, and runs its checkpoint across the rows."""
    name = f"{settings.app.id}-{settings.shard.index}".replace(".", "-")
    rules, rows, topics = f"{name}-rules", f"{name}-rows", f"{name}-topics"
    by_epoch = {f"epoch-{number}": totals for number, totals in validator.rules.items()}
    data_docs.keep(library, rules, run, by_epoch)
    data_docs.keep(library, topics, run, by_topic)
    data_docs.remove_old(library, (rules, rows, topics), run, settings.audit.keep)
    check = partial(library.run_checkpoint, rows, run)
    return validator.across_rows(_parameters(settings), check)


def _summary(result: AuditResult, library: GreatExpectations) -> AuditSummary:
    failed, count = result.failed, result.disagreements.count
    if not result.ok:
        log.warning("audit with findings", disagreements=count, failed=failed)
    return AuditSummary(
        id=result.id,
        ok=result.ok,
        rows=result.rows,
        skipped_offsets=result.skipped_offsets,
        rejected=result.rejected,
        disagreements=count,
        failed=", ".join(failed) or None,
        docs=", ".join(data_docs.sites(library)) or None,
    )


def _id(time_ms: int) -> str:
    """Makes a name that sorts by time."""
    time = datetime.fromtimestamp(time_ms / 1000, UTC)
    return f"{time:%Y%m%dT%H%M%S}.{time_ms % 1000:03}Z"
