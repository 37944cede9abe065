"""Decides which timer topics are read: the listed ones, and those that match the pattern.

The owner of one topic must not stop the others, so no topic keeps a shard from starting that has
run before. Only a shard's first start refuses a listed topic that is missing or has wrong settings:
it may be a name misspelled (TopicChecks.require_topics).

    right settings                 read, from its beginning if it is new
    beyond the shard's room        left out (checkpoints/partition_limit.py), also one that has
                                   grown: timers taken from it are delivered
    missing                        left out until it exists
    wrong settings                 left out until corrected; but read if it is listed, or if timers
                                   were taken from it before, as its messages would be lost
    settings that may not be read  read; if it is not listed, it counts as faulty
    deleted                        left out; timers taken from it are delivered. If the files were
                                   lost and its messages must be read again, ingest waits until an
                                   operator accepts that loss
    recreated under the same name  left out until the loss is accepted: the offsets that were taken
                                   are those of the former topic
    duewheel's own, internal ones  never match

The log and `status` show every topic that is left out or faulty, with its reason. A standby reads
the topics that its owner has taken messages from, and the listed ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from duewheel.checkpoints.commit_and_close_pages import Marks
from duewheel.checkpoints.partition_limit import ROOM_BYTES, beyond_room
from duewheel.checkpoints.taken_topics import TakenTopics
from duewheel.checkpoints.timer_topics_file import TopicSet
from duewheel.config.settings import Settings
from duewheel.errors import INIT_MAKES_IT, ConfigError
from duewheel.kafka.shard_settings import own, own_counts
from duewheel.kafka.topics.requirements import TopicFinding, TopicState, described, remedy_command
from duewheel.kafka.topics.topic_checks import TopicChecks

_MISSING = f"it does not exist{INIT_MAKES_IT}"
_DELETED = (
    "it was deleted: timers taken from it are delivered, other messages are lost. `duewheel "
    "reconfigure --accept-loss` for each of its partitions lets the shard forget it"
)
_RECREATED = (
    "it was deleted and recreated: the offsets taken are those of the former topic. `duewheel "
    "reconfigure --accept-loss` for each of its partitions lets the shard read it"
)
_UNREADABLE = "its settings cannot be checked: the right DescribeConfigs is missing"


@dataclass(frozen=True, slots=True)
class TopicDecision:
    """Whether a topic is read; `why`: the reason why it is not, or its fault if it is."""

    is_read: bool
    why: str


def discover(
    settings: Settings,
    admin: TopicChecks,
    taken: TakenTopics | None = None,
    room_bytes: int = ROOM_BYTES,
) -> TopicSet:
    """Discovers the present timer topics in Kafka; see the module's head."""
    taken = taken or TakenTopics()
    ids = admin.topic_ids([*sorted(settings.timer.topics), *admin.matching_topics(settings)])
    before = {name for name in taken.topics if name in settings.timer_topics}
    wanted = before.union(settings.timer.topics)
    topics = sorted(wanted if taken.only else wanted | ids.keys())
    findings = admin.timer_topic_findings(settings, [name for name in topics if name in ids])

    def decide(topic: str) -> TopicDecision:
        if topic not in ids:
            return TopicDecision(is_read=False, why=_DELETED if topic in before else _MISSING)
        if taken.ids.get(topic, ids[topic]) != ids[topic]:
            return TopicDecision(is_read=False, why=_RECREATED)
        if any(each.state is TopicState.UNREADABLE for each in findings[topic]):
            # Of a listed one an operator has chosen this, and each start warns.
            return TopicDecision(
                is_read=True, why="" if topic in settings.timer.topics else _UNREADABLE
            )
        wrong = "; ".join(
            _sentence(settings, topic, each)
            for each in findings[topic]
            if each.state is TopicState.DIFFERS
        )
        return TopicDecision(is_read=not wrong or topic in wanted, why=wrong)

    decisions = {topic: decide(topic) for topic in topics}
    left_out = {topic: each.why for topic, each in decisions.items() if not each.is_read}
    faulty = {topic: each.why for topic, each in decisions.items() if each.is_read and each.why}
    right = [topic for topic in topics if topic not in left_out]
    # Deleted ones keep their place until the loss is accepted: else a client that makes topics and
    # deletes them could fill the records without bound.
    counts = own_counts(settings, admin.partition_counts(right))
    left_out |= beyond_room(counts, taken.partitions, room_bytes, settings.timer.topics)
    read = tuple(topic for topic in right if topic not in left_out)
    return TopicSet(read, dict(sorted(left_out.items())), faulty)


def _sentence(settings: Settings, topic: str, finding: TopicFinding) -> str:
    of_other = "" if finding.topic == topic else f"{finding.topic}: "
    remedy = remedy_command(settings.kafka.servers, finding.topic, finding.remedy)
    return f"{of_other}{described(finding)}: {remedy}"


def require_some(settings: Settings, topic_set: TopicSet) -> Sequence[str]:
    """The topics that are read.

    Raises:
        ConfigError: no timer topic exists.
    """
    if not topic_set.topics:
        wrong = "".join(f"\n  {topic}: {why}" for topic, why in topic_set.left_out.items())
        pattern = settings.timer.topics_pattern
        named = "" if pattern is None else f", and none matches timer.topics_pattern = {pattern!r}"
        raise ConfigError(f"no timer topic can be read{named}: create one first{wrong}")
    return topic_set.topics


def first_starts(settings: Settings, admin: TopicChecks) -> tuple[Marks, bool]:
    """The log starts of the timer partitions of a shard that has taken nothing yet, and whether
    none of them has ever had a record.

    Raises:
        ConfigError: no timer topic exists.
    """
    topics = require_some(settings, discover(settings, admin))
    starts = own(settings, admin.starts(topics))
    ends = own(settings, admin.ends(topics, committed=False))
    return starts, ends == starts and not any(starts.values())
