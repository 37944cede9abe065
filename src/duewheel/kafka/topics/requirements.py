"""The settings that each of duewheel's topics must have, and the texts for those that differ.

    timer topic     LogAppendTime, or timestamps that the broker bounds to the margin; retention of
                    at least roll window + margin + longest outage; no limit by size, no
                    compaction: after a loss all of it may be read again
    dead letters    takes the largest timer message with its error headers; unlimited retention.
                    Like the state topic not compressed by the broker: a reader would need a
                    library for the codec
    state topic     a partition for each shard, compacted only, LogAppendTime. Small segments keep
                    the uncompacted part small; with others some starts and commands take longer
    reply topic     optional; must take as large messages as the dead-letter topic: a reply has the
                    headers of its request; retention of a day
    receipts        optional; made for a week, with the brokers' timestamps. An existing one may
                    be compacted, or have any retention: both are its reader's decision
    changes         as receipts; made with unlimited retention, and one partition: so it has one
                    order

Missing topics are created with these settings; existing ones are only compared. An advisory setting
only costs time, and never keeps a process from starting: some hosted brokers fix the segment size.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Literal

from duewheel.checkpoints.progress import RECORD_BYTES_MAX
from duewheel.config.durations import format_duration_ms
from duewheel.config.settings import Settings
from duewheel.config.values import as_millis

Relation = Literal["=", ">=", "<="]

ERROR_HEADERS_BYTES_MAX = 4 * 1024
_UNLIMITED = "-1"
_BYTES_MAX = "max.message.bytes"
_ANSWERS_KEPT_MS = 24 * 60 * 60 * 1000
_RECEIPTS_KEPT_MS = 7 * _ANSWERS_KEPT_MS
_STATE_MESSAGE_BYTES = RECORD_BYTES_MAX + 4096  # 8 MiB, the most that some hosted brokers take
FRAME_BYTES = 1024  # at most, of a batch with one record of the state topic, beside its value


@dataclass(frozen=True, slots=True)
class Requirement:
    """One setting of a topic: its value at creation, and the accepted values of an existing one.

    `relation` compares with `bound`; as a retention, -1 (unlimited) exceeds every bound. The values
    `also` are accepted like `value`. An `advisory` setting that differs only costs time.
    """

    setting: str
    value: str
    reason: str
    relation: Relation = "="
    bound: float = 0
    advisory: bool = False
    also: tuple[str, ...] = ()

    def holds(self, actual: str) -> bool:
        """Returns whether an existing topic's value is accepted."""
        if self.relation == "=":
            return actual == self.value or actual in self.also
        number = float(actual)
        if self.relation == "<=":
            return number <= self.bound
        return actual == _UNLIMITED or number >= self.bound

    @property
    def wanted(self) -> str:
        """The accepted values, as text."""
        return self.value if self.relation == "=" else f"{self.relation} {self.bound}"


# Keep the uncompacted part of a topic small.
_READ_WHOLE = tuple(
    Requirement(
        setting,
        value,
        "the first start of a shard, `dlq`, `doctor` and `reshard` read all of its uncompacted "
        "part; 1 GiB takes 10 s or more",
        "<=",
        bound,
        advisory=True,
    )
    for setting, value, bound in (
        ("segment.bytes", str(16 << 20), 16 << 20),
        ("segment.ms", "600000", 600_000),
        ("min.cleanable.dirty.ratio", "0.1", 0.5),
    )
)
# The broker stores batches uncompressed, as they were written.
_PLAIN = Requirement(
    "compression.type",
    "uncompressed",
    "the broker compresses each batch, and every start needs a library for its codec",
    advisory=True,
    also=("producer",),
)


@dataclass(frozen=True, slots=True)
class TopicPlan:
    """The requirements on a topic.

    Attributes:
        partitions: how many to create it with; None takes the broker's default.
        partitions_needed: fewer on an existing topic are a difference, and `init` adds them.
        create_time_within_ms: also accept CreateTime, if the broker bounds the timestamps' error
            by this.
    """

    name: str
    requirements: tuple[Requirement, ...] = ()
    partitions: int | None = None
    partitions_needed: bool = False
    create_time_within_ms: int | None = None

    def lacks_partitions(self, partitions: int) -> bool:
        """Whether an existing topic with so many needs more."""
        return self.partitions_needed and partitions < (self.partitions or 0)

    def without_advice(self) -> TopicPlan:
        return replace(self, requirements=tuple(r for r in self.requirements if not r.advisory))


class TopicState(Enum):
    """The state of a topic, or of one of its settings; the values are in the output of `init`."""

    CREATED = "created"  # by `init`
    RIGHT = "found"
    MISSING = "missing"
    DIFFERS = "differs"  # the setting; a start refuses the topic if it is listed
    UNREAD = "unread"  # differs, so that a topic that only matches the pattern is not read if new
    COSTLY = "costly"  # an advisory setting differs
    WITHHELD = "withheld"  # the broker hides the setting
    UNREADABLE = "unreadable"  # no right to read the topic's settings


@dataclass(frozen=True, slots=True)
class TopicFinding:
    """One line about a topic, or about one of its settings.

    Attributes:
        remedy: name=value for kafka-configs.sh; empty if no setting helps.
    """

    topic: str
    state: TopicState
    setting: str = ""
    wanted: str = ""
    actual: str = ""
    reason: str = ""
    remedy: str = ""


def timer_topic_plans(settings: Settings, partitions: int | None = None) -> list[TopicPlan]:
    """The plans of the listed timer topics."""
    return [timer_topic_plan(settings, topic, partitions) for topic in settings.timer.topics]


def timer_topic_plan(settings: Settings, topic: str, partitions: int | None = None) -> TopicPlan:
    """The plan of a timer topic."""
    timer = settings.timer
    margin_ms = as_millis(timer.margin)
    # The sum covers the longest absence from the log of a message that may still be needed.
    parts = {
        "roll_window": as_millis(timer.roll_window),
        "margin": margin_ms,
        "longest_outage": as_millis(timer.longest_outage),
    }
    sum_text = " + ".join(f"{name} {format_duration_ms(ms)}" for name, ms in parts.items())
    requirements = (
        Requirement("cleanup.policy", "delete", "compaction drops timers that share a key"),
        _stamped(
            "delays count from the record's timestamp; CreateTime will do if "
            "message.timestamp.before.max.ms and message.timestamp.after.max.ms are "
            f"{margin_ms} (margin) or less"
        ),
        _at_least("retention.ms", sum(parts.values()), f"that is {sum_text}"),
        Requirement("retention.bytes", _UNLIMITED, "a limit by size drops pending timers"),
    )
    return TopicPlan(topic, requirements, partitions, create_time_within_ms=margin_ms)


def service_plans(
    settings: Settings, timer_configs: Iterable[Mapping[str, str]]
) -> list[TopicPlan]:
    """The plans of the other topics, from the timer topics' readable settings."""
    timer, timer_configs = settings.timer, list(timer_configs)
    plans = [dead_letter_plan(settings, timer_configs), state_plan(settings)]
    requirements: tuple[Requirement, ...]
    if timer.reply_topic is not None:
        requirements = (
            Requirement("cleanup.policy", "delete", "compaction drops answers that share a key"),
            _room(timer_configs, "the answer"),
            _at_least("retention.ms", _ANSWERS_KEPT_MS, "a requester may be offline for a day"),
        )
        plans.append(TopicPlan(timer.reply_topic, requirements))
    if timer.receipts_topic is not None:
        kept = _kept_by_choice(str(_RECEIPTS_KEPT_MS))
        plans.append(TopicPlan(timer.receipts_topic, kept))
    if settings.serve.changes_topic is not None:
        kept = _kept_by_choice(_UNLIMITED)
        plans.append(TopicPlan(settings.serve.changes_topic, kept, partitions=1))
    return plans


def _kept_by_choice(retention_ms: str) -> tuple[Requirement, ...]:
    """The requirements on a topic for other readers, whose retention is their decision."""
    kept = Requirement("cleanup.policy", "delete", "its records are kept for a time")
    return (
        replace(kept, also=("compact", "compact,delete", "delete,compact")),
        replace(_stamped("it gives the broker's time"), also=("CreateTime",)),
        Requirement("retention.ms", retention_ms, "its readers decide", ">=", 0),
    )


def dead_letter_plan(settings: Settings, timer_configs: Iterable[Mapping[str, str]]) -> TopicPlan:
    """The plan of the dead-letter topic, from the timer topics' settings."""
    kept_ms = as_millis(settings.timer.longest_outage)
    requirements = (
        Requirement("cleanup.policy", "delete", "compaction drops dead letters"),
        _room(timer_configs, "the error"),
        Requirement("retention.ms", _UNLIMITED, "that is longest_outage", ">=", kept_ms),
        Requirement("retention.bytes", _UNLIMITED, "a limit by size drops dead letters"),
        _PLAIN,
    )
    return TopicPlan(settings.dead_letter_topic, requirements)


def state_plan(settings: Settings) -> TopicPlan:
    """The plan of the state topic."""
    one_record, needed = "the progress of a shard is one record", RECORD_BYTES_MAX + FRAME_BYTES
    requirements = (
        Requirement("cleanup.policy", "compact", "deletion drops the progress"),
        _stamped("it gives the broker's time"),
        *_READ_WHOLE,
        Requirement(_BYTES_MAX, str(_STATE_MESSAGE_BYTES), one_record, ">=", needed),
        _PLAIN,
    )
    return TopicPlan(settings.state_topic, requirements, settings.shard.count, True)


def room_plans(settings: Settings, timer_config: Mapping[str, str]) -> list[TopicPlan]:
    """The requirements of the messages of one timer topic on the other topics."""
    rooms = {settings.dead_letter_topic: _room([timer_config], "the error")}
    if settings.timer.reply_topic is not None:
        rooms[settings.timer.reply_topic] = _room([timer_config], "the answer")
    return [TopicPlan(topic, (room,)) for topic, room in rooms.items()]


def _room(timer_configs: Iterable[Mapping[str, str]], added: str) -> Requirement:
    """Room for the largest timer message with its added headers."""
    timer_max = max((int(config.get(_BYTES_MAX, 0)) for config in timer_configs), default=0)
    reason = f"that is the timer topics' {timer_max} and {ERROR_HEADERS_BYTES_MAX} for {added}"
    return _at_least(_BYTES_MAX, timer_max + ERROR_HEADERS_BYTES_MAX, reason)


def _at_least(setting: str, least: int, reason: str) -> Requirement:
    return Requirement(setting, str(least), reason, ">=", least)


def _stamped(reason: str) -> Requirement:
    return Requirement("message.timestamp.type", "LogAppendTime", reason)


def compare(
    plan: TopicPlan, config: Mapping[str, str], partitions: int | None = None
) -> list[TopicFinding]:
    """How an existing topic differs from its plan, in its settings and its partitions if they are
    given; one line RIGHT if it does not.
    """
    differences = []
    for r in plan.requirements:
        actual = config.get(r.setting)
        if actual is None:
            state = TopicState.WITHHELD
            hidden = TopicFinding(plan.name, state, r.setting, r.wanted, reason=r.reason)
            differences.append(hidden)
        elif not r.holds(actual) and not _bounded_create_time(plan, r, config):
            state = TopicState.COSTLY if r.advisory else TopicState.DIFFERS
            remedy = f"{r.setting}={r.value}"
            differences.append(
                TopicFinding(plan.name, state, r.setting, r.wanted, actual, r.reason, remedy)
            )
    if partitions is not None and plan.lacks_partitions(partitions):
        wanted, reason = f">= {plan.partitions}", "one for each shard: `duewheel init` adds them"
        differences.append(
            TopicFinding(
                plan.name, TopicState.DIFFERS, "partitions", wanted, str(partitions), reason
            )
        )
    return differences or [TopicFinding(plan.name, TopicState.RIGHT)]


def _bounded_create_time(
    plan: TopicPlan, requirement: Requirement, config: Mapping[str, str]
) -> bool:
    """Whether CreateTime is acceptable: the broker refuses timestamps beyond the bound."""
    if requirement.setting != "message.timestamp.type" or plan.create_time_within_ms is None:
        return False
    allowed = ("message.timestamp.before.max.ms", "message.timestamp.after.max.ms")
    return all(
        name in config and int(config[name]) <= plan.create_time_within_ms for name in allowed
    )


def differences_text(address: str, differences: Iterable[TopicFinding]) -> str:
    """Every difference with its reason and its remedy, a few lines each."""
    lines = ["these topics must be changed first:"]
    for each in differences:
        lines.append(f"  {each.topic}: {described(each)}")
        if each.remedy:
            lines.append(f"    {remedy_command(address, each.topic, each.remedy)}")
    return "\n".join(lines)


def described(each: TopicFinding) -> str:
    """A difference in a sentence without the topic."""
    return f"{each.setting} is {each.actual}, wanted is {each.wanted}: {each.reason}"


def remedy_command(address: str, topic: str, setting: str) -> str:
    """The command that gives a topic a setting, `setting` being name=value."""
    return (
        f"kafka-configs.sh --bootstrap-server {address} --alter --entity-type topics "
        f"--entity-name {topic} --add-config {setting}"
    )
