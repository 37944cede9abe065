"""A bulkhead: threads for some kinds of calls, which so take none from calls of other kinds, and
a bound on the requests that wait for them. service.py has all of them.

One caller (access.py) never has all threads of a bulkhead, unless it has only one, and its requests
wait in a line of their own, so they delay no others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import partial
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

from anyio import CapacityLimiter

from duewheel.config.settings import Settings
from duewheel.errors import CorruptFile, RecoveryPending, Unacknowledged
from duewheel.ops.files import files_identity
from duewheel.serve.access import Caller, admitted_caller
from duewheel.serve.problems import Stopping, busy
from duewheel.threads import beside

P = ParamSpec("P")
S = TypeVar("S")
T = TypeVar("T")


class AtStop(Enum):
    """How a stop of the server treats a call that has begun."""

    WAITS = auto()  # waits for it
    AGAIN = auto()  # ends its wait: the request can be sent again
    DOUBT = auto()  # ends its wait: it may have written


@dataclass(frozen=True)
class Bulkhead:
    """See the module's head.

    Attributes:
        waiting_max: further requests of a caller are refused: those for one bulkhead must not take
            the room of all others.
    """

    settings: Settings
    stop: asyncio.Event  # of the server
    threads: CapacityLimiter
    waiting_max: int
    _lines: dict[str, CapacityLimiter] = field(default_factory=dict)  # by the caller's name

    def line_of(self, caller: Caller) -> CapacityLimiter:
        """Limits the threads that this caller has at a time."""
        if caller.name not in self._lines:
            most = max(1, int(self.threads.total_tokens) - 1)
            self._lines[caller.name] = CapacityLimiter(most)
        return self._lines[caller.name]

    def lane(
        self, first: S, at_stop: AtStop, require_files: Callable[[], None] | None = None
    ) -> Lane[S]:
        """Calls of one kind. `require_files`: of calls that read the shard's files; it refuses each
        unless they are the present ones.
        """
        return Lane(self, first, at_stop, require_files)


@dataclass(frozen=True)
class Lane(Generic[S]):
    """Calls with the same first argument; made by `Bulkhead.lane`."""

    bulkhead: Bulkhead
    first: S
    at_stop: AtStop
    require_files: Callable[[], None] | None

    async def __call__(
        self, call: Callable[Concatenate[S, P], T], *args: P.args, **named: P.kwargs
    ) -> T:
        """Runs a call in a thread of its own, and returns its result.

        Raises:
            Refused: too many of the caller wait already.
            Stopping: the server stops: the call has not begun, or can be repeated.
            Unacknowledged: the server stops, and the call may have written.
            NoDataDirectory: it needs files, and there are none yet.
            Unreadable: they are not of these settings, or not for this user.
            Reassigned: their partitions are other shards'.
            Fenced: another data directory has taken the shard over.
            KafkaUnavailable: a change by them, whose age is not known yet.
            RecoveryPending: they may be cut at any moment.
        """
        made = partial(call, self.first, *args, **named)
        threads, stop = self.bulkhead.threads, self.bulkhead.stop
        line = self.bulkhead.line_of(admitted_caller.get() or Caller())
        waiting = line.statistics().tasks_waiting
        if waiting >= self.bulkhead.waiting_max:
            raise busy(f"{waiting} such requests are waiting")
        async with line, threads:
            is_awaited = self.at_stop is AtStop.WAITS
            if stop.is_set() and not is_awaited:
                raise Stopping("the server stops: nothing was written")
            result = asyncio.wrap_future(beside("call", partial(self._checked, made)))
            ends: list[asyncio.Future[Any]] = []
            if not is_awaited:
                ends.append(asyncio.ensure_future(stop.wait()))
            try:
                await asyncio.wait({result, *ends}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for end in ends:
                    end.cancel()
            if result.done():
                return result.result()
            # Its error, if it ends with one, is no longer of interest.
            result.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
            if self.at_stop is AtStop.DOUBT:
                raise Unacknowledged("the server stops: it may or may not be written")
            raise Stopping("the server stops: send the request again")

    def _checked(self, call: Callable[[], T]) -> T:
        if self.require_files is None:
            return call()
        self.require_files()
        before = files_identity(self.bulkhead.settings)
        try:
            return call()
        except (CorruptFile, FileNotFoundError) as error:
            # No damage, if the files have been replaced or moved meanwhile.
            if files_identity(self.bulkhead.settings) != before:
                raise RecoveryPending("the files were replaced: try again") from error
            raise
