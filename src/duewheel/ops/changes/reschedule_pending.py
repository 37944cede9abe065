"""Changes of one pending timer: another due time, and firing now.

The timer and its message are read from the mapped files; the change is a record in the timer topic,
like any client's. The timer may leave between the two: the reply says so.
"""

from __future__ import annotations

from duewheel.api.changes import ReplacedPending
from duewheel.api.due_time import DUE_NOW, DueTime
from duewheel.api.requests import DueTimeFields
from duewheel.client.message_reader import CHANGE_RECURRING
from duewheel.client.request_headers import non_null_headers, timer_headers
from duewheel.config.settings import Settings
from duewheel.errors import Conflict
from duewheel.ops.changes.acceptance import require_accepted
from duewheel.ops.changes.requests import require_due
from duewheel.ops.changes.timer_writer import TimerWriter
from duewheel.ops.changes.written import WrittenChange, acknowledged
from duewheel.ops.files import open_state, require_recovered
from duewheel.ops.timers.pending import handle_of, pending_by_handle, source_of
from duewheel.wheel.inspect.listing import PendingTimer

LEAVES_SOON_MS = 5_000


def reschedule_pending(
    writer: TimerWriter, handle: str, new: DueTimeFields, *, reply: bool
) -> WrittenChange[ReplacedPending] | None:
    """Replaces a pending timer by one with the same message and another due time.

    Returns:
        As `requests.reschedule`; None if no such timer is pending.

    Raises:
        Conflict: it is cancelled.
        RecoveryPending: its cancel may be read again yet.
        ConfigError, KafkaUnavailable, Unacknowledged: as `requests.reschedule`.
    """
    require_due(writer.settings, new, writer.clock.now_ms())
    timer = _changeable(writer.settings, handle)
    return None if timer is None else _replace(writer, timer, new.due, reply=reply)


def fire(writer: TimerWriter, handle: str, *, reply: bool) -> WrittenChange[ReplacedPending] | None:
    """Makes a pending timer due now; returns and raises as `reschedule_pending`.

    Raises:
        Conflict: also: it leaves soon by itself, and could be delivered twice.
    """
    timer = _changeable(writer.settings, handle)
    if timer is None:
        return None
    # Its slot may be closed before ingest has the cancel: both timers would be delivered.
    if not timer.rolled and timer.leaves_ms - writer.clock.now_ms() < LEAVES_SOON_MS:
        raise Conflict("the timer leaves within seconds by itself: wait for it")
    return _replace(writer, timer, DUE_NOW, reply=reply)


def _changeable(settings: Settings, handle: str) -> PendingTimer | None:
    with open_state(settings) as state:
        require_recovered(state)
    timer = pending_by_handle(settings, handle)
    if timer is not None and timer.cancelled:
        raise Conflict("the timer is cancelled: schedule a new one")
    return timer


def _replace(
    writer: TimerWriter, timer: PendingTimer, due: DueTime, *, reply: bool
) -> WrittenChange[ReplacedPending]:
    topic, handle = source_of(timer)[0], handle_of(timer)
    if handle is None:
        raise Conflict("it is a dead letter, without a due time: replay it once it has left")
    if timer.recurring:
        raise Conflict(f"the timer is {CHANGE_RECURRING}")
    headers = non_null_headers(timer.headers)
    partition = timer.target_partition
    record = timer_headers(timer.target, due, topic, headers=headers, partition=partition)
    now_ms = writer.clock.now_ms()
    require_accepted(writer.settings, topic, timer.key, timer.value, record, now_ms)
    with writer.producer(topic) as producer:
        request = producer.reschedule(
            handle,
            topic=timer.target,
            value=timer.value,
            key=timer.key,
            headers=headers,
            partition=partition,
            timer_topic=topic,
            reply=reply,
            **due.arguments,
        )
        return acknowledged(ReplacedPending, request, former_due_ms=timer.due_ms)
