"""The state of a shard: `duewheel status`, and /v1/status."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from pydantic import Field, computed_field

from duewheel.api.conditions import Condition, condition, counted, of_reasons, ranked
from duewheel.api.model import Result
from duewheel.api.process_state import ALIVE, ProcessState
from duewheel.config.durations import about


class ProcessView(Result):
    """One of the two processes.

    Attributes:
        state: `starting` until its first heartbeat; `paused` while it is idle by request.
    """

    pid: int | None
    state: ProcessState

    @property
    def is_alive(self) -> bool:
        """Whether it writes heartbeats."""
        return self.state in ALIVE


class SupervisedProcess(Result):
    """A process as `duewheel run` sees it."""

    pid: int | None = Field(description="null while it does not run")
    restarts: int = Field(description="starts after the first, since `run` began")
    lives: bool = Field(description="it has written a heartbeat since it was started")
    last_exit_code: int | None = Field(description="negative: the signal; null: it never ended")
    last_reason: str = Field(description="why it ended; empty if it never has")
    next_try_ms: int | None = Field(description="when it is started again; null while it runs")
    is_failing: bool = Field(description="it has ended, and no successor lives yet")


class IngestView(ProcessView):
    """Ingest; lag and ages are null until dequeue has asked Kafka once."""

    lag: int | None = Field(description="offsets that can be read and are not in the wheel")
    lag_ms: int | None = Field(description="age of the oldest of them, since a poll saw it first")
    batch_age_ms: int | None = Field(description="time without a finished batch, with some to read")
    lag_polled_ms: int | None = Field(
        serialization_alias="lag_asked_ms", description="when Kafka last returned the ends"
    )
    high_water: dict[str, int] = Field(description="next offset to take, by topic-partition")

    def conditions(self) -> Iterator[Condition]:
        """What is unusual."""
        if self.state == "paused":
            text = "Ingest is paused: new timers and cancels wait in Kafka for a resume."
            yield condition("warn", "ingest_paused", text)


class DequeueView(ProcessView):
    """Dequeue; most fields are null while it does not run."""

    floor_ms: int | None = Field(description="end of the last closed slot")
    floor_ahead_ms: int | None = Field(description="how far that is ahead of this host's clock")
    behind_ms: int | None = Field(
        description="age of the oldest slot that is not delivered; 0 below a second"
    )
    clock_skew_ms: int | None = Field(description="this host's clock minus Kafka's")
    closing_blocked: bool | None = Field(description="no slot is closed: the clock is ahead")
    delivered: int | None = Field(description="since its start")
    dead_letters: int | None = Field(description="since its start")
    dead_letters_wait: bool | None = Field(description="the dead-letter topic takes no writes")
    copies_held: int | None = Field(description="copies that wait for their timer partition")
    targets_closed: dict[str, str] | None = Field(description="reason by topic, parked for now")
    transaction_blocked: str | None = Field(description="why no transaction can begin, or empty")

    def conditions(self) -> Iterator[Condition]:
        """What is wrong or unusual."""
        if self.closing_blocked:
            ahead = about(self.clock_skew_ms or 0)
            text = f"The clock of this host is {ahead} ahead of the brokers': nothing is delivered."
            yield condition("bad", "closing_blocked", text)
        if self.state == "paused":
            text = "Dequeue is paused: due timers wait for a resume."
            yield condition("warn", "dequeue_paused", text)
        if self.dead_letters_wait:
            text = "The dead-letter topic takes no writes: dead letters wait."
            yield condition("warn", "dead_letters_wait", text)
        for topic, reason in (self.targets_closed or {}).items():
            text = f"{topic} takes no writes: its timers wait."
            yield condition("warn", f"target_{topic}", text, reason)
        if self.copies_held:
            waiting = counted(self.copies_held, "copy waits", "copies wait")
            text = f"A timer partition takes no writes: {waiting}."
            yield condition("warn", "copies_held", text)


class TimerTopicsView(Result):
    """The timer topics, as ingest last listed them."""

    read: list[str]
    left_out: dict[str, str] = Field(description="reason by topic")
    faulty: dict[str, str] = Field(description="reason by topic")
    far_ahead: dict[str, int] = Field(
        description="offset by partition that waits there: that record leads to too many hours"
    )


class QuotaView(Result):
    """The quota of a timer topic."""

    per_second: int
    waiting: int = Field(description="messages that wait in Kafka because of it")


class DiskView(Result):
    """The disk of the data directory."""

    free_bytes: int
    min_free_bytes: int = Field(description="ingest takes no message that would leave less")
    rows_without_room: int = Field(description="messages that wait for room")


class StandbyView(Result):
    """A standby, compared with its owner."""

    missing: dict[str, int] = Field(description="offsets that it reads again, by topic-partition")
    behind_ms: int = Field(description="how far it is behind the closed slots of its owner")
    followed_slot: int | None
    promotion_wanted: bool


class RecoveringView(Result):
    """A recovery under way: nothing is delivered."""

    generation: int
    files_whole: bool
    missing: dict[str, int] = Field(description="offsets to read again, by topic-partition")


class BoundInForce(Result):
    """A bound between timer topic and target: its value, and what sets it."""

    value: int | str | dict[str, int] | None
    source: str = Field(serialization_alias="from")


class ShardView(Result):
    """The state of a shard, from its data directory alone."""

    shard: int
    role: Literal["owner", "standby"]
    data_dir: str
    ready: bool
    not_ready: dict[str, str] = Field(description="text by reason; empty if it is ready")
    run: dict[str, SupervisedProcess] | None = Field(description="null without `duewheel run`")
    ingest: IngestView
    timer_topics: TimerTopicsView | None = Field(description="null before the first list")
    open_targets: dict[str, list[str]] = Field(description="targets by timer topic")
    quotas: dict[str, QuotaView]
    dequeue: DequeueView
    disk: DiskView
    standby: StandbyView | None = Field(description="null in an owner's directory")
    copies_signed: bool | None = Field(description="whether copies carry a MAC")
    bounds: dict[str, BoundInForce]
    recovering: RecoveringView | None
    pending: int = Field(description="cancelled timers included")
    delivered: int

    @computed_field(description="what is wrong, in sentences: the gravest first, causes first")  # type: ignore[prop-decorator]
    @property
    def conditions(self) -> list[Condition]:
        """What is wrong or unusual."""
        found = [*of_reasons(self.not_ready), *self.dequeue.conditions(), *self.ingest.conditions()]
        if self.disk.rows_without_room and "disk_full" not in self.not_ready:
            waiting = counted(self.disk.rows_without_room, "message waits", "messages wait")
            found.append(condition("bad", "disk", f"The disk is too full: {waiting} for room."))
        for topic, quota in self.quotas.items():
            if quota.waiting:
                waiting = counted(quota.waiting, "message waits", "messages wait")
                reached = f"{topic} has reached its quota of {quota.per_second} per second"
                found.append(condition("warn", f"quota_{topic}", f"{reached}: {waiting} in Kafka."))
        for partition, offset in (self.timer_topics.far_ahead if self.timer_topics else {}).items():
            text = f"{partition} waits at offset {offset}: its records lead too far ahead."
            found.append(condition("bad", f"far_ahead_{partition}", text))
        if self.role == "standby":
            text = "This is a standby: it delivers nothing while its owner does."
            found.append(condition("plain", "standby", text))
        return ranked(found)


class Paused(Result):
    """A process that was paused or resumed."""

    process: Literal["ingest", "dequeue"]
    paused: bool


class Promoted(Result):
    """A standby that owns the shard now."""

    shard: int
    data_dir: str
    took_s: float


class Readiness(Result):
    """A shard that does its work."""

    ready: Literal[True]
