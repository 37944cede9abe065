"""Which timer topics a request touches, and whether its token is for these: decided here alone.

Each operation has one of DECISIONS as a dependency (a test walks over all operations), and gets
handle, body or names from it. A token without a scope is for everything. With one, an operation is

    of one timer topic      that of the URL, the body or the handle must be in the scope
    a search                `Scoped`: it finds only timers of the scope
    of all timers           refused: a count, or the one position of all replays, has no parts
    of none                 open: the condition of the shard, without ids and keys, as in /metrics
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from http import HTTPStatus
from typing import Annotated

from fastapi import Depends, Path

from duewheel.api.requests import NewTimer, Topic
from duewheel.api.schedules import NewSchedule
from duewheel.api.shard import PausedKind
from duewheel.api.topics import ALL_TOPICS, TopicScope
from duewheel.errors import InvalidTimer, NoSuchSchedule
from duewheel.ops.named_timer_topic import decoded_handle
from duewheel.serve.access import Caller, Calling
from duewheel.serve.problems import Refused
from duewheel.serve.service import Service, Shared
from duewheel.serve.url_names import Handle, TimerTopic


async def of_handle(caller: Calling, service: Shared, handle: Handle) -> str:
    """Of the timer topic of a handle."""
    if caller.scope != ALL_TOPICS:
        _require(caller, decoded_handle(service.settings, handle).timer_topic)
    return handle


async def of_timer_topic(
    caller: Calling, service: Shared, timer_topic: TimerTopic = None
) -> AsyncIterator[str | None]:
    """Of the timer topic of the URL."""
    _require(caller, _or_first(service, timer_topic))
    try:
        yield timer_topic
    except NoSuchSchedule as error:
        # Its hint names timer topics beyond the scope.
        raise error if caller.scope == ALL_TOPICS else NoSuchSchedule(error.text) from None


async def of_new_timer(caller: Calling, service: Shared, timer: NewTimer) -> NewTimer:
    """Of the timer topic of a new timer."""
    _require(caller, _or_first(service, timer.timer_topic))
    return timer


async def of_new_schedule(
    caller: Calling, service: Shared, new: NewSchedule, timer_topic: TimerTopic = None
) -> NewSchedule:
    """Of the timer topic of a new schedule: that of the URL, or of the body."""
    if timer_topic is not None:
        if new.timer_topic not in {None, timer_topic}:
            raise InvalidTimer("the URL has another timer_topic than the body")
        new = new.model_copy(update={"timer_topic": timer_topic})
    _require(caller, _or_first(service, new.timer_topic))
    return new


async def of_pause(
    caller: Calling, kind: Annotated[PausedKind, Path()], name: Topic
) -> tuple[PausedKind, str]:
    """Of a timer topic; a target or a tag is of the timers of all of them."""
    _require(caller, name if kind == "timer-topic" else None)
    return kind, name


async def of_all(caller: Calling) -> None:
    """Of all timers."""
    _require(caller, None)


async def of_none() -> None:
    """Of no timer."""


async def of_search(caller: Calling) -> TopicScope:
    """Of the timers in the scope."""
    return caller.scope


DECISIONS = frozenset(
    {of_handle, of_timer_topic, of_new_timer, of_new_schedule, of_pause, of_all, of_none, of_search}
)
# The parts of a request, once it is decided.
OwnHandle = Annotated[str, Depends(of_handle)]
OwnTimerTopic = Annotated[str | None, Depends(of_timer_topic)]
OwnTimer = Annotated[NewTimer, Depends(of_new_timer)]
OwnSchedule = Annotated[NewSchedule, Depends(of_new_schedule)]
OwnSelection = Annotated[tuple[PausedKind, str], Depends(of_pause)]
Scoped = Annotated[TopicScope, Depends(of_search)]
OF_ALL, OF_NONE = [Depends(of_all)], [Depends(of_none)]


def _or_first(service: Service, given: str | None) -> str | None:
    """The timer topic of a request; None: the settings name none, and it is refused later."""
    topics = service.settings.timer.topics
    return given if given is not None else next(iter(topics), None)


def _require(caller: Caller, topic: str | None) -> None:
    """Refuses a timer topic, or None for all, beyond the scope."""
    scope = caller.scope
    if scope == ALL_TOPICS or (topic is not None and topic in scope):
        return
    touched = "all timer topics" if topic is None else topic
    text = f"the token {caller.name} is for {', '.join(scope.patterns)}, and this is of {touched}"
    raise Refused(HTTPStatus.FORBIDDEN, "out_of_scope", text)
