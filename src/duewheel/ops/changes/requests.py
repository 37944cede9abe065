"""Writes timers, cancels and reschedules: for the commands of these names, and `duewheel serve`."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from duewheel.api.changes import Answered, RescheduledTimer, Scheduled
from duewheel.api.due_time import NonNullHeader
from duewheel.api.requests import (
    DueTimeFields,
    KeyedTimers,
    NamedTimers,
    NewTimer,
    Replacement,
    octets,
)
from duewheel.client import SAME, DelayProducer, Timer
from duewheel.client.request_headers import require_message, timer_headers
from duewheel.config.settings import Settings
from duewheel.config.values import as_millis
from duewheel.errors import ConfigError
from duewheel.ops.changes.acceptance import require_accepted
from duewheel.ops.changes.producer_pool import ACKNOWLEDGED_S
from duewheel.ops.changes.timer_writer import TimerWriter
from duewheel.ops.changes.written import WrittenChange, acknowledged, result_of
from duewheel.ops.named_timer_topic import decoded_handle, timer_topic_of

TimerCall = Callable[[DelayProducer], Future[Timer]]  # writes one timer


def send(writer: TimerWriter, timer: NewTimer) -> Scheduled:
    """Writes the timer and waits for Kafka's acknowledgement.

    Raises:
        ConfigError: ingest would refuse it, or a header is reserved.
        KafkaUnavailable: no broker answers; nothing was written.
        Unacknowledged: the timer may or may not have been written.
    """
    to, write = prepared(writer, timer)
    with writer.producer(to) as producer:
        return result_of(Scheduled, write(producer).result(ACKNOWLEDGED_S))


def prepared(writer: TimerWriter, timer: NewTimer) -> tuple[str, TimerCall]:
    """Checks a new timer as `send`, and returns its timer topic and the call that writes it."""
    settings, now_ms = writer.settings, writer.clock.now_ms()
    to, record = record_headers(settings, timer, now_ms)
    key, value = timer.key_octets, timer.value_octets
    require_accepted(settings, to, key, value, record, now_ms)
    return to, lambda producer: producer.schedule(
        timer.topic, value, key=key, **_choices(timer), **timer.due.arguments
    )


def record_headers(
    settings: Settings, timer: NewTimer, now_ms: int
) -> tuple[str, list[NonNullHeader]]:
    """A new timer's topic, and the headers of its record. Raises as `send`."""
    to = timer_topic_of(settings, timer.timer_topic)
    require_due(settings, timer, now_ms)
    require_message(timer.key_octets, timer.value_octets)
    due_ms = timer.due.due_ms(now_ms, settings.timer.levels_ms)
    return to, timer_headers(timer.topic, timer.due, to, **_choices(timer), due_ms=due_ms)


def _choices(timer: NewTimer) -> dict[str, Any]:
    """The arguments that `schedule` of a producer and `timer_headers` have in common."""
    names = ("window", "tag", "id", "partition", "if_pending")
    same = {name: getattr(timer, name) for name in names}
    return {"headers": timer.header_octets, "expires_at": timer.last_instant, **same}


def cancel(writer: TimerWriter, timer: NamedTimers, *, reply: bool) -> WrittenChange[Answered]:
    """Writes the cancel; `reply`: its reply is awaited, if a reply topic is configured.

    Raises:
        ConfigError: the handle does not fit these settings.
        KafkaUnavailable: no broker answers, or the reply topic cannot be read; nothing was written.
        Unacknowledged: the cancel may or may not have been written.
    """
    with writer.producer(topic_of(writer.settings, timer)) as producer:
        request = producer.cancel(
            timer.name, key=timer.key_octets, partition=timer.partition, reply=reply
        )
        return acknowledged(Answered, request)


def reschedule(
    writer: TimerWriter,
    timer: KeyedTimers,
    new: Replacement,
    *,
    reply: bool,
) -> WrittenChange[RescheduledTimer]:
    """Writes the new timer; `reply` as for `cancel`.

    Raises:
        ConfigError: as `cancel`, or the message cannot be read back.
        KafkaUnavailable, Unacknowledged: as `cancel`.
    """
    settings, now_ms = writer.settings, writer.clock.now_ms()
    require_due(settings, new, now_ms)
    to, headers = topic_of(settings, timer), new.header_octets
    value, key = octets("value", new.value, None), timer.key_octets
    if new.topic is not None:
        record = timer_headers(new.topic, new.due, to, headers=headers)
        require_accepted(settings, to, key, value, record, now_ms)
    with writer.producer(to) as producer:
        request = producer.reschedule(
            timer.name,
            topic=new.topic,
            value=SAME if value is None else value,
            key=key,
            headers=headers,
            reply=reply,
            **new.due.arguments,
        )
        return acknowledged(RescheduledTimer, request)


def topic_of(settings: Settings, timer: KeyedTimers) -> str:
    """The topic of named timers.

    Raises:
        ConfigError: the handle does not parse, or its topic is another one than the given one, or
            no timer topic of these settings.
    """
    if timer.handle is None:
        return timer_topic_of(settings, timer.timer_topic)
    # A damaged handle must not pass for an id: a replacement would leave the timer and add another.
    topic = decoded_handle(settings, timer.handle).timer_topic
    if timer.timer_topic is not None and timer_topic_of(settings, timer.timer_topic) != topic:
        raise ConfigError(f"the handle names the timer topic {topic}: give no other")
    return topic


def require_due(settings: Settings, fields: DueTimeFields, now_ms: int) -> None:
    """Refuses a due time that ingest would refuse, before a broker is contacted."""
    timer = settings.timer
    fields.due.require_within(timer.levels_ms, as_millis(timer.max_delay), now_ms)
