"""Waits for the effect of changes that are written: in the event loop, without a thread.

A producer that leaves a transaction open in a timer partition delays the effect of all changes in
it, so there may be any number of such waits. Beyond WAITS_MAX, or REPLIES_MAX, the one with the
most replies ends, and among these the longest: a change that takes effect soon has its answer.
The client of a wait that ends so learns that the change is written, and its effect still to come. A
wait also ends once its client has gone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from concurrent.futures import Future
from contextlib import suppress
from http import HTTPStatus
from typing import Any, TypeVar

from fastapi import Request, Response

from duewheel.api.model import Result
from duewheel.client import Answer
from duewheel.errors import DuewheelError
from duewheel.ops.changes.written import WrittenChange

T = TypeVar("T", bound=Result)

WAIT_S, WAIT_MAX_S = 5.0, 30  # of a request without `wait`, and at most
WAITS_MAX = 64  # of the requests that gate.py admits the other half is left for others
REPLIES_MAX = 20_000  # two kilobytes each; a cancel by filter awaits up to 10,000


class Waits:
    """See the module's head. Used by the thread of the event loop alone."""

    waits_max, replies_max = WAITS_MAX, REPLIES_MAX

    def __init__(self, stop: asyncio.Event) -> None:
        """`stop` ends all of them."""
        self._stop = stop
        # The number of replies of each, in the order in which they began.
        self._open: dict[asyncio.Future[None], int] = {}

    async def until(
        self,
        request: Request,
        effect: Coroutine[Any, Any, None],
        wait_s: float,
        replies: int = 1,
    ) -> bool:
        """Waits for an effect, and returns whether it has come.

        Args:
            request: the wait ends with its connection.
            effect: ends once it has come; it is cancelled if the wait ends before.
            wait_s: the longest wait.
            replies: how many are awaited.
        """
        bound = asyncio.get_running_loop().create_future()
        self._open[bound] = replies
        self._end_beyond_bounds()
        awaited, *ends = map(
            asyncio.ensure_future, (effect, _disconnected(request), self._stop.wait())
        )
        either = {awaited, bound, *ends}
        try:
            await asyncio.wait(either, timeout=wait_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._open.pop(bound, None)
            for each in either:
                each.cancel()
        if awaited.done():
            awaited.result()
        return awaited.done()

    async def replied(self, request: Request, written: WrittenChange[T], wait_s: float) -> T:
        """Waits for the replies to a change, and returns its result."""
        if written.replies:
            await self.until(request, all_of(written.replies), wait_s, len(written.replies))
        return written.result()

    def _end_beyond_bounds(self) -> None:
        while len(self._open) > self.waits_max or sum(self._open.values()) > self.replies_max:
            first_largest = max(self._open, key=self._open.__getitem__)
            del self._open[first_largest]
            first_largest.set_result(None)


async def all_of(replies: Sequence[Future[Answer]]) -> None:
    """Ends once all have come, or cannot be read."""
    for reply in replies:
        if not reply.done():
            with suppress(DuewheelError):
                await asyncio.wrap_future(reply)


def set_status(response: Response, *, in_effect: bool) -> None:
    """Makes the status 202 if the change is written and its effect still to come."""
    if not in_effect:
        response.status_code = HTTPStatus.ACCEPTED


async def _disconnected(request: Request) -> None:
    """Ends once the client has closed its connection."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
