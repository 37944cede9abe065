"""The request headers of a record in the timer topic, and what no request may have.

Imports only the standard library.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

from duewheel.api.due_time import DueTime, NonNullHeader, instant_ms, whole, window_headers
from duewheel.api.limits import tag_octets
from duewheel.api.recurring_time import RecurringArguments, RecurringTime, require_name
from duewheel.client.handle import RecallHandle, id_bytes
from duewheel.config.instants import utc_text
from duewheel.errors import InvalidTimer
from duewheel.schemas.header_names import (
    ADDED,
    DROP_IN,
    EXPIRES_MS,
    IF_PENDING_WORDS,
    NAME_OF,
    REQUEST,
    SOURCE,
    TAG,
    TIMER_ID,
    IfPending,
    Request,
)
from duewheel.schemas.name_patterns import may_name_topic
from duewheel.schemas.partition_names import PARTITIONS_MAX

TARGET = {NAME_OF[Request.TARGET_TOPIC], NAME_OF[Request.TARGET_PARTITION]}
NO_TIMER = "a row makes no timer: "  # before the reason
_REQUESTING = REQUEST.keys() | {name for names in DROP_IN.values() for name in names}
# What to do in place of a reserved header.
_BY_ARGUMENT = "use the corresponding argument"
BY_COLUMNS = "a row of an outbox requests by its columns alone (docs/outbox.md)"


def requested_time(
    method: str,
    deliver_at: datetime | int | None,
    delay: timedelta | str | None,
    level: int | None,
    recurring: RecurringArguments,
) -> DueTime | RecurringTime:
    """Makes the due time, or the instants, of the arguments of a method of DelayProducer.

    Raises:
        InvalidTimer: they contradict each other, or one does not parse.
        TypeError: an argument that is taken for one of a recurring timer has another name.
    """
    for name in recurring:
        if name not in RecurringArguments.__annotations__:
            text = f"DelayProducer.{method}() got an unexpected keyword argument {name!r}"
            raise TypeError(text)
    if not recurring:
        return DueTime.of(deliver_at, delay, level)
    if [deliver_at, delay, level].count(None) != 3:
        raise InvalidTimer("a recurring timer has no due time: give cron or every alone")
    return RecurringTime.of(**recurring)


def timer_headers(
    topic: str,
    when: DueTime | RecurringTime,
    timer_topic: str,
    *,
    headers: Iterable[NonNullHeader] = (),
    window: timedelta | str | None = None,
    tag: str | None = None,
    expires_at: datetime | int | None = None,
    id: str | None = None,
    partition: int | None = None,
    if_pending: IfPending | None = None,
    due_ms: int | None = None,
) -> list[NonNullHeader]:
    """All headers of a new timer's record; the arguments are those of `DelayProducer.schedule`, and
    the epoch ms of `when`, by this host's clock.

    Raises:
        InvalidTimer: an argument is impossible, or one of the user's headers is reserved.
    """
    require_consistent(when, id, window)
    request = users(headers)
    if tag is not None:
        request.append((TAG, tag_octets(tag)))
    if expires_at is not None:
        request.append((EXPIRES_MS, b"%d" % _last_ms(expires_at, when, due_ms)))
    request += [*when.headers, *window_headers(window)]
    if id is not None:
        request.append((NAME_OF[Request.TIMER_ID], id_bytes(id)))
    if if_pending is not None:
        request.append(_if_pending_header(if_pending, when, id))
    return [*request, *target(topic, partition, timer_topic)]


def rejected_headers(
    reason: str, topic: str | None, id: str | None, headers: Iterable[NonNullHeader]
) -> list[NonNullHeader]:
    """The headers of a record for a message that makes no timer: ingest rejects it (`bad_header`),
    because the reason is in place of the due time, where `rejection_in` finds it. Headers that
    request something are left out.
    """
    record = [header for header in headers if header[0] not in _REQUESTING]
    if id is not None:
        record.append((NAME_OF[Request.TIMER_ID], id.encode()))
    if topic is not None:
        record.append((NAME_OF[Request.TARGET_TOPIC], topic.encode()))
    return [*record, (NAME_OF[Request.DELIVER_AT], f"{NO_TIMER}{reason}".encode())]


def rejection_in(headers: Iterable[tuple[str, bytes | None]]) -> str | None:
    """The reason in `rejected_headers`; None in other headers."""
    value = dict(headers).get(NAME_OF[Request.DELIVER_AT]) or b""
    return value.decode(errors="replace") if value.startswith(NO_TIMER.encode()) else None


def _last_ms(expires_at: datetime | int, when: DueTime | RecurringTime, due_ms: int | None) -> int:
    if isinstance(when, RecurringTime):
        raise InvalidTimer("a recurring timer ends by `ends`, not by expires_at")
    last_ms = instant_ms(expires_at, "expires_at")
    if due_ms is not None and last_ms < due_ms:
        raise InvalidTimer(
            f"the timer expires at {utc_text(last_ms)}, before it is due at {utc_text(due_ms)}"
        )
    return last_ms


def _if_pending_header(
    given: IfPending, when: DueTime | RecurringTime, id: str | None
) -> NonNullHeader:
    if given not in IF_PENDING_WORDS:
        raise InvalidTimer(f"if_pending={given!r} is neither {' nor '.join(IF_PENDING_WORDS)}")
    if id is None:
        raise InvalidTimer("if_pending needs the id by which the pending timer is found")
    if given == "keep" and isinstance(when, RecurringTime):
        raise InvalidTimer('a recurring timer cannot be given if_pending="keep"')
    return NAME_OF[Request.IF_PENDING], given.encode()


def require_consistent(
    when: DueTime | RecurringTime, id: str | None, window: timedelta | str | None
) -> None:
    """Refuses a recurring timer without an id of its length, or with a window."""
    if isinstance(when, RecurringTime):
        require_name(id)
        if window is not None:
            raise InvalidTimer("a recurring timer has no window: jitter spreads it")


def require_message(key: object, value: object) -> None:
    """Refuses a message that kafka-python cannot write."""
    if key is None and value is None:
        raise InvalidTimer("give a value, or a key: a message needs one of them")


def non_null_headers(given: Sequence[tuple[str, bytes | None]]) -> list[NonNullHeader]:
    """Returns the headers of a pending timer's message.

    Raises:
        InvalidTimer: one is null.
    """
    headers = [(name, value) for name, value in given if value is not None]
    if len(headers) < len(given):
        raise InvalidTimer(
            "the timer has a null header, which this client cannot write again: cancel it, and "
            "schedule a new one"
        )
    return headers


def users(headers: Iterable[NonNullHeader], instead: str = _BY_ARGUMENT) -> list[NonNullHeader]:
    """Checks a user's headers, which must not be requests, and drops those of a delivery."""
    given = list(headers)
    if any(name == SOURCE for name, _ in given):
        given = [header for header in given if header[0] not in ADDED]
    refuse(given, REQUEST.keys() - ADDED | {TIMER_ID}, instead)
    return given


def only(handle: RecallHandle | None) -> list[NonNullHeader]:
    """Makes the header that selects one of the timers with an id; none: all of them."""
    return [] if handle is None else [(NAME_OF[Request.CANCEL_OFFSET], b"%d" % handle.offset)]


def target(topic: str, partition: int | None, timer_topic: str) -> list[NonNullHeader]:
    """Makes the headers of the target."""
    if not may_name_topic(topic):
        raise InvalidTimer(f"the target {topic!r} is no topic name: 1 to 249 of a-z A-Z 0-9 . _ -")
    if topic == timer_topic:
        raise InvalidTimer(f'the target "{topic}" is the timer topic itself')
    aimed = [(NAME_OF[Request.TARGET_TOPIC], topic.encode())]
    if partition is not None:
        aimed.append((NAME_OF[Request.TARGET_PARTITION], b"%d" % checked(partition)))
    return aimed


def checked(partition: int) -> int:
    """A partition's number.

    Raises:
        InvalidTimer: it is none.
    """
    if not whole(partition) or not 0 <= partition < PARTITIONS_MAX:
        text = f"partition {partition!r} is not a whole number from 0 to {PARTITIONS_MAX - 1}"
        raise InvalidTimer(text)
    return partition


def refuse(
    headers: Iterable[NonNullHeader], reserved: set[str], instead: str = _BY_ARGUMENT
) -> None:
    """Refuses headers with a reserved name.

    Raises:
        InvalidTimer: names the first of them.
    """
    for name, _ in headers:
        if name in reserved:
            raise InvalidTimer(f"the header {name} is reserved: {instead}")
