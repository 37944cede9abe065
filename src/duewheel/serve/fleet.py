"""The shards of an app: each server that `serve.shards` names is asked for its status.

A server gets the token of the request that asks, so all of them need the same tokens. One that
answers slowly is cut off: another shard's trouble must not hold this shard's API.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import wait
from contextlib import closing, suppress
from functools import partial
from http import HTTPStatus
from http.client import HTTPException
from typing import NoReturn

from duewheel.api.fleet import Fleet, FleetMember, FleetShard
from duewheel.clock import Clock
from duewheel.config.settings import Settings
from duewheel.errors import DuewheelError
from duewheel.ops.shard.present_files import PresentFilesWatch
from duewheel.ops.shard.status import read_status
from duewheel.serve.server_connection import body_of, connected, detail_of, http_over, reason_of
from duewheel.threads import beside

ANSWER_S = 2.0  # of all servers


class _Unanswered(DuewheelError):
    """The message says why there is no status."""


def read_fleet(
    settings: Settings, clock: Clock, files: PresentFilesWatch, authorization: str | None
) -> Fleet:
    """Asks each server for its shard; without `serve.shards` there is this shard alone.

    Args:
        authorization: the header of the request, for the servers.
    """
    if settings.serve.shards:
        members = _answers([_ShardServer(url, authorization) for url in settings.serve.shards])
    else:
        members = [_member(None, partial(_own_shard, settings, clock, files))]
    answered = [member.status for member in members if member.status is not None]
    owned = {status.shard for status in answered if status.role == "owner"}
    count = settings.shard.count
    absent = [shard for shard in range(count) if shard not in owned]
    return Fleet(shards=count, members=members, absent=absent)


def _answers(servers: Sequence[_ShardServer]) -> list[FleetMember]:
    """Asks all at once; one that has not answered in time is cut off, so that its thread ends."""
    calls = [beside("fleet", server.status) for server in servers]
    _, late = wait(calls, ANSWER_S)
    members = []
    for server, call in zip(servers, calls, strict=True):
        read: Callable[[], FleetShard] = call.result
        if call in late:
            server.cut_off()
            read = server.late
        members.append(_member(server.url, read))
    return members


def _member(url: str | None, read: Callable[[], FleetShard]) -> FleetMember:
    try:
        return FleetMember(url=url, status=read(), error=None)
    except (DuewheelError, HTTPException, OSError) as error:
        reason = reason_of(error)
    except ValueError:
        reason = "its answer is no status of a shard"
    return FleetMember(url=url, status=None, error=reason)


def _own_shard(settings: Settings, clock: Clock, files: PresentFilesWatch) -> FleetShard:
    files.require_to_read()
    status = read_status(settings, clock)
    return FleetShard(
        shard=status.shard,
        role=status.role,
        ready=status.ready,
        pending=status.pending,
        delivered=status.delivered,
        lag=status.ingest.lag,
        behind_ms=status.dequeue.behind_ms,
        conditions=status.conditions,
    )


class _ShardServer:
    """One server. `status` runs in a thread of its own, the rest in the caller's."""

    def __init__(self, url: str, authorization: str | None) -> None:
        self.url = url
        self._headers = {} if authorization is None else {"Authorization": authorization}
        self._lock = threading.Lock()  # of the two below
        self._socket: socket.socket | None = None
        self._is_cut = False

    def status(self) -> FleetShard:
        """The facts in its answer.

        Raises:
            _Unanswered, HTTPException, OSError, ValueError: it has none.
        """
        with closing(connected(self.url)) as server:
            with self._lock:
                self._socket = server
                if self._is_cut:
                    return self.late()
            connection = http_over(server, self.url)
            connection.request("GET", "/v1/status", headers=self._headers)
            with connection.getresponse() as answer:
                body = body_of(answer)
        if answer.status != HTTPStatus.OK:
            raise _Unanswered(f"{answer.status}: {detail_of(body, answer.reason)}")
        return FleetShard.model_validate_json(body)

    def cut_off(self) -> None:
        """Ends the connection, or that which is being made."""
        with self._lock:
            self._is_cut = True
            if self._socket is not None:
                with suppress(OSError):
                    self._socket.shutdown(socket.SHUT_RDWR)

    def late(self) -> NoReturn:
        """Raises _Unanswered."""
        raise _Unanswered(f"no answer within {ANSWER_S:g} s")
