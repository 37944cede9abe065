"""`duewheel recover --from-mirror`: writes the timers that a lost cluster had not delivered to the
timer topics of this one.

    1. reads the mirrored receipts, and dead letters: the timers that have left (evidence.py)
    2. reads the mirrored timer topics, one partition at a time, and decides (decisions.py); memory
       holds the columns of one partition
    3. reads them again, and sends the records of those that wait as `import` sends a file: each
       once, over kills, with its position in the state topic (file_import/exactly_once.py)

A later run needs the same lines, whose digest is in the position. So the first transaction fixes
the ends of the copied topics, and records that are copied afterwards are named and not taken: a
cancel or a receipt could be of a timer that is already written.

Anyone may write to a timer topic. So a record of one topic that cannot be decided or written delays
those of no other topic: timers whose due time is not known exactly are delivered, records that
ingest would reject are left out, and only the owner's word about one topic leaves its timers out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np

from duewheel import factory
from duewheel.api.file_import import FileImported
from duewheel.api.recovery import MirrorRecovered
from duewheel.api.requests import TimerFields
from duewheel.clock import Clock
from duewheel.config.settings import Settings
from duewheel.errors import ConfigError
from duewheel.kafka.log.reader import LogReader
from duewheel.kafka.topics.topic_reader import TopicReader
from duewheel.ops.changes.acceptance import require_in_force
from duewheel.ops.file_import.exactly_once import Choice, import_lines, sent_position
from duewheel.ops.recovery.decisions import RecordState, decide
from duewheel.ops.recovery.evidence import NOTHING, Evidence, EvidenceReader, records_in
from duewheel.ops.recovery.mirrored_lines import LINE_BYTES_MAX, Lines, Waiting
from duewheel.ops.recovery.mirrored_rows import MirroredRows, rows_of
from duewheel.ops.shard.present_files import newest_progress
from duewheel.osutil.terminal import Advanced, unseen
from duewheel.schemas.arrays import Bool, Int64
from duewheel.schemas.batches import NEVER, NO_KEY, OffsetRanges, TopicPartition
from duewheel.schemas.partition_names import partition_name

NAME_PREFIX = "from-mirror."  # of the name under which the position is kept, as an import's
_STAMPED = "message.timestamp.type"
_OF_IMPORT = {*MirrorRecovered.model_fields}  # those that the import fills in, among them
_CHANGED = (
    "{lines} timers are read, which this call would not begin with: repeat the options of the "
    "first call. If these are the same, copied topics were made again or have lost records"
)


@dataclass
class _MirrorTally:
    """The counts and timers of a mirror."""

    waiting: list[Waiting] = field(default_factory=list)
    states: Counter[RecordState] = field(default_factory=Counter)
    left_out: Counter[str] = field(default_factory=Counter)
    records: int = 0
    unclear: int = 0
    assumed: int = 0
    windows: int = 0
    undecided: set[str] = field(default_factory=set)  # timer topics
    newest_ms: int | None = None  # timestamp of a record


def recover(
    settings: Settings,
    clock: Clock,
    prefix: str,
    delivered_before_ms: Mapping[str, int] = MappingProxyType({}),
    *,
    dry_run: bool = False,
    advanced: Advanced = unseen,
) -> MirrorRecovered:
    """Writes the timers that have not left the lost cluster. `prefix` comes before the names of its
    topics. `delivered_before_ms` says of some timer topics until when timers count as delivered
    that no receipt decides. `advanced` gets the timers that are read, after each chunk.

    Raises:
        ConfigError: a mirrored topic is missing, read by this shard, or has another number of
            partitions; no receipt decides some timers of a topic that `delivered_before_ms` lacks;
            or the mirror is another one than in an earlier run; or as `require_in_force`, before
            the mirror is read.
        KafkaUnavailable: no answer in time.
        PublishDoubt: a transaction's outcome is unknown. A new run reads it.
    """
    require_in_force(settings, newest_progress(settings))
    with factory.kafka_admin(settings) as admin:
        partitions = _lost_partitions(settings, prefix, admin)
        evidence = EvidenceReader([partition for partition, _ in partitions])
        sources = _sources(settings, prefix, evidence, admin)
    clients = factory.kafka_clients(settings, "consumer")
    name = f"{NAME_PREFIX}{prefix}"
    ends = sent_position(settings, clock, name, dry_run=dry_run).ends
    topics = {f"{prefix}{topic}" for (topic, _), _ in partitions}
    with LogReader(clients, sorted(topics.union(sources))) as reader:
        bounds = reader.bounds(committed=True)
        ends = ends or {p: end for p, (_, end) in sorted(bounds.items())}
        ranges = {p: (first, min(end, ends.get(p, 0))) for p, (first, end) in bounds.items()}
        for topic, add in sources.items():
            add(reader, {p: each for p, each in ranges.items() if p[0] == topic})
        found = _find(settings, prefix, partitions, evidence, delivered_before_ms, reader, ranges)
        lines = Lines(reader, found.waiting)
        choice = Choice(
            name,
            dry_run=dry_run,
            skip_refused=True,
            line_bytes_max=LINE_BYTES_MAX,
            otherwise=_CHANGED,
            ends=ends,
            advanced=advanced,
        )
        sent = import_lines(settings, clock, lines, TimerFields(), choice)
        not_taken = _not_taken(reader, ends)
    return _result(sent, found, not_taken, evidence.newest_ms)


def _result(
    sent: FileImported,
    tally: _MirrorTally,
    not_taken: dict[str, int],
    newest_receipt_ms: int | None,
) -> MirrorRecovered:
    return MirrorRecovered(
        **sent.model_dump(include=_OF_IMPORT),
        records=tally.records,
        delivered=tally.states[RecordState.LEFT],
        stopped=tally.states[RecordState.CANCELLED],
        kept_out=tally.states[RecordState.KEPT_OUT],
        copied=tally.states[RecordState.COPIED],
        assumed_delivered=tally.assumed,
        unclear_cancels=tally.unclear,
        unclear_windows=tally.windows,
        left_out=dict(+tally.left_out),
        not_taken=not_taken,
        newest_record_ms=tally.newest_ms,
        newest_receipt_ms=newest_receipt_ms,
    )


def _lost_partitions(
    settings: Settings, prefix: str, topics: TopicReader
) -> list[tuple[TopicPartition, int]]:
    """The timer partitions of the lost cluster, and the number of them in their topic.

    Raises:
        ConfigError: one of the timer topics has no mirror, or one from which nothing can be read,
            or that has another number of partitions.
    """
    mirrors = {
        name: name.removeprefix(prefix)
        for name in topics.topic_names()
        if name.startswith(prefix) and name.removeprefix(prefix) in settings.timer_topics
    }
    configs = topics.topic_settings(list(mirrors))
    counts = topics.partition_counts([*mirrors, *mirrors.values()])
    if missing := sorted(set(settings.timer.topics).difference(mirrors.values())):
        names = ", ".join(f"{prefix}{topic}" for topic in missing)
        raise ConfigError(
            f"{names}: no such topic, so {', '.join(missing)} has no mirror here: copy it, or take "
            "it out of timer.topics"
        )
    for name, topic in sorted(mirrors.items()):
        _require_usable(settings, name, configs.get(name, {}))
        if (here := counts.get(topic, counts[name])) != counts[name]:
            raise ConfigError(
                f"{topic} has {here} partitions, {name} {counts[name]}: a cancel could look for "
                "its timer in another one. kafka-topics.sh --alter adds some; to have fewer, make "
                "the topic again before `run`"
            )
    numbered = sorted((topic, name) for name, topic in mirrors.items())
    return [((topic, n), counts[name]) for topic, name in numbered for n in range(counts[name])]


def _require_usable(settings: Settings, name: str, config: Mapping[str, str]) -> None:
    """Refuses a mirror that the shard would read, or whose records lack their own times."""
    if name in settings.timer_topics:
        raise ConfigError(
            f"{name} is a timer topic here: this shard would read the mirror. Take it out of "
            "timer.topics"
        )
    if config.get(_STAMPED) == "LogAppendTime":
        why = f"{_STAMPED}=LogAppendTime: the times of its records are the mirror's own"
        raise ConfigError(
            f"{name} has {why}, so due times are not known: copy it again with CreateTime"
        )


def _sources(
    settings: Settings, prefix: str, evidence: EvidenceReader, topics: TopicReader
) -> dict[str, Callable[[LogReader, OffsetRanges], None]]:
    """The mirrored topics that show which timers have left, and how the evidence takes each."""
    wanted = {f"{prefix}{settings.dead_letter_topic}": evidence.add_dead_letters}
    topic = settings.timer.receipts_topic
    receipts = "" if topic is None else f"{prefix}{topic}"
    if receipts:
        wanted[receipts] = evidence.add_receipts
    present = {n: each.config for n, each in topics.topics(list(wanted)).items() if each.exists}
    if receipts not in present or "compact" in present[receipts].get("cleanup.policy", ""):
        evidence.distrust_receipts()  # compaction deletes earlier ones of an id
    return {name: add for name, add in wanted.items() if name in present}


def _not_taken(reader: LogReader, ends: Mapping[TopicPartition, int]) -> dict[str, int]:
    """Of the partitions with these ends, the first records that were copied later."""
    bounds = reader.bounds(committed=True)
    later = {p: (max(first, ends.get(p, 0)), end) for p, (first, end) in bounds.items()}
    firsts: dict[str, int] = {}
    for records in records_in(reader, later):
        numbers, rows = np.unique(records.partition, return_index=True)  # the first row of each
        for number, offset in zip(numbers.tolist(), records.offset[rows].tolist(), strict=True):
            firsts.setdefault(partition_name(records.partitions[number]), offset)
    return firsts


def _find(
    settings: Settings,
    prefix: str,
    partitions: Sequence[tuple[TopicPartition, int]],
    evidence: EvidenceReader,
    delivered_before_ms: Mapping[str, int],
    reader: LogReader,
    ranges: OffsetRanges,
) -> _MirrorTally:
    """Decides about all partitions, before anything is written.

    Raises:
        ConfigError: no receipt decides some timers of a topic that `delivered_before_ms` lacks.
    """
    found, left = _MirrorTally(), evidence.by_partition()
    contract, without = factory.contract(settings), settings.by_topic("receipts")
    for number, (partition, count) in enumerate(partitions):
        topic, index = partition
        mirror = (f"{prefix}{topic}", index)
        parts = records_in(reader, {mirror: ranges[mirror]})
        rows = MirroredRows.joined(
            rows_of(each, partition, contract, found.left_out) for each in parts
        )
        found.records += len(rows)
        if len(rows):
            newest_ms = int(rows.timestamp_ms.max())
            found.newest_ms = max(newest_ms, found.newest_ms or newest_ms)
        rows = rows.without_repeats()
        begins_ms = np.full(1, NEVER) if topic in without else evidence.begins_ms
        before_ms = delivered_before_ms.get(topic)
        at = _decide_partition(found, topic, rows, left.get(number, NOTHING), begins_ms, before_ms)
        columns = rows.offset[at], rows.due_ms[at]
        found.waiting.append(Waiting(mirror, topic, count, ranges[mirror], *columns))
    if found.undecided:
        raise ConfigError(
            f"no receipt decides some timers of {', '.join(sorted(found.undecided))}: none are "
            "written or copied, or retention has deleted those of their time. Name the instant of "
            "the loss with --delivered-before, for each topic: what was due before it counts as "
            "delivered and is left out"
        )
    return found


def _decide_partition(
    tally: _MirrorTally,
    topic: str,
    rows: MirroredRows,
    evidence: Evidence,
    begins_ms: Int64,
    before_ms: int | None,
) -> Int64:
    """Counts the rows by their end; returns those that wait.

    Args:
        begins_ms: as in the evidence.
        before_ms: a timer that may lack its receipt counts as delivered if it was due before; None:
            nothing decides it.
    """
    states, unclear = decide(rows, evidence)
    tally.unclear += unclear
    tally.states.update({state: int((states == state).sum()) for state in RecordState})
    waiting = states == RecordState.WAITING
    undecided = waiting & _may_lack_receipt(rows, begins_ms)
    if before_ms is not None:
        assumed = undecided & (rows.due_ms < before_ms)
        tally.assumed += int(assumed.sum())
        waiting &= ~assumed
    elif undecided.any():
        tally.undecided.add(topic)
    tally.windows += int((waiting & rows.unclear).sum())
    return np.flatnonzero(waiting)


def _may_lack_receipt(rows: MirroredRows, begins_ms: Int64) -> Bool:
    """Which timers can have left before the receipts begin."""
    own_ms = begins_ms[rows.id_hash % len(begins_ms)]
    own_ms = np.where(rows.id_hash == NO_KEY, begins_ms.max(), own_ms)  # it may be in any partition
    # None leaves before its record is written, however early it was due.
    return np.less(np.maximum(rows.due_ms, rows.timestamp_ms), own_ms)
