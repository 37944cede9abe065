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
from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from contextlib import closing, suppress
from functools import partial
from http import HTTPStatus
from http.client import HTTP_PORT, HTTPS_PORT, HTTPConnection, HTTPException
from typing import Any
from urllib.parse import urlsplit

from duewheel.api.fleet import Fleet, FleetMember, FleetShard
from duewheel.clock import Clock
from duewheel.config.settings import Settings
from duewheel.errors import DuewheelError
from duewheel.ops.shard.status import read_status
from duewheel.threads import beside

ANSWER_S = 2.0  # of a server, from the first byte that is sent to it
_ALL_S = 3.0  # for all servers: a name that is not resolved cannot be cut off
_ANSWER_BYTES_MAX = 16 << 20

Status = Mapping[str, Any]


class _Unanswered(DuewheelError):
    """The message says why there is no status."""


def read_fleet(settings: Settings, clock: Clock, authorization: str | None) -> Fleet:
    """Asks each server for its shard; without `serve.shards` there is this shard alone.

    Args:
        authorization: the header of the request, for the servers.
    """
    urls = settings.serve.shards
    if urls:
        calls = [beside("fleet", partial(_status_of, url, authorization)) for url in urls]
        wait(calls, _ALL_S)
        members = [
            _member(url, partial(_result, call)) for url, call in zip(urls, calls, strict=True)
        ]
    else:
        members = [_member(None, partial(_own_status, settings, clock))]
    answered = [member.status for member in members if member.status is not None]
    owned = {status.shard for status in answered if status.role == "owner"}
    count = settings.shard.count
    absent = [shard for shard in range(count) if shard not in owned]
    return Fleet(shards=count, members=members, absent=absent)


def _member(url: str | None, read: Callable[[], Status]) -> FleetMember:
    try:
        return FleetMember(url=url, status=FleetShard.of_status(read()), error=None)
    except (DuewheelError, HTTPException, OSError) as error:
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
    except (LookupError, TypeError, ValueError, RecursionError):
        reason = "its answer is no status of a shard"
    return FleetMember(url=url, status=None, error=reason)


def _own_status(settings: Settings, clock: Clock) -> dict[str, Any]:
    return read_status(settings, clock).model_dump(mode="json", by_alias=True)


def _result(call: Future[Status]) -> Status:
    if not call.done():
        raise _Unanswered(f"no answer within {_ALL_S:g} s")
    return call.result()


def _status_of(url: str, authorization: str | None) -> Any:
    """The answer of a server.

    Raises:
        _Unanswered, HTTPException, OSError, ValueError, RecursionError: it has none.
    """
    cut = threading.Event()
    with closing(_socket(url)) as server:
        watch = threading.Timer(ANSWER_S, _cut_off, (server, cut))
        watch.start()
        try:
            status, reason, body = _exchange(server, url, authorization)
        except (HTTPException, OSError):
            if not cut.is_set():
                raise
        finally:
            watch.cancel()
    if cut.is_set():
        raise _Unanswered(f"no answer within {ANSWER_S:g} s")
    if status != HTTPStatus.OK:
        raise _Unanswered(f"{status}: {_detail(body, reason)}")
    return json.loads(body)


def _socket(url: str) -> socket.socket:
    """A connection to the server; with TLS before its handshake."""
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


def _exchange(server: socket.socket, url: str, authorization: str | None) -> tuple[int, str, bytes]:
    """Status, reason and body of the answer."""
    if isinstance(server, ssl.SSLSocket):
        server.do_handshake()
    connection = HTTPConnection(urlsplit(url).netloc)
    connection.sock = server
    headers = {} if authorization is None else {"Authorization": authorization}
    connection.request("GET", "/v1/status", headers=headers)
    with connection.getresponse() as answer:
        return answer.status, answer.reason, answer.read(_ANSWER_BYTES_MAX)


def _cut_off(server: socket.socket, cut: threading.Event) -> None:
    cut.set()
    with suppress(OSError):
        server.shutdown(socket.SHUT_RDWR)


def _detail(body: bytes, reason: str) -> str:
    """The cause, as the problem of the answer has it."""
    try:
        return str(json.loads(body)["detail"])
    except (LookupError, TypeError, ValueError, RecursionError):
        return reason
