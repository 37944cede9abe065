"""The JSON of the API. Instants are epoch milliseconds, as in the files of `--output json`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

JsonObject = dict[str, Any]

PAGE_MAX = 1_000
BULK_MAX = 10_000
KEY_MAX = 4_096
ID_MAX = 255
TOPIC_MAX = 249

Limit = Annotated[int, Field(ge=1, le=PAGE_MAX)]


class ProblemDetails(BaseModel):
    """An error (RFC 9457)."""

    model_config = ConfigDict(extra="allow")

    type: str
    title: str
    status: int
    code: str
    detail: str


class TimerSummary(BaseModel):
    """A pending timer, without its message."""

    id: str
    source: str = Field(description="topic-partition@offset of the record that requested it")
    handle: str | None = Field(description="names it in other requests; null for a dead letter")
    due_ms: int | None = Field(description="null for a dead letter, which leaves at once")
    leaves_ms: int = Field(description="when it leaves the wheel: to its topic, or to roll")
    topic: str
    level: int | None = None
    key: str | None = None
    key_base64: str | None = Field(None, description="a key that is no UTF-8")
    value_bytes: int | None
    rolled: bool = Field(description="it is written to its timer topic again when it leaves")
    cancelled: bool = Field(description="it is dropped when it leaves")


class TimerList(BaseModel):
    """A page of pending timers, in the order in which they leave."""

    timers: list[TimerSummary]
    next: str | None = Field(
        description="`page` of the next request; null: this is the last page. A search by key may "
        "return fewer timers than `limit`, or none, before the last page."
    )


class HeaderOfMessage(BaseModel):
    """A header of a message."""

    name: str
    value: str | None = None
    value_base64: str | None = Field(None, description="a value that is no UTF-8")


class TimerWithMessage(TimerSummary):
    """A pending timer with its message."""

    partition: int | None = Field(description="of the target; null: chosen at delivery")
    header_names: list[str] | None = Field(None, description="without serve.show_bodies")
    headers: list[HeaderOfMessage] | None = None
    value: str | None = None
    value_base64: str | None = None


class HistogramRange(BaseModel):
    """Timers by due time: `counts[i]` from from_ms + i × width_ms on."""

    name: str
    from_ms: int
    width_ms: int
    counts: list[int]


class PendingHistogram(BaseModel):
    """Everything that is pending, by due time."""

    now_ms: int
    precision_ms: int = Field(description="the length of a slot: no bucket can be finer")
    pending: int
    overdue: int = Field(description="in slots that are past")
    rolls: int = Field(description="pending timers that roll before they are due")
    estimated: bool = Field(description="their due times are estimated from a sample")
    ranges: list[HistogramRange]


class Lateness(BaseModel):
    """Deliveries by lateness, since dequeue began."""

    available: bool
    reason: str | None = Field(description="why it is not available")
    bounds_s: list[float] = Field(description="rising")
    counts: list[int] = Field(description="deliveries up to each bound, then all")


class Readiness(BaseModel):
    """A shard that does its work."""

    ready: Literal[True]


class Paused(BaseModel):
    """A process that was paused or resumed."""

    process: Literal["ingest", "dequeue"]
    paused: bool


# ---- changes ------------------------------------------------------------------------------------


class Scheduled(BaseModel):
    """A timer that Kafka has acknowledged."""

    id: str
    timer_topic: str
    partition: int
    offset: int
    due_ms: int
    handle: str


class Answered(BaseModel):
    """A cancel that Kafka has acknowledged."""

    id: str
    timer_topic: str
    partition: int
    offset: int
    answer: Literal["cancelled", "already_delivered", "unknown"] | None = Field(
        description="null: no reply in time, or timer.reply_topic names no topic"
    )


class RescheduledTimer(Scheduled, Answered):
    """A timer that replaces another one."""


class TimerFilter(BaseModel):
    """Conditions that all hold; at least one."""

    model_config = ConfigDict(extra="forbid")

    topic: str | None = Field(None, max_length=TOPIC_MAX, description="the target")
    id: str | None = Field(None, max_length=ID_MAX)
    key: str | None = Field(None, max_length=KEY_MAX)
    key_base64: str | None = Field(None, max_length=2 * KEY_MAX)
    level: Annotated[int, Field(strict=True, ge=1, le=255)] | None = None
    since: str | None = Field(None, alias="from", max_length=40, description="epoch ms or ISO-8601")
    until: str | None = Field(None, alias="to", max_length=40, description="likewise")


class BulkCancel(BaseModel):
    """A cancel of all pending timers that match."""

    model_config = ConfigDict(extra="forbid")

    filter: TimerFilter
    dry_run: bool = Field(strict=True, description="only count")
    at_most: Annotated[int, Field(strict=True, ge=1, le=BULK_MAX)] = Field(
        BULK_MAX, description="if more timers match, none is cancelled"
    )


class BulkCancelled(BaseModel):
    """What a bulk cancel has matched and written; of a dry run, what a real one would write."""

    dry_run: bool
    matched: int
    written: int
    answers: dict[str, int] = Field(description="replies by kind; none_in_time for those to come")
    sample: list[TimerSummary]


# ---- dead letters -------------------------------------------------------------------------------


class DeadLetterSummary(BaseModel):
    """A dead letter, without its message."""

    partition: int
    offset: int
    time: str
    code: str | None
    error: str | None
    source: str | None
    key: str | None
    value_bytes: int | None
    replayed: bool


class DeadLetterList(BaseModel):
    """A page of dead letters, oldest first within each partition."""

    letters: list[DeadLetterSummary]
    next: str | None = Field(description="`page` of the next request; null: this is the last page")


class DeadLetterWithMessage(DeadLetterSummary):
    """A dead letter with its message."""

    header_names: list[str] | None = Field(None, description="without serve.show_bodies")
    headers: list[HeaderOfMessage] | None = None
    value: str | None = None
    value_base64: str | None = None


class Replay(BaseModel):
    """Which dead letters to write again, and where."""

    model_config = ConfigDict(extra="forbid")

    code: str | None = Field(None, max_length=100, description="only those with this code")
    to_topic: str | None = Field(
        None, min_length=1, max_length=TOPIC_MAX, description="by default each one's own topic"
    )
    limit: Annotated[int, Field(strict=True, ge=1, le=BULK_MAX)] = PAGE_MAX
    dry_run: bool = Field(strict=True, description="only count")


class Replayed(BaseModel):
    """What a replay has written; of a dry run, what a real one would write."""

    dry_run: bool
    replayed: int
    topics: dict[str, int]
    refused: dict[str, int] = Field(description="dead letters again, by code")


# ---- receipts -----------------------------------------------------------------------------------


class DeliveryReceipt(BaseModel):
    """A delivered timer."""

    id: str = Field(description="of the timer; without one `source`")
    source: str = Field(description="topic-partition@offset of the record that requested it")
    target: str
    target_partition: int
    due_ms: int
    delivered_ms: int = Field(description="by the brokers' clock, where they stamp the topic")
    lateness_ms: int = Field(description="delivered_ms minus due_ms")
    receipt: str = Field(description="partition@offset in the receipts topic")


class ReceiptList(BaseModel):
    """A page of receipts, oldest first within each partition of their topic."""

    receipts: list[DeliveryReceipt]
    next: str | None = Field(description="`page` of the next request; null: this is the last page")


# ---- schedules ----------------------------------------------------------------------------------


class ChangedSchedule(BaseModel):
    """A schedule after a change."""

    name: str
    state: Literal["active", "paused", "stopped"]
    next_due_ms: int | None = Field(None, description="its next instant; null: paused, or none")
    applied: bool = Field(description="false: the change is written, and not in effect yet")


class ScheduleSummary(BaseModel):
    """A recurring schedule, without its message."""

    name: str
    state: Literal["active", "paused", "unreadable"]
    cron: str | None = None
    zone: str | None = Field(None, description="of `cron`")
    every_ms: int | None = None
    target: str | None = None
    timer_topic: str | None = None
    missed: Literal["skip", "one", "all"] | None = None
    last_due_ms: int | None = Field(
        None, description="the last instant that is due and was written to the timer topic"
    )
    next_due_ms: int | None = Field(None, description="its next instant; null: paused, or none")
    applied: bool = Field(False, description="false: its newest change is not in effect yet")


class ScheduleList(BaseModel):
    """All recurring schedules."""

    schedules: list[ScheduleSummary]
    scheduler: Literal["running", "silent", "none"] = Field(
        description="whether `duewheel recur` runs; silent: its last heartbeat is old"
    )
    heartbeat_ms: int | None = Field(description="its last one, by the brokers' clock")


class NextInstants(BaseModel):
    """The next instants of a schedule."""

    name: str
    due_ms: list[int]
