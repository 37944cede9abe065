"""The state of a shard, one declaration per fact (fact.py): `duewheel status`, /v1/status, the
metrics of the shard, its conditions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, computed_field

from duewheel.api.conditions import Condition, of_facts, of_reasons, ranked
from duewheel.api.fact import Gauge, fact
from duewheel.api.model import InstantMs, Result
from duewheel.api.process_state import ALIVE, ProcessState
from duewheel.api.reasons import effects
from duewheel.checkpoints import pauses, process_role
from duewheel.schemas.partition_names import partition_name


def by_partition(marks: Mapping[Any, int]) -> dict[str, int]:
    """By topic-partition, where the keys are pairs of both."""
    return {key if isinstance(key, str) else partition_name(key): n for key, n in marks.items()}


ByPartition = Annotated[dict[str, int], BeforeValidator(by_partition)]


STATE = "`starting` until its first heartbeat; `paused` while it is idle by request"


class ProcessView(Result):
    """One of the two processes."""

    pid: int | None
    state: ProcessState

    @property
    def is_alive(self) -> bool:
        """Whether it writes heartbeats."""
        return self.state in ALIVE


class SupervisedProcess(Result):
    """A process as `duewheel run` sees it."""

    pid: int | None = Field(description="null while it does not run")
    restarts: int = fact(
        "starts of a process after its first, since `run` began",
        Gauge("shard", "process_restarts", "process", is_counter=True),
    )
    lives: bool = Field(description="it has written a heartbeat since it was started")
    last_exit_code: int | None = fact(
        "last exit code; negative: the signal; none before the first end",
        Gauge("shard", "process_last_exit_code", "process"),
    )
    last_reason: str = Field(description="why it ended; empty if it never has")
    next_try_ms: InstantMs | None = fact(
        "when a process that does not run is started again; no sample while it runs",
        Gauge("shard", "process_next_try_timestamp_seconds", "process"),
    )
    is_failing: bool = fact(
        "the process has ended, and no successor has written a heartbeat yet",
        Gauge("shard", "process_failing", "process"),
    )


class IngestView(ProcessView):
    """Ingest; lag and ages are null until dequeue has asked Kafka once."""

    state: ProcessState = fact(
        STATE,
        Gauge("ingest", "ingest_paused", of="is_paused", help="1 while ingest is paused"),
        warn="Ingest is paused: new timers and cancels wait in Kafka for a resume.",
        named="ingest_paused",
        when="paused",
    )
    lag: int | None = fact(
        "committed messages in the timer topics that ingest has not taken yet. Not counted are "
        "those that wait for a quota, and those of a partition that would open files of more than "
        "64 hours beyond the wheel",
        Gauge("shard", "ingest_lag_messages"),
    )
    lag_ms: int | None = fact(
        "age of the oldest of these messages, since a poll first saw it",
        Gauge("shard", "ingest_lag_seconds"),
    )
    batch_age_ms: int | None = fact(
        "time without a finished batch while there were messages to read",
        Gauge("shard", "ingest_batch_age_seconds"),
    )
    lag_polled_ms: InstantMs | None = fact(
        "when Kafka last returned the ends of the timer topics",
        Gauge(
            "shard",
            "ingest_lag_asked_age_seconds",
            of="poll_age_ms",
            help="time since Kafka last returned the ends of the timer topics",
        ),
        alias="lag_asked_ms",
    )
    open_messages: int | None = fact(
        "messages that no reader of committed records sees yet, because a producer's transaction "
        "below them is open",
        Gauge("shard", "ingest_open_messages"),
    )
    high_water: ByPartition = Field(description="next offset to take, by topic-partition")


class DequeueView(ProcessView):
    """Dequeue; most fields are null while it does not run."""

    state: ProcessState = fact(
        STATE,
        Gauge("dequeue", "dequeue_paused", of="is_paused", help="1 while dequeue is paused"),
        warn="Dequeue is paused: due timers wait for a resume.",
        named="dequeue_paused",
        when="paused",
    )
    floor_ms: InstantMs | None = fact(
        "the time up to which due timers were taken for delivery (the floor)",
        Gauge("dequeue", "floor_timestamp_seconds"),
    )
    behind_ms: int | None = fact(
        "age of the oldest slot that is not delivered in full; 0 below a second",
        Gauge("dequeue", "dequeue_behind_seconds"),
        says="{behind_ms:about} behind",
    )
    clock_skew_ms: int | None = fact(
        "how far this host's clock is ahead of the brokers' clock",
        Gauge("dequeue", "clock_skew_seconds"),
    )
    delivered: int | None = fact(
        "since its start",
        says="since its start {delivered} delivered, {dead_letters} dead letters",
        says_zero=True,
    )
    dead_letters: int | None = Field(description="since its start")
    dead_letters_wait: bool | None = fact(
        "the dead-letter topic takes no writes: it is missing or compacted, or no partition takes "
        "any",
        Gauge("dequeue", "dead_letters_wait"),
        warn="The dead-letter topic takes no writes: dead letters wait.",
        says="dead letters wait for their topic",
    )
    targets_closed: dict[str, str] | None = fact(
        "reason by topic, parked for now",
        warn="{key} takes no writes: its timers wait.",
        named="target",
    )
    timer_topics_resting: dict[str, str] | None = fact(
        "reason by timer topic whose timers are all parked for at most a minute, because a target "
        "has refused one of them",
        warn="{key} rests after a refusal: its timers wait.",
        named="resting",
    )
    paused_timers: dict[str, str] | None = fact(
        "targets, timer topics and tags that a command has paused, with the end",
        Gauge(
            "dequeue",
            "paused_selections",
            of="paused_selections",
            help="targets, timer topics and tags that are paused",
        ),
        warn="The {key} is paused {value}: its timers wait.",
        named="paused",
    )
    copies_held: int | None = fact(
        "records that duewheel keeps in its state topic until their timer partition takes writes: "
        "copies of timers, cancels that duewheel repeats, and dead letters",
        Gauge("dequeue", "copies_held"),
        warn="A timer partition takes no writes: {copies_held:copy waits|copies wait}.",
        says="{copies_held} copies wait for their partition",
    )
    closing_blocked: bool | None = fact(
        "nothing new is delivered, because this host's clock is too far ahead, or the brokers' "
        "unknown",
        Gauge("dequeue", "closing_blocked"),
        bad=(
            "This host's clock is too far ahead of the brokers', or theirs is unknown: nothing is "
            "delivered."
        ),
        says="closes no slot: this clock is too far ahead of Kafka's, or Kafka's is unknown",
    )
    floor_ahead_ms: int | None = fact(
        "by how much delivery is beyond this host's clock, such as after the clock was set back. "
        "Timers due within that time are late",
        Gauge("dequeue", "floor_ahead_seconds"),
        says="closed until {floor_ms:instant} (in {floor_ahead_ms:about})",
    )


class TimerTopicsView(Result):
    """The timer topics, as ingest last listed them."""

    read: list[str]
    left_out: dict[str, str] = fact(
        "topics that are not read, with the reason",
        Gauge("ingest", "timer_topics_left_out", help="timer topics that are not read"),
    )
    faulty: dict[str, str] = Field(description="reason by topic")
    far_ahead: ByPartition = fact(
        "offset by partition that waits there: that record leads to too many hours",
        says="{key}: waits at offset {value}: its records lead to too many hours far ahead",
        bad="{key} waits at offset {value}: its records lead too far ahead.",
    )


class QuotaView(Result):
    """The quota of a timer topic."""

    per_second: int
    waiting: int = fact(
        "messages that wait in Kafka because of their timer topic's quota",
        Gauge("shard", "quota_waiting", "topic"),
        Gauge(
            "shard",
            "quota_waiting_seconds",
            "topic",
            "wait_ms",
            "how long they wait at the rate of the quota, until the last one is taken",
        ),
        warn=(
            "{key} has reached its quota of {per_second} per second: "
            "{waiting:message waits|messages wait} in Kafka."
        ),
        named="quota",
        says="{waiting} messages wait, {wait_ms:about} at {per_second} per second",
    )

    @property
    def wait_ms(self) -> int:
        """Until the last of them is taken."""
        return 1_000 * self.waiting // self.per_second


class RateView(Result):
    """The rate of a target, and its queue in this shard."""

    rate: str = Field(description="of this shard, such as 500/s")
    waiting: int = fact(
        "timers that wait for the rate of their target",
        Gauge("shard", "rate_waiting", "target"),
        Gauge(
            "shard",
            "rate_waiting_seconds",
            "target",
            "wait_ms",
            "how long the last of them waits",
        ),
        warn=(
            "{key} gets {rate}: {waiting:timer waits|timers wait} for their turns, the last one "
            "for {wait_ms:about}."
        ),
        named="rate",
        says="{waiting} timers wait, {wait_ms:about} at {rate}",
    )
    wait_ms: int


class DiskView(Result):
    """The disk of the data directory."""

    free_bytes: int = fact(
        "free bytes of the data directory's file system", Gauge("ingest", "disk_free_bytes")
    )
    min_free_bytes: int = fact(
        "free bytes below which ingest takes no messages", Gauge("ingest", "disk_min_free_bytes")
    )
    rows_without_room: int = fact(
        "messages read that wait because the disk is too full",
        Gauge("ingest", "disk_waiting"),
        bad="The disk is too full: {rows_without_room:message waits|messages wait} for room.",
        named="disk",
        says="{rows_without_room} rows wait",
    )


class StandbyView(Result):
    """A standby, compared with its owner."""

    behind_ms: int = fact(
        "time since the standby first read that its owner has closed slots that it has not",
        Gauge("dequeue", "standby_behind_seconds"),
        says="{behind_ms:about} behind its owner",
        says_zero=True,
    )
    missing: ByPartition = fact(
        "messages that the owner has taken and the standby has not, transaction markers included",
        Gauge("dequeue", "standby_missing_messages", of="missing_messages"),
        says="reads {missing_messages} offsets again",
    )
    followed_slot: int | None
    promotion_wanted: bool

    @property
    def missing_messages(self) -> int:
        """All of them."""
        return sum(self.missing.values())


class RecoveringView(Result):
    """A recovery under way: nothing is delivered."""

    generation: int
    files_whole: bool
    missing: ByPartition = Field(description="offsets to read again, by topic-partition")


class BoundInForce(Result):
    """A bound between timer topic and target: its value, and its source."""

    value: int | str | dict[str, int] | None
    source: str = Field(serialization_alias="from")


class ShardView(Result):
    """The state of a shard, from its data directory alone."""

    shard: int
    role: Literal["owner", "standby"] = fact(
        "a standby follows the owner of the shard, and delivers nothing",
        Gauge(
            "dequeue",
            "standby",
            of="is_standby",
            help="1 in a standby, 0 where the shard is served",
        ),
        plain="This is a standby: it delivers nothing while its owner does.",
        named="standby",
        when="standby",
    )
    data_dir: str
    ready: bool = fact("the shard does its work: see `duewheel status`", Gauge("shard", "ready"))
    not_ready: dict[str, str] = fact(
        "text by reason; empty if it is ready",
        Gauge(
            "shard",
            "not_ready",
            "reason",
            "by_reason",
            "1 for each reason why the shard is not ready",
        ),
    )
    run: dict[str, SupervisedProcess] | None = Field(description="null without `duewheel run`")
    ingest: IngestView
    timer_topics: TimerTopicsView | None = Field(description="null before the first list")
    open_targets: dict[str, list[str]] = Field(description="targets by timer topic")
    quotas: dict[str, QuotaView]
    rates: dict[str, RateView]
    dequeue: DequeueView
    disk: DiskView
    standby: StandbyView | None = Field(description="null in an owner's directory")
    copies_signed: bool | None = fact(
        "whether copies carry a MAC",
        Gauge(
            "dequeue",
            "copies_unsigned",
            of="copies_unsigned",
            help="1 if copies carry no signature, because an older checkout began the shard",
        ),
    )
    bounds: dict[str, BoundInForce]
    recovering: RecoveringView | None = fact(
        "null unless a recovery stops the deliveries",
        Gauge(
            "dequeue",
            "recovering",
            of="is_recovering",
            help="1 while files are recovered or messages are read again: no timer is delivered",
        ),
    )
    pending: int | None = fact(
        "timers that ingest has taken and that have not left; unknown until damaged files are "
        "whole. Cancelled ones count until they would have left, and rejected messages until they "
        "are dead letters",
        Gauge("dequeue", "pending"),
    )
    delivered: int

    @computed_field(description="what is wrong, in sentences: the gravest first, causes first")  # type: ignore[prop-decorator]
    @property
    def conditions(self) -> list[Condition]:
        """All problems, and unusual states."""
        found = [*of_reasons(self.not_ready), *of_facts(self.dequeue), *of_facts(self.ingest)]
        found += of_facts(self.disk)
        for topic, quota in self.quotas.items():
            found += of_facts(quota, topic)
        for target, rate in self.rates.items():
            found += of_facts(rate, target)
        if self.timer_topics is not None:
            found += of_facts(self.timer_topics)
        found += of_facts(self)
        hidden = effects(self.not_ready)
        return ranked(each for each in found if each.name not in hidden)


PausedKind = pauses.PausedKind
ProcessName = process_role.ProcessName


class Paused(Result):
    """A process that was paused or resumed."""

    process: ProcessName
    paused: bool
    was_paused: bool = Field(description="before this")


class PausedSelection(Result):
    """A target, timer topic or tag that was paused or resumed, in all shards."""

    kind: PausedKind
    name: str
    paused: bool
    until_ms: InstantMs | None = Field(description="null: until it is resumed")
    note: str
    was_paused: bool = Field(description="before this")
    former_until_ms: InstantMs | None = Field(description="the end of the pause before this")
    former_note: str = Field(description="its note")
    doubts: list[str] = Field(
        default=[], description="of a target that is paused: why no timer can have it now"
    )


class Promoted(Result):
    """A standby that owns the shard now."""

    shard: int
    data_dir: str
    took_s: float


class Readiness(Result):
    """A shard that does its work."""

    ready: Literal[True]
