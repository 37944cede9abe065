"""The steps of a change of a schedule, for commands and for the server.

A change waits for ingest before and after it, and looks again for a copy that may be on its way. A
command's thread waits; the server's waits hold none. So the steps await the calls of a `StepCalls`
and nothing else, and `completed` runs those of a command.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine, Iterable
from functools import partial
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from duewheel.api.schedules import NewSchedule, ScheduleSummary
from duewheel.config.settings import Settings
from duewheel.deadline import polled
from duewheel.ops.changes.timer_writer import TimerWriter
from duewheel.ops.named_timer_topic import timer_topic_of
from duewheel.ops.schedules import changes, listing, read_before_change
from duewheel.ops.schedules.changes import WrittenSchedule
from duewheel.ops.schedules.read_before_change import LogEnds

READ_S = 5.0  # the longest wait for ingest to read the records before a change

P = ParamSpec("P")
T = TypeVar("T")


class StepCalls(Protocol):
    """How a command, or the server, makes the calls of a change."""

    @property
    def settings(self) -> Settings: ...

    async def read_kafka(self, call: Callable[[Settings], T]) -> T:
        """Makes a call that reads from Kafka."""
        ...

    async def write(self, call: Callable[[TimerWriter], T]) -> T:
        """Makes a call that writes records made from the shard's files."""
        ...

    async def until(self, is_so: Callable[[Settings], bool], within_s: float) -> bool:
        """Waits until it is so, within the time; returns whether it is."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Waits."""
        ...


class BlockingCalls:
    """Those of a command: each returns once it is made."""

    def __init__(self, writer: TimerWriter) -> None:
        self._writer, self.settings = writer, writer.settings

    async def read_kafka(self, call: Callable[[Settings], T]) -> T:
        return call(self.settings)

    async def write(self, call: Callable[[TimerWriter], T]) -> T:
        return call(self._writer)

    async def until(self, is_so: Callable[[Settings], bool], within_s: float) -> bool:
        return polled(partial(is_so, self.settings), within_s)

    @staticmethod
    async def sleep(seconds: float) -> None:
        time.sleep(seconds)  # noqa: ASYNC251 - in no event loop


def completed(steps: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine that awaits only calls that block, and returns its result.

    Without an event loop: that would hold a Ctrl-C until the present call returns.
    """
    try:
        steps.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    raise AssertionError("a call has not blocked")


def read_patiently(read: Callable[[], T]) -> T:
    """Calls a read of one schedule, and again after each pause while there is none."""

    async def made() -> T:
        return read()

    return completed(listing.patiently(made, listing.READ_PAUSES_S, BlockingCalls.sleep))


async def change(
    calls: StepCalls,
    make: Callable[Concatenate[TimerWriter, str, str, LogEnds, P], T],
    name: str,
    timer_topic: str | None,
    *args: P.args,
    **named: P.kwargs,
) -> T:
    """Makes a change of `changes.py`, once ingest has read the records before it.

    Args:
        make: the change; `args` and `named` are arguments of it.
        name: the schedule's.
        timer_topic: by default the first of `timer.topics`.
    """
    topic = timer_topic_of(calls.settings, timer_topic)
    ends = await ends_to_change(calls, [topic])

    def made(writer: TimerWriter) -> T:
        return make(writer, name, topic, ends, *args, **named)

    return await listing.patiently(partial(calls.write, made), listing.CHANGE_PAUSES_S, calls.sleep)


async def put(calls: StepCalls, name: str, new: NewSchedule) -> WrittenSchedule:
    """Sets a schedule, or replaces the one of this name: as `change`."""
    ends = await ends_to_change(calls, [timer_topic_of(calls.settings, new.timer_topic)])

    def written(writer: TimerWriter, *, may_add: bool = False) -> WrittenSchedule:
        return changes.put(writer, name, new, ends, may_add=may_add)

    replace = partial(calls.write, written)
    add = partial(calls.write, partial(written, may_add=True))
    return await listing.patiently(replace, listing.READ_PAUSES_S, calls.sleep, add)


async def applied(calls: StepCalls, written: WrittenSchedule, wait_s: float) -> ScheduleSummary:
    """Waits for ingest, and returns the schedule; `applied`: whether ingest has taken it."""
    return written.with_applied(await calls.until(written.is_taken, wait_s))


async def ends_to_change(calls: StepCalls, topics: Iterable[str]) -> LogEnds:
    """Reads the ends of timer topics, and waits for ingest to read up to them, READ_S at most."""
    ends = await calls.read_kafka(lambda settings: read_before_change.log_ends(settings, topics))
    await calls.until(lambda settings: read_before_change.has_read(settings, ends), READ_S)
    return ends
