"""Which timer topics are read: those that are listed, and those that the pattern finds in Kafka.

A listed topic that is missing, or not as it must be, keeps both processes from starting. One that
only matches the pattern keeps nobody from starting:

    right                          it is read, from its beginning if it is new
    beyond the shard's room        left out, or refused where it is listed
                                   (checkpoints/partition_limit.py)
    not as it must be              left out until it is right; but if timers were taken from it
                                   before, it is read on: what it holds would be lost for sure
    gone                           left out; what was taken from it is delivered. Only where the
                                   files were lost, and messages of it are to be read again, does
                                   ingest wait until that loss is accepted: nobody else may give up
                                   what was accepted
    recreated under the same name  left out until the loss is accepted: its offsets are not those
                                   that were taken
    duewheel's own, internal ones  never match

Whatever is left out or faulty is told with its reason, in the log and by `status`. A standby reads
of the topics that match those whose messages its owner has taken: what it thinks of the others does
not matter before it is the owner.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from duewheel.checkpoints.partition_limit import beyond_room
from duewheel.checkpoints.recovery_decision import Local
from duewheel.checkpoints.state_file import State
from duewheel.checkpoints.topic_set import TopicSet
from duewheel.config.settings import Settings
from duewheel.errors import ConfigError, CorruptFile
from duewheel.kafka.admin import KafkaAdmin
from duewheel.kafka.shard_settings import own_counts
from duewheel.kafka.topic_specs import TopicFinding, described, remedy_command
from duewheel.schemas.batches import is_retired


@dataclass(frozen=True, slots=True)
class TakenTopics:
    """What a shard knows of timer topics.

    Attributes:
        topics: those of which something was taken.
        ids: what Kafka called them then.
        only: whether to read no others that match.
    """

    topics: frozenset[str] = frozenset()
    ids: Mapping[str, str] = field(default_factory=dict)
    only: bool = False

    @classmethod
    def of(cls, state: State) -> TakenTopics:
        """From the data directory: its marks, and its copy of the progress."""
        mirror = state.mirror()
        progress = None if mirror is None else mirror.progress
        try:
            commit = state.commit()
        except CorruptFile:  # a recovery sees to it
            commit = Local.absent().commit
        followed = progress.topics if progress else set()
        ids = {**(progress.topic_ids if progress else {}), **commit.topic_ids}
        own = {topic for topic, _ in commit.marks if not is_retired(topic)}
        return cls(frozenset(followed | own), ids, only=state.standby)


def discover(settings: Settings, admin: KafkaAdmin, taken: TakenTopics | None = None) -> TopicSet:
    """The timer topics as Kafka has them now; see the module's head.

    Args:
        settings: name them.
        admin: asks.
        taken: what the shard has taken before; None: nothing.

    Raises:
        KafkaUnavailable: no answer in time.
    """
    taken = taken or TakenTopics()
    listed = settings.timer.topics
    if settings.timer.topics_pattern is None:
        _beyond_room(settings, admin, [], [])
        return TopicSet(tuple(sorted(listed)))
    names = settings.timer_topics
    ids = admin.topic_ids(admin.matching_topics(settings))
    existing = set(ids)
    before = {n for n in taken.topics if n not in listed and names.matches(n)}
    left_out = dict.fromkeys(before - existing, _DELETED)
    if taken.only:
        existing &= before
    recreated = {n for n in existing & taken.ids.keys() if str(ids[n]) != taken.ids[n]}
    left_out |= dict.fromkeys(recreated, _RECREATED)
    faulty = _faulty(settings, admin, sorted(existing - recreated))
    for topic in [n for n, why in faulty.items() if n not in before and why != _UNREADABLE]:
        left_out[topic] = faulty.pop(topic)
    right = sorted(existing - left_out.keys())
    left_out |= _beyond_room(settings, admin, sorted(before & existing), right)
    read = sorted({*listed, *existing} - left_out.keys())
    return TopicSet(tuple(read), dict(sorted(left_out.items())), faulty)


def _beyond_room(
    settings: Settings, admin: KafkaAdmin, before: Sequence[str], existing: Sequence[str]
) -> dict[str, str]:
    """Why topics that match do not fit beside the listed ones and those of before.

    Raises:
        ConfigError: a listed one does not fit.
    """
    listed = sorted(settings.timer.topics)
    mine = own_counts(settings, admin.describe_partitions([*listed, *existing]))
    beyond = beyond_room(mine, dict.fromkeys([*listed, *before, *existing]))
    for topic in listed:
        if topic in beyond:
            raise ConfigError(f"timer topic {topic}: {beyond[topic]}")
    return {topic: why for topic, why in beyond.items() if topic not in before}


_DELETED = (
    "it is gone: what was taken from it is delivered, what was not taken is lost. `duewheel "
    "reconfigure --accept-loss` for each of its partitions lets the shard forget it"
)
_RECREATED = (
    "it was deleted and made anew: offsets in it are not those that were taken. `duewheel "
    "reconfigure --accept-loss` for each of its partitions lets the shard read it"
)


_UNREADABLE = "its settings cannot be checked: the right DescribeConfigs is missing"


def _faulty(settings: Settings, admin: KafkaAdmin, topics: Sequence[str]) -> dict[str, str]:
    """What of these topics the start check would refuse, or warn of, by topic."""
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
        ConfigError: there are none.
    """
    if not topic_set.topics:
        wrong = "".join(f"\n  {topic}: {why}" for topic, why in topic_set.left_out.items())
        raise ConfigError(
            f"no topic matches timer.topics_pattern = {settings.timer.topics_pattern!r} that could "
            f"be read: create one first{wrong}"
        )
    return topic_set.topics


def timer_topics(settings: Settings, admin: KafkaAdmin) -> Sequence[str]:
    """The timer topics of a shard that has taken nothing yet.

    Raises:
        ConfigError: there are none.
        KafkaUnavailable: no answer in time.
    """
    return require_some(settings, discover(settings, admin))
