"""Decides which timer topics are read: the listed ones, and those that match the pattern.

A listed topic that is missing, or has wrong settings, keeps both processes from starting. A topic
that only matches the pattern never does:

    right settings                 read, from its beginning if it is new
    beyond the shard's room        left out; a listed one is refused
                                   (checkpoints/partition_limit.py)
    wrong settings                 left out until corrected; but read if timers were taken from it
                                   before, as its pending messages would be lost otherwise
    deleted                        left out; timers taken from it are delivered. If the files were
                                   lost and its messages must be read again, ingest waits until an
                                   operator accepts that loss
    recreated under the same name  left out until the loss is accepted: the offsets that were taken
                                   are those of the former topic
    duewheel's own, internal ones  never match

The log and `status` show every topic that is left out or faulty, with its reason. Of the topics
that match, a standby reads those that its owner has taken messages from.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from duewheel.checkpoints.commit_and_close_pages import Marks
from duewheel.checkpoints.partition_limit import ROOM_BYTES, beyond_room
from duewheel.checkpoints.progress import Progress
from duewheel.checkpoints.recovery_decision import Local
from duewheel.checkpoints.state_file import State
from duewheel.checkpoints.timer_topics_file import TopicSet
from duewheel.config.settings import Settings
from duewheel.errors import ConfigError, CorruptFile
from duewheel.kafka.shard_settings import own, own_counts
from duewheel.kafka.topics.admin import KafkaAdmin
from duewheel.kafka.topics.requirements import TopicFinding, described, remedy_command
from duewheel.schemas.batches import is_retired


@dataclass(frozen=True, slots=True)
class TakenTopics:
    """The timer topics that a shard has taken messages from."""

    # The number of partitions by topic, of deleted and recreated topics, too: these have other
    # names than the topics in Kafka (schemas/batches.py).
    partitions: Mapping[str, int] = field(default_factory=dict)
    ids: Mapping[str, str] = field(default_factory=dict)  # Kafka's ids of them at that time
    only: bool = False  # topics that match and are not among them are not read

    @property
    def topics(self) -> set[str]:
        """Their names in Kafka."""
        return {topic for topic in self.partitions if not is_retired(topic)}

    @classmethod
    def of_progress(cls, progress: Progress) -> TakenTopics:
        """From the progress alone."""
        return cls(Counter(topic for topic, _ in progress.partitions), progress.topic_ids)

    @classmethod
    def of(cls, state: State) -> TakenTopics:
        """From the data directory: its marks, and its copy of the progress."""
        mirror = state.mirror()
        progress = None if mirror is None else mirror.progress
        try:
            commit = state.commit()
        except CorruptFile:  # a recovery follows
            commit = Local.absent().commit
        partitions = {*commit.marks, *(progress.partitions if progress else ())}
        ids = {**(progress.topic_ids if progress else {}), **commit.topic_ids}
        return cls(Counter(topic for topic, _ in partitions), ids, state.standby)


def discover(
    settings: Settings,
    admin: KafkaAdmin,
    taken: TakenTopics | None = None,
    room_bytes: int = ROOM_BYTES,
) -> TopicSet:
    """Discovers the present timer topics in Kafka; see the module's head.

    Raises:
        ConfigError: a listed topic does not fit into that room.
    """
    taken = taken or TakenTopics()
    listed = settings.timer.topics
    if settings.timer.topics_pattern is None:
        _require_room(listed, _beyond_room(settings, admin, {}, [], room_bytes))
        return TopicSet(tuple(sorted(listed)))
    names = settings.timer_topics
    ids = admin.topic_ids(admin.matching_topics(settings))
    existing = set(ids)
    before = {n for n in taken.topics if n not in listed and names.matches(n)}
    left_out = dict.fromkeys(before - existing, _DELETED)
    if taken.only:
        existing &= before
    recreated = {n for n in existing & taken.ids.keys() if ids[n] != taken.ids[n]}
    left_out |= dict.fromkeys(recreated, _RECREATED)
    faulty = _faulty(settings, admin, sorted(existing - recreated))
    for topic in [n for n, why in faulty.items() if n not in before and why != _UNREADABLE]:
        left_out[topic] = faulty.pop(topic)
    right = sorted(existing - left_out.keys())
    beyond = _beyond_room(settings, admin, taken.partitions, right, room_bytes)
    _require_room(listed, beyond)
    left_out |= {topic: why for topic, why in beyond.items() if topic not in taken.partitions}
    read = sorted({*listed, *existing} - left_out.keys())
    return TopicSet(tuple(read), dict(sorted(left_out.items())), faulty)


def _beyond_room(
    settings: Settings,
    admin: KafkaAdmin,
    taken: Mapping[str, int],
    existing: Sequence[str],
    room_bytes: int,
) -> dict[str, str]:
    """Why topics do not fit: the listed ones come first, then those taken before, then the
    existing ones. Deleted ones keep their place until the loss is accepted: else a client that
    makes topics and deletes them could fill the records without bound.
    """
    listed = sorted(settings.timer.topics)
    mine = own_counts(settings, admin.describe_partitions([*listed, *existing]))
    counts = {**taken, **mine}
    return beyond_room(counts, dict.fromkeys([*listed, *sorted(taken), *existing]), room_bytes)


def _require_room(listed: Iterable[str], beyond: Mapping[str, str]) -> None:
    for topic in sorted(listed):
        if topic in beyond:
            raise ConfigError(f"timer topic {topic}: {beyond[topic]}")


_DELETED = (
    "it was deleted: timers taken from it are delivered, other messages are lost. `duewheel "
    "reconfigure --accept-loss` for each of its partitions lets the shard forget it"
)
_RECREATED = (
    "it was deleted and recreated: the offsets taken are those of the former topic. `duewheel "
    "reconfigure --accept-loss` for each of its partitions lets the shard read it"
)


_UNREADABLE = "its settings cannot be checked: the right DescribeConfigs is missing"


def _faulty(settings: Settings, admin: KafkaAdmin, topics: Sequence[str]) -> dict[str, str]:
    """Returns the problems that a start would refuse or warn of, by topic."""
    found = admin.timer_topic_findings(settings, topics)
    return {
        topic: "; ".join(_sentence(settings, finding) for finding in findings)
        for topic, findings in found.items()
        if findings
    }


def _sentence(settings: Settings, finding: TopicFinding) -> str:
    if finding.state == "unreadable":
        return _UNREADABLE
    remedy = remedy_command(settings.kafka.servers, finding.topic, finding.remedy)
    return f"{described(finding)}: {remedy}"


def require_some(settings: Settings, topic_set: TopicSet) -> Sequence[str]:
    """The topics that are read.

    Raises:
        ConfigError: no timer topic exists.
    """
    if not topic_set.topics:
        wrong = "".join(f"\n  {topic}: {why}" for topic, why in topic_set.left_out.items())
        raise ConfigError(
            f"no readable topic matches timer.topics_pattern = {settings.timer.topics_pattern!r}: "
            f"create one first{wrong}"
        )
    return topic_set.topics


def first_starts(settings: Settings, admin: KafkaAdmin) -> tuple[Marks, bool]:
    """The log starts of the timer partitions of a shard that has taken nothing yet, and whether
    none of them has ever had a record.

    Raises:
        ConfigError: no timer topic exists.
    """
    topics = require_some(settings, discover(settings, admin))
    starts = own(settings, admin.log_start_offsets(topics))
    ends = own(settings, admin.end_offsets(topics))
    return starts, ends == starts and not any(starts.values())
