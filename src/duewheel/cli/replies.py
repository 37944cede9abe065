"""How long a command waits for a reply, or for ingest, and its output without one."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import click

from duewheel.api.changes import Answered, RescheduledTimer
from duewheel.cli.options import DURATION_MS, Command
from duewheel.cli.output import Printer, say
from duewheel.clock import SystemClock
from duewheel.config.settings import Settings
from duewheel.errors import ConfigError
from duewheel.ops.files import is_recovering, open_state
from duewheel.ops.shard.local_readiness import why_no_reply
from duewheel.ops.shard.processes import is_starting

DEFAULT_S = 10.0
_START_S = 60.0  # a reply is awaited so long while the processes start
_NO_REPLY_TOPIC = (
    "written, and takes effect; timer.reply_topic names no topic, so that no reply says whether it "
    "stopped a timer"
)


@dataclass(frozen=True, slots=True)
class ReplyWait:
    """The longest wait for a reply.

    Attributes:
        seconds: 0: the command does not wait.
        is_extended: it lasts until a start on this host has ended, and `seconds` beyond it.
    """

    seconds: float = DEFAULT_S
    is_extended: bool = True

    def goes_on(self, settings: Settings) -> Callable[[], bool]:
        """Makes the function that is called at the end of a wait: whether to wait once more."""
        return _StartOnHost(settings) if self.is_extended else lambda: False


class _StartOnHost:
    """Whether a start on this host lasts still, or has ended since the last call."""

    def __init__(self, settings: Settings) -> None:
        self._is_starting = partial(is_starting, settings)
        self._end_s = time.monotonic() + _START_S
        self._was_starting, self._is_announced = self._is_starting(), False

    def __call__(self) -> bool:
        before, self._was_starting = self._was_starting, self._is_starting()
        if time.monotonic() >= self._end_s or not (before or self._was_starting):
            return False
        if not self._is_announced:
            say(f"written; the shard is starting: waiting for the reply, {_START_S:g} s at most")
            self._is_announced = True
        return True


def with_wait(command: Command) -> Command:
    """Adds --wait and --no-wait, as the argument `wait`."""

    @click.option(
        "--wait",
        "wait_ms",
        type=DURATION_MS,
        help="the longest wait; by default 10s, from the end of a start on this host",
    )
    @click.option("--no-wait", is_flag=True, help="do not wait for the reply")
    @functools.wraps(command)
    def waiting(wait_ms: int | None, *, no_wait: bool, **others: Any) -> Any:
        if no_wait and wait_ms is not None:
            raise ConfigError("give either --wait or --no-wait")
        if no_wait:
            wait = ReplyWait(0, is_extended=False)
        else:
            wait = ReplyWait() if wait_ms is None else ReplyWait(wait_ms / 1000, is_extended=False)
        return command(wait=wait, **others)

    return waiting


def show_outcome(
    settings: Settings, result: Answered | RescheduledTimer, wait: ReplyWait, output: Printer
) -> int:
    """Prints the outcome of a request; returns the exit code."""
    output.show(result)
    answer = result.answer
    return end_of_reply_wait(settings, wait, late=answer is None, done=answer == "cancelled")


def end_of_reply_wait(settings: Settings, wait: ReplyWait, *, late: bool, done: bool) -> int:
    """Says why there is no reply; returns the exit code.

    Args:
        late: a reply that was awaited has not come.
        done: all that were awaited say "cancelled".
    """
    if not wait.seconds:
        return 0
    if settings.timer.reply_topic is None:
        say(_NO_REPLY_TOPIC)
        return 0
    if late:
        say(f"written, but no reply in time: it takes effect without one{why_late(settings)}")
    return 0 if done else 1


def say_what_keep_does(settings: Settings) -> None:
    """Prints that a timer with `keep` may have been dropped: no result of a client says so."""
    topic = settings.timer.reply_topic
    which = (
        "timer.reply_topic names no topic, so that no reply says which"
        if topic is None
        else f"the reply in {topic} says which"
    )
    say(
        "written; while an earlier timer with its id is pending in its partition, this one is "
        f"dropped (`kept`), else it is pending (`taken`): {which}"
    )


def say_if_missing(settings: Settings, target: str) -> None:
    """Prints that a target of a written timer does not exist yet."""
    from duewheel.ops.topics.targets import is_missing  # a list needs no client of Kafka

    if is_missing(settings, target):
        say(
            f"there is no topic {target!r} yet. `duewheel topic create {target}` makes it; until "
            "then a timer that is due becomes a dead letter"
        )


def say_if_recovering(settings: Settings) -> None:
    """Prints that pending timers may be missing in the files; called before these are read."""
    with open_state(settings) as state:
        if is_recovering(state):
            say(
                "the shard recovers, and still reads its timer topics again: pending timers may "
                "be missing here (see `duewheel status`)"
            )


def why_late(settings: Settings) -> str:
    """The reasons of the shard on this host, if there are any: the end of a sentence."""
    return "".join(f"; {reason}" for reason in why_no_reply(settings, SystemClock()))
