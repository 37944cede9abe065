"""The names of all headers: those that a user may set, and those that duewheel adds.

- A request header under another name is one more line in REQUEST.
- The names of other delay services are in DROP_IN. They are request headers only in topics of that
  mode (topic_settings.py), beside the native ones. Where both give a due time, the mode's counts.
- Of headers with the same meaning the last one in a record counts. Delivery removes all of them.
- Copies (record_codec.py) have native headers in every topic.

This module needs only the standard library: producers import it without the engine's libraries.
"""

from __future__ import annotations

from enum import IntEnum, StrEnum, auto
from typing import Literal, get_args

# Added to deliveries.
SOURCE = "TIMER_SOURCE"  # topic-partition@offset of the timer
DUE_MS = "TIMER_DUE_MS"  # requested due time, epoch ms
TIMER_ID = "UNIQ_KEY"  # the timer's id, the given one or the default: that of SOURCE
ID_BYTES_MAX = 255  # of an id that the user gave
ROLL_TIMES = "TIMER_ROLL_TIMES"  # how often the timer was rolled, if it was
TAG = "TIMER_TAG"  # a user's header, delivered like others: selects timers, as in lists and pauses
TAG_BYTES_MAX = 64  # of a tag that the client writes, or a filter names
EXPIRES_MS = "TIMER_EXPIRES_MS"  # likewise: the last instant at which the timer is delivered
LATENESS_MS = "TIMER_LATENESS_MS"  # when it was encoded for its transaction; where configured

# Of a timer with an id: its fate while an earlier timer of its id is pending.
IF_PENDING = "TIMER_IF_PENDING"
IfPending = Literal["keep", "replace"]  # the earlier one stays, or this one takes its place
IF_PENDING_WORDS: tuple[IfPending, ...] = get_args(IfPending)

# Of a recurring timer: its record has them in place of a due time, each of its copies beside one.
CRON = "TIMER_CRON"
ZONE = "TIMER_ZONE"  # of the expression; UTC without it
EVERY = "TIMER_EVERY"  # elapsed time, in place of an expression
MISSED = "TIMER_MISSED"  # "skip", "one" or "all": the instants that fire late
STARTS_MS = "TIMER_STARTS_MS"  # no instant is earlier
ENDS_MS = "TIMER_ENDS_MS"  # no instant is later
JITTER_MS = "TIMER_JITTER_MS"  # each instant is later by the same time, up to this, by the id
PAUSED = "TIMER_PAUSED"  # it rolls and never fires; the value is a note
Missed = Literal["skip", "one", "all"]
MISSED_WORDS: tuple[Missed, ...] = get_args(Missed)
INTERVAL_MS_MIN = 1_000
CRON_BYTES_MAX = 100  # the time to parse it rises with them
# Of a recurring timer, which its writer pays for once: each firing and each copy costs them again.
# Dequeue separates the headers of each firing in Python: 0.5 ms for 1,000 of them.
RECURRING_HEADERS_MAX = 100
RECURRING_BYTES_MAX = 64 << 10  # of key, value and headers, as encoded
RECURRING_ID_BYTES_MAX = 200  # so that the id of a firing, ID@INSTANT, fits the bound of all ids

# On copies only, which return to their timer topic: rolled, parked or postponed.
ORIGIN = "TIMER_ORIGIN"  # offset of the timer's first copy, in the same partition
NOT_BEFORE_MS = "TIMER_NOT_BEFORE_MS"  # of a waiting one: it is not delivered earlier
RETRIES = "TIMER_RETRIES"  # how often in a row it was parked; at least 1
REQUESTED_LEVEL = "TIMER_LEVEL"  # the level that requested the due time, if one did
LETTER = "TIMER_DEAD_LETTER"  # of a dead letter that waits for its topic: it stays one
COPY_MAC = "TIMER_COPY_MAC"  # the last one, and of chases, too: duewheel has written it

# On chases only: cancels that dequeue writes again after copies that may be in flight. They have
# ORIGIN, too: the offset of the request.
CHASE_SLOT = "TIMER_CANCEL_SLOT"  # last slot delivered in full when the chase was written
CHASE_FLAGS = "TIMER_CANCEL_FLAGS"  # CHASE_FLAG_FOUND and CHASE_FLAG_RESCHEDULE
CHASE_FLAG_FOUND = 1  # the request, or an earlier chase of it, has marked a timer
CHASE_FLAG_RESCHEDULE = 2  # the request was a reschedule

# Added to replies to cancels, reschedules and timers with `keep`. Their value is a JSON object
# (ANSWER_*).
ANSWER = "TIMER_ANSWER"  # an Answer: the outcome
ANSWER_NAME = "answer"  # the same word
ANSWER_ID = "id"  # of the timers to be cancelled
ANSWER_SOURCE = "source"  # topic-partition@offset of the cancel, reschedule or timer
ANSWER_REQUEST = "request"  # "cancel", "reschedule" or "keep"

# Added to dead letters.
ERROR_CODE = "TIMER_ERROR_CODE"  # one word, for programs
ERROR = "TIMER_ERROR"  # a sentence, for people

# Added by the client's RetryLater. For the service they are a message's own headers.
RETRY_ATTEMPT = "RETRY_ATTEMPT"  # of a retry: 2, 3, …; of a dead letter: the attempts it has had
RETRY_FIRST = "RETRY_FIRST"  # topic-partition@offset of the message when it was new
RETRY_DEADLINE_MS = "RETRY_DEADLINE_MS"  # no attempt begins later, epoch ms
RETRY_HISTORY = "RETRY_HISTORY"  # the failed attempts, a JSON array
RETRY_REASON = "RETRY_REASON"  # these three on dead letters only
RETRY_ERROR = "RETRY_ERROR"  # class of the last error
RETRY_ERROR_TEXT = "RETRY_ERROR_TEXT"
RETRY = frozenset(
    {
        *(RETRY_ATTEMPT, RETRY_FIRST, RETRY_DEADLINE_MS, RETRY_HISTORY),
        *(RETRY_REASON, RETRY_ERROR, RETRY_ERROR_TEXT),
    }
)

DELIVERED = (SOURCE, DUE_MS, TIMER_ID, ROLL_TIMES, LATENESS_MS)
"""The headers of a delivery beside the message's own."""
ADDED = frozenset({*DELIVERED, ANSWER, ERROR_CODE, ERROR})
"""Those of a delivery, a reply or a dead letter. In a request only the id has a meaning."""
SERVICE = frozenset(
    {
        *(SOURCE, DUE_MS, ROLL_TIMES, LATENESS_MS, ANSWER, ERROR_CODE, ERROR),
        *(ORIGIN, NOT_BEFORE_MS, RETRIES, REQUESTED_LEVEL, LETTER),
        *(CHASE_SLOT, CHASE_FLAGS, COPY_MAC),
    }
)
"""The headers that only duewheel sets. Ingest removes them from producers' records, so a consumer
can trust them."""


class Answer(StrEnum):
    """The outcome of a cancel or reschedule; or of a timer with `keep`: of these the last three."""

    CANCELLED = "cancelled"  # at least one was pending, or the newest was cancelled before
    ALREADY_DELIVERED = "already_delivered"
    UNKNOWN = "unknown"  # no such timer, or no trace of it
    KEPT = "kept"  # an earlier timer of the id is pending: the new one was dropped
    TAKEN = "taken"  # none was: the new one is pending


class Request(IntEnum):
    """The meaning of a request header. The first seven are in order of precedence."""

    EPOCH_SEC = 0  # these two in drop-in modes only
    WHEN = auto()
    LEVEL = auto()
    DELAY_SEC = auto()
    DELAY_MS = auto()
    DELIVER_AT = auto()
    DELIVER_AFTER = auto()
    WINDOW_MS = auto()
    TARGET_TOPIC = auto()
    TARGET_PARTITION = auto()
    TIMER_ID = auto()
    CANCEL = auto()
    RESCHEDULE = auto()
    CANCEL_OFFSET = auto()  # beside these two: the one timer that they match
    IF_PENDING = auto()
    CRON = auto()  # from here to PAUSED: of a recurring timer
    ZONE = auto()
    EVERY = auto()
    MISSED = auto()
    STARTS = auto()
    ENDS = auto()
    JITTER = auto()
    PAUSED = auto()
    ORIGIN = auto()
    ROLL_TIMES = auto()  # counts beside ORIGIN only: without it an earlier delivery has added it
    NOT_BEFORE = auto()  # these three beside ORIGIN only
    RETRIES = auto()
    REQUESTED_LEVEL = auto()  # beside ORIGIN only
    LETTER = auto()  # only as the last header of a dead letter that waits
    CHASE_SLOT = auto()  # these two beside CANCEL and ORIGIN only
    CHASE_FLAGS = auto()
    COPY_MAC = auto()  # a valid one; only as the last header
    IGNORED = auto()  # forged, or added by an earlier delivery: removed
    TARGET_KEY = auto()  # from here on in drop-in modes only
    PARTITION_KEY = auto()  # not removed: copies need it
    SOURCE_TYPE = auto()
    SCHEMA_VERSION = auto()
    RECURRING = auto()


REQUEST: dict[str, Request] = {
    "DELAY": Request.LEVEL,
    "TIMER_DELAY_SEC": Request.DELAY_SEC,
    "TIMER_DELAY_MS": Request.DELAY_MS,
    "TIMER_DELIVER_MS": Request.DELIVER_AT,
    "deliverAfter": Request.DELIVER_AFTER,  # of KIP-1277
    "TIMER_WINDOW_MS": Request.WINDOW_MS,
    "REAL_TOPIC": Request.TARGET_TOPIC,
    "REAL_QID": Request.TARGET_PARTITION,
    TIMER_ID: Request.TIMER_ID,
    "TIMER_DEL_UNIQKEY": Request.CANCEL,
    "TIMER_RESCHEDULE": Request.RESCHEDULE,
    "TIMER_CANCEL_OFFSET": Request.CANCEL_OFFSET,
    IF_PENDING: Request.IF_PENDING,
    CRON: Request.CRON,
    ZONE: Request.ZONE,
    EVERY: Request.EVERY,
    MISSED: Request.MISSED,
    STARTS_MS: Request.STARTS,
    ENDS_MS: Request.ENDS,
    JITTER_MS: Request.JITTER,
    PAUSED: Request.PAUSED,
    SOURCE: Request.IGNORED,
    DUE_MS: Request.IGNORED,
    LATENESS_MS: Request.IGNORED,
    ANSWER: Request.IGNORED,
    ERROR_CODE: Request.IGNORED,
    ERROR: Request.IGNORED,
    ORIGIN: Request.ORIGIN,
    ROLL_TIMES: Request.ROLL_TIMES,
    NOT_BEFORE_MS: Request.NOT_BEFORE,
    RETRIES: Request.RETRIES,
    REQUESTED_LEVEL: Request.REQUESTED_LEVEL,
    LETTER: Request.LETTER,
    CHASE_SLOT: Request.CHASE_SLOT,
    CHASE_FLAGS: Request.CHASE_FLAGS,
    COPY_MAC: Request.COPY_MAC,
}
RECURRENCE = tuple(Request(number) for number in range(Request.CRON, Request.PAUSED + 1))
"""The requests of a recurring timer. They stay in its stored headers, and in its copies."""
COPY_ONLY = frozenset(
    {
        *(Request.ORIGIN, Request.ROLL_TIMES, Request.NOT_BEFORE, Request.RETRIES),
        *(Request.REQUESTED_LEVEL, Request.LETTER),
        *(Request.CHASE_SLOT, Request.CHASE_FLAGS, Request.COPY_MAC),
    }
)
"""The requests that only copies and chases may make."""
NAME_OF = {request: name for name, request in reversed(REQUEST.items())}
"""The name that duewheel itself writes for each request: the first one in REQUEST."""

# Added to deliveries from a topic of another service's mode.
ETF1_TIMESTAMP = "scheduler-timestamp"  # of the schedule's record, epoch seconds
ETF1_KEY = "scheduler-key"  # of the schedule's record
ETF1_TOPIC = "scheduler-topic"
KARAFKA_TOPIC = "schedule_source_topic"
KARAFKA_PARTITION = "schedule_source_partition"
KARAFKA_OFFSET = "schedule_source_offset"
KARAFKA_KEY = "schedule_source_key"

DROP_IN: dict[str, dict[str, Request]] = {
    "etf1": {
        "scheduler-epoch": Request.EPOCH_SEC,
        "scheduler-target-topic": Request.TARGET_TOPIC,
        "scheduler-target-key": Request.TARGET_KEY,
        ETF1_TIMESTAMP: Request.IGNORED,
        ETF1_KEY: Request.IGNORED,
        ETF1_TOPIC: Request.IGNORED,
    },
    "karafka": {
        "schedule_schema_version": Request.SCHEMA_VERSION,
        "schedule_source_type": Request.SOURCE_TYPE,
        "schedule_target_epoch": Request.EPOCH_SEC,
        "schedule_target_topic": Request.TARGET_TOPIC,
        "schedule_target_key": Request.TARGET_KEY,
        "schedule_target_partition": Request.TARGET_PARTITION,
        "schedule_target_partition_key": Request.PARTITION_KEY,
        KARAFKA_TOPIC: Request.IGNORED,
        KARAFKA_PARTITION: Request.IGNORED,
        KARAFKA_OFFSET: Request.IGNORED,
        KARAFKA_KEY: Request.IGNORED,
    },
    "eifinger": {
        "kafka-scheduler-when": Request.WHEN,
        "kafka-scheduler-topic": Request.TARGET_TOPIC,
        "kafka-scheduler-key": Request.TARGET_KEY,
        "kafka-scheduler-cron": Request.RECURRING,
        "kafka-scheduler-period": Request.RECURRING,
    },
}
"""The names of each drop-in mode: other delay services for Kafka."""

_SECONDS = (1, 5, 10, 30, *range(60, 601, 60), 1_200, 1_800, 3_600, 7_200)
LEVELS_MS = tuple(1_000 * seconds for seconds in _SECONDS)
"""The delay of level 1, 2, … where nothing else is configured: RocketMQ's table."""
