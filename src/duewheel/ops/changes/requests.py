"""Writes timers, cancels and reschedules with a DelayProducer: for the commands of these names, and
for `duewheel serve`.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from duewheel.api.changes import Answered, RescheduledTimer, Scheduled
from duewheel.api.due_time import NonNullHeader
from duewheel.api.model import Result
from duewheel.api.requests import DueTimeFields, NamedTimers, NewTimer, Replacement, octets
from duewheel.client import SAME, DelayProducer, Timer
from duewheel.client.futures import AcknowledgedRecord
from duewheel.client.handle import RecallHandle
from duewheel.client.request_headers import require_message, timer_headers
from duewheel.clock import SystemClock
from duewheel.config.nearest_name import nearest
from duewheel.config.settings import Settings
from duewheel.config.values import as_millis
from duewheel.errors import ConfigError
from duewheel.ops.changes.acceptance import require_accepted
from duewheel.ops.changes.producers import ACKNOWLEDGED_S, KeptProducers, answered, producer_of

R = TypeVar("R", bound=Result)


def send(settings: Settings, timer: NewTimer, producers: KeptProducers | None = None) -> Scheduled:
    """Writes the timer and waits for Kafka's acknowledgement.

    Raises:
        ConfigError: ingest would refuse it, or a header is reserved.
        KafkaUnavailable: no broker answers; nothing was written.
        Unacknowledged: the timer may or may not have been written.
    """
    to, write = prepared(settings, timer)
    with producer_of(settings, to, None, producers) as producer:
        return result_of(Scheduled, write(producer).result(ACKNOWLEDGED_S))


def prepared(
    settings: Settings, timer: NewTimer
) -> tuple[str, Callable[[DelayProducer], Future[Timer]]]:
    """Checks a new timer as `send`, and returns its timer topic and the call that writes it."""
    to, record = record_headers(settings, timer)
    key, value, headers = timer.key_octets, timer.value_octets, timer.header_octets
    require_accepted(settings, to, key, value, record)
    return to, lambda producer: producer.schedule(
        timer.topic,
        value,
        key=key,
        headers=headers,
        window=timer.window,
        tag=timer.tag,
        id=timer.id,
        partition=timer.partition,
        **timer.due.arguments,
    )


def record_headers(settings: Settings, timer: NewTimer) -> tuple[str, list[NonNullHeader]]:
    """Returns a new timer's topic, and the headers of its record. Raises as `send`."""
    to = timer_topic_of(settings, timer.timer_topic)
    require_due(settings, timer)
    require_message(timer.key_octets, timer.value_octets)
    return to, timer_headers(
        timer.topic,
        timer.due,
        to,
        headers=timer.header_octets,
        window=timer.window,
        tag=timer.tag,
        id=timer.id,
        partition=timer.partition,
    )


def cancel(
    settings: Settings,
    timer: NamedTimers,
    wait_s: float | None,
    waits_on: Callable[[], bool] = lambda: False,
    producers: KeptProducers | None = None,
) -> Answered:
    """Writes the cancel, and waits for the reply if a reply topic is configured.

    Args:
        wait_s: the longest wait for the reply; None: do not wait.
        waits_on: called at the end of a wait: whether to wait for as long once more.

    Raises:
        ConfigError: the handle does not fit these settings.
        KafkaUnavailable: no broker answers, or the reply topic cannot be read; nothing was written.
        Unacknowledged: the cancel may or may not have been written.
    """
    with producer_of(settings, topic_of(settings, timer), wait_s, producers) as producer:
        request = producer.cancel(
            timer.name, key=timer.key_octets, partition=timer.partition, reply=wait_s is not None
        )
        written, answer = answered(request, wait_s, waits_on)
        return result_of(Answered, written, answer=answer)


def reschedule(
    settings: Settings,
    timer: NamedTimers,
    new: Replacement,
    wait_s: float | None,
    waits_on: Callable[[], bool] = lambda: False,
) -> RescheduledTimer:
    """Writes the new timer, and waits for the reply as `cancel` does.

    Raises:
        ConfigError: as `cancel`, or the message cannot be read back.
        KafkaUnavailable, Unacknowledged: as `cancel`.
    """
    require_due(settings, new)
    to, headers = topic_of(settings, timer), new.header_octets
    value, key = octets("value", new.value, None), timer.key_octets
    if new.topic is not None:
        record = timer_headers(new.topic, new.due, to, headers=headers)
        require_accepted(settings, to, key, value, record)
    with producer_of(settings, to, wait_s) as producer:
        request = producer.reschedule(
            timer.name,
            topic=new.topic,
            value=SAME if value is None else value,
            key=key,
            headers=headers,
            reply=wait_s is not None,
            **new.due.arguments,
        )
        written, answer = answered(request, wait_s, waits_on)
        return result_of(RescheduledTimer, written, answer=answer)


def topic_of(settings: Settings, timer: NamedTimers) -> str:
    """Returns the topic of named timers.

    Raises:
        ConfigError: the handle does not parse, or its topic is no timer topic of these settings.
    """
    if timer.handle is None or timer.timer_topic is not None:
        return timer_topic_of(settings, timer.timer_topic)
    topic = RecallHandle.decode(timer.handle).timer_topic
    if topic not in settings.timer_topics:
        raise ConfigError(f'the recall handle names "{topic}", which is no timer topic')
    return topic


def timer_topic_of(settings: Settings, given: str | None) -> str:
    """Returns the timer topic that a caller names; by default the first.

    Raises:
        ConfigError: there is none, or no such one.
    """
    if given is None and not settings.timer.topics:
        raise ConfigError("timer.topics names none: name the timer topic")
    if given is not None and given not in settings.timer_topics:
        hint = nearest(given, settings.timer.topics)
        raise ConfigError(f'"{given}" is no timer topic of these settings{hint}')
    return given or settings.timer.topics[0]


def require_due(settings: Settings, fields: DueTimeFields) -> None:
    """Refuses a due time that ingest would refuse, before a broker is contacted."""
    timer, now_ms = settings.timer, SystemClock().now_ms()
    fields.due.require_within(timer.levels_ms, as_millis(timer.max_delay), now_ms)


def result_of(kind: type[R], written: AcknowledgedRecord, **others: object) -> R:
    """Makes a result of the attributes of a written record, and of other fields."""
    fields = {name: getattr(written, name) for name in kind.model_fields if name not in others}
    return kind(**fields, **others)
