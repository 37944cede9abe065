"""The state of a shard: `duewheel status`, and /v1/status."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from duewheel.api.model import Result
from duewheel.api.process_state import ALIVE, ProcessState


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


class DequeueView(ProcessView):
    """Dequeue; most fields are null while it does not run."""

    floor_ms: int | None = Field(description="no timer that was due before is pending; then closed")
    floor_ahead_ms: int | None = Field(description="how far that is ahead of this host's clock")
    behind_ms: int | None = Field(description="age of the oldest slot that is not delivered")
    clock_skew_ms: int | None = Field(description="this host's clock minus Kafka's")
    closing_blocked: bool | None = Field(description="no slot is closed: the clock is ahead")
    delivered: int | None = Field(description="since its start")
    dead_letters: int | None = Field(description="since its start")
    dead_letters_wait: bool | None = Field(description="the dead-letter topic takes no writes")
    copies_held: int | None = Field(description="copies that wait for their timer partition")
    targets_closed: dict[str, str] | None = Field(description="reason by topic, parked for now")
    transaction_blocked: str | None = Field(description="why no transaction can begin, or empty")


class TimerTopicsView(Result):
    """The timer topics, as ingest last listed them."""

    read: list[str]
    left_out: dict[str, str] = Field(description="reason by topic")
    faulty: dict[str, str] = Field(description="reason by topic")


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
