"""The names of all headers, in one place: those a user may set, and those duewheel adds.

A request header under another name (of another delay service, say) is one more line in REQUEST.
Of headers with the same meaning the last one in a record counts; all are taken out at delivery.
Only the standard library: producers know these names without any of the engine's libraries.
"""

from __future__ import annotations

from enum import IntEnum, StrEnum, auto

# Added to what is delivered.
SOURCE = "TIMER_SOURCE"  # topic-partition@offset of the timer
DUE_MS = "TIMER_DUE_MS"  # requested due time, epoch ms
TIMER_ID = "UNIQ_KEY"  # the timer's id, the given one or the default: that of SOURCE
ROLL_TIMES = "TIMER_ROLL_TIMES"  # how often the timer was rolled, if it was

# On copies only, which go back to their timer topic: rolled or parked.
ORIGIN = "TIMER_ORIGIN"  # offset of the timer's first copy, in the same partition
NOT_BEFORE_MS = "TIMER_NOT_BEFORE_MS"  # of a parked one: when it leaves if it is due by then
RETRIES = "TIMER_RETRIES"  # how often in a row it was parked
ASKED_LEVEL = "TIMER_LEVEL"  # the level that the due time was asked for with, if it was

# Added to answers to cancels and reschedules, whose value is a JSON object (ANSWER_*).
ANSWER = "TIMER_ANSWER"  # an Answer: what became of the timers that were met
ANSWER_WORD = "answer"  # the same word
ANSWER_ID = "id"  # of the timers that were to be met
ANSWER_SOURCE = "source"  # topic-partition@offset of the cancel or reschedule
ANSWER_REQUEST = "request"  # "cancel" or "reschedule"

# Added to dead letters.
ERROR_CODE = "TIMER_ERROR_CODE"  # one word, for programs
ERROR = "TIMER_ERROR"  # a sentence, for people


class Answer(StrEnum):
    """What became of the timers that a cancel or reschedule was to meet."""

    CANCELLED = "cancelled"  # none of them will be delivered, and at least one was pending
    ALREADY_DELIVERED = "already_delivered"
    UNKNOWN = "unknown"  # there was none, or nobody can tell any more


class Request(IntEnum):
    """What a request header can mean. The first four are in order of precedence."""

    LEVEL = 0
    DELAY_SEC = auto()
    DELAY_MS = auto()
    DELIVER_AT = auto()
    TARGET_TOPIC = auto()
    TARGET_PARTITION = auto()
    TIMER_ID = auto()
    CANCEL = auto()
    RESCHEDULE = auto()
    ORIGIN = auto()
    ROLL_TIMES = auto()  # counts beside ORIGIN; without it an earlier delivery has added it
    NOT_BEFORE = auto()  # these two beside ORIGIN only
    RETRIES = auto()
    ASKED_LEVEL = auto()  # beside ORIGIN only
    IGNORED = auto()  # added by an earlier delivery: taken out, else it would be there twice


REQUEST: dict[str, Request] = {
    "DELAY": Request.LEVEL,
    "TIMER_DELAY_SEC": Request.DELAY_SEC,
    "TIMER_DELAY_MS": Request.DELAY_MS,
    "TIMER_DELIVER_MS": Request.DELIVER_AT,
    "REAL_TOPIC": Request.TARGET_TOPIC,
    "REAL_QID": Request.TARGET_PARTITION,
    TIMER_ID: Request.TIMER_ID,
    "TIMER_DEL_UNIQKEY": Request.CANCEL,
    "TIMER_RESCHEDULE": Request.RESCHEDULE,
    SOURCE: Request.IGNORED,
    DUE_MS: Request.IGNORED,
    ANSWER: Request.IGNORED,
    ORIGIN: Request.ORIGIN,
    ROLL_TIMES: Request.ROLL_TIMES,
    NOT_BEFORE_MS: Request.NOT_BEFORE,
    RETRIES: Request.RETRIES,
    ASKED_LEVEL: Request.ASKED_LEVEL,
}
NATIVE = {request: name for name, request in reversed(REQUEST.items())}
"""The name under which duewheel itself makes each request: the first one in REQUEST."""

_SECONDS = (1, 5, 10, 30, *range(60, 601, 60), 1_200, 1_800, 3_600, 7_200)
LEVELS_MS = tuple(1_000 * seconds for seconds in _SECONDS)
"""The delay of level 1, 2, … where nothing else is configured: RocketMQ's table."""
