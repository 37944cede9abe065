"""Requests for another shard, answered by the server of its owner.

Each is sent as it came, with its token, and judged there. The owners are those that the servers of
`serve.shards` name (fleet.py); after FRESH_S, and when one cannot be connected to, they are asked
again: a standby may have taken over. So are they for a shard whose owner no server has named: it
may have refused the token of the request before.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from functools import partial
from http.client import HTTPConnection, HTTPException
from typing import NamedTuple

from duewheel.api.fleet import Fleet
from duewheel.clock import Clock
from duewheel.config.settings import Settings
from duewheel.errors import DuewheelError, Problem, Unacknowledged
from duewheel.ops.changes.producer_pool import ACKNOWLEDGED_S
from duewheel.ops.connection import ANSWER_S
from duewheel.ops.shard.present_files import PresentFilesWatch
from duewheel.serve.fleet import read_fleet
from duewheel.serve.server_connection import body_of, connected, http_over, reason_of
from duewheel.serve.waits import WAIT_MAX_S

# Between two parts of an answer, and longer than the owner waits for Kafka: a client without answer
# would repeat a change in progress. A change has two records beside its own, and its reply.
READ_S = ANSWER_S + 10
CHANGE_S = ANSWER_S + 3 * ACKNOWLEDGED_S + WAIT_MAX_S + 10
FRESH_S = 10.0
_SAFE = "GET"
# With those that name a person (serve.user_headers).
_SENT_ON = frozenset({"authorization", "content-type", "accept"})


class ShardAbsent(DuewheelError):
    """The server of a shard's owner is not known, or cannot be connected to. Nothing was sent."""

    problem = Problem(503, "shard_absent")


class ForwardedRequest(NamedTuple):
    """A request; `target`: path and query, as they came."""

    method: str
    target: str
    headers: Sequence[tuple[str, str]]
    body: bytes


class ForwardedAnswer(NamedTuple):
    """The answer to it; `headers` by their names in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class OtherShards:
    """For any threads."""

    def __init__(self, settings: Settings, clock: Clock, files: PresentFilesWatch) -> None:
        self._read_fleet = partial(read_fleet, settings, clock, files)
        people = (each.lower() for each in settings.serve.user_headers.values())
        self._sent_on = _SENT_ON.union(people)
        self._lock = threading.Lock()  # of the two below
        self._owners: dict[int, str] = {}
        self._fresh_until_s = 0.0

    def fleet(self, authorization: str | None) -> Fleet:
        """Asks all servers for their shards, as `read_fleet`, and remembers the owners."""
        found = self._read_fleet(authorization)
        with self._lock:
            self._owners = _owners_of(found)
            self._fresh_until_s = time.monotonic() + FRESH_S
        return found

    def ask(self, shard: int, request: ForwardedRequest) -> ForwardedAnswer:
        """Sends a request to the server of a shard.

        Raises:
            ShardAbsent: nothing was sent; or there is no answer to a read.
            Unacknowledged: there is no answer to a change.
        """
        url = self._owner(shard, request)
        with ExitStack() as stack:
            try:
                server = stack.enter_context(closing(connected(url)))
                connection = http_over(server, url)
            except OSError as error:
                with self._lock:
                    self._fresh_until_s = 0.0
                raise ShardAbsent(f"shard {shard}: {url}: {reason_of(error)}") from error
            server.settimeout(READ_S if request.method == _SAFE else CHANGE_S)
            try:
                return self._answer(connection, request)
            except (OSError, HTTPException) as error:
                reason = f"shard {shard}: {url} has not answered: {reason_of(error)}"
                if request.method == _SAFE:
                    raise ShardAbsent(reason) from error
                raise Unacknowledged(f"{reason}: it may have made the change") from error

    def _owner(self, shard: int, request: ForwardedRequest) -> str:
        with self._lock:
            if time.monotonic() < self._fresh_until_s and shard in self._owners:
                return self._owners[shard]
        given = [value for name, value in request.headers if name.lower() == "authorization"]
        found = self.fleet(given[0] if given else None)
        owners = _owners_of(found)
        if shard not in owners:
            raise ShardAbsent(why_absent(shard, found))
        return owners[shard]

    def _answer(self, connection: HTTPConnection, request: ForwardedRequest) -> ForwardedAnswer:
        connection.putrequest(request.method, request.target, skip_accept_encoding=True)
        for name, value in request.headers:
            if name.lower() in self._sent_on:
                connection.putheader(name, value)
        connection.putheader("Content-Length", str(len(request.body)))
        connection.endheaders(request.body)
        with connection.getresponse() as answer:
            body = body_of(answer)
            headers = {name.lower(): value for name, value in answer.getheaders()}
        return ForwardedAnswer(answer.status, headers, body)


def why_absent(shard: int, fleet: Fleet) -> str:
    """Why the server of a shard's owner is not known: any that has not answered may be it."""
    text = f"no server of serve.shards has answered for the owner of shard {shard}"
    errors = [f"{each.url}: {each.error}" for each in fleet.members if each.url and each.error]
    return f"{text} ({'; '.join(errors)})" if errors else text


def _owners_of(fleet: Fleet) -> dict[int, str]:
    return {
        each.status.shard: each.url
        for each in fleet.members
        if each.url is not None and each.status is not None and each.status.role == "owner"
    }
