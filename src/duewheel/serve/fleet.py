"""The shards of an app: each server that `serve.shards` names is asked for its status.

A server gets the token of the request that asks, so all of them need the same tokens. Redirects are
not followed, and no proxy is used: the token is for the named servers alone. A server that answers
slowly, or without end, is cut off: another shard's trouble must not hold this shard's API.
"""

from __future__ import annotations

import json
import socket
import ssl
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import wait
from contextlib import closing, suppress
from functools import partial
from http import HTTPStatus
from http.client import HTTP_PORT, HTTPS_PORT, HTTPConnection, HTTPException, HTTPResponse
from typing import NoReturn
from urllib.parse import urlsplit

from duewheel.api.fleet import Fleet, FleetMember, FleetShard
from duewheel.clock import Clock
from duewheel.config.settings import Settings
from duewheel.errors import DuewheelError
from duewheel.ops.shard.present_files import PresentFilesWatch
from duewheel.ops.shard.status import read_status
from duewheel.threads import beside

ANSWER_S = 2.0  # of all servers
ANSWER_BYTES_MAX = 16 << 20


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
    files.require_after_read()
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


def connected(url: str) -> socket.socket:
    """A connection; with TLS before its handshake."""
    address = urlsplit(url)
    is_secure = address.scheme == "https"
    port = address.port or (HTTPS_PORT if is_secure else HTTP_PORT)
    plain = socket.create_connection((address.hostname or "", port), ANSWER_S)
    if not is_secure:
        return plain
    context = ssl.create_default_context()
    return context.wrap_socket(
        plain, server_hostname=address.hostname, do_handshake_on_connect=False
    )


def http_over(server: socket.socket, url: str) -> HTTPConnection:
    """HTTP on a connection of `connected`, after the handshake if it has TLS."""
    if isinstance(server, ssl.SSLSocket):
        server.do_handshake()
    connection = HTTPConnection(urlsplit(url).netloc)
    connection.sock = server
    return connection


def body_of(answer: HTTPResponse) -> bytes:
    """The body of an answer.

    Raises:
        OSError: it has more than ANSWER_BYTES_MAX.
    """
    body = answer.read(ANSWER_BYTES_MAX + 1)
    if len(body) > ANSWER_BYTES_MAX:
        raise OSError(f"an answer of more than {ANSWER_BYTES_MAX >> 20} MiB")
    return body


def reason_of(error: Exception) -> str:
    """Why a server has not answered, in a few words."""
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


def detail_of(body: bytes, reason: str) -> str:
    """The cause, as the problem of the answer has it."""
    try:
        return str(json.loads(body)["detail"])
    except (LookupError, TypeError, ValueError, RecursionError):
        return reason
