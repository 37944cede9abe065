"""The gate in front of the API: names of this host, size of a request's head, size and time of its
body, requests at a time, headers of every response.

The header `Host` must be one of this server's names: else a web page elsewhere could give its own
name this host's address, and read the API through the browser of a person on this host. An address
is no name: the page at it is this server's. Kubelets and Prometheus ask by address.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http import HTTPStatus
from ipaddress import ip_address
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from duewheel.config.keys_and_defaults import ServeSection
from duewheel.serve.problems import Refused, busy, refused_by

HEADER_BYTES_MAX = 16 << 10  # request line and headers
BODY_S = 30.0  # in which a body must arrive
REQUESTS_MAX = 128  # that are computed or wait for a thread; the probes are answered beyond them
_PROBES = frozenset({"/livez", "/readyz", "/metrics"})
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
_HEADERS = [(b"cache-control", b"no-store"), (b"x-content-type-options", b"nosniff")]


def hosts_of(serve: ServeSection) -> frozenset[str] | None:
    """Returns the names under which the server is reached; None: any."""
    if not serve.hosts and not serve.is_loopback:
        return None
    own = serve.hosts or (serve.host,)
    shards = (urlsplit(url).hostname or "" for url in serve.shards)
    return _LOOPBACK.union(name.lower() for name in (*own, *shards))


class Gate:
    """See the module's head. ASGI middleware."""

    def __init__(self, app: ASGIApp, hosts: frozenset[str] | None, body_max: int) -> None:
        self._app, self._hosts, self._body_max = app, hosts, body_max
        self._active = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        has_begun = False  # the response

        async def send_with_headers(message: Message) -> None:
            nonlocal has_begun
            has_begun = True
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *_HEADERS]
            await send(message)

        try:
            _require_head(scope)
            self._require_host(scope)
            body = await self._read_body(receive)
            if body is not None:
                self._require_room(scope["path"])
                await self._count(scope, _replayed(body, receive), send_with_headers)
        except Refused as refused:
            await refused.response()(scope, receive, send_with_headers)
        except Exception as error:
            if not has_begun:
                await refused_by(error).response()(scope, receive, send_with_headers)
            raise  # the server logs it

    def _require_room(self, path: str) -> None:
        if self._active >= REQUESTS_MAX and path not in _PROBES:
            raise busy(f"{self._active} requests are waiting")

    async def _count(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a request that counts until its response begins: a client may read slowly."""
        with ExitStack() as count:
            count.enter_context(self._counted())

            async def send_uncounted(message: Message) -> None:
                count.close()
                await send(message)

            await self._app(scope, receive, send_uncounted)

    @contextmanager
    def _counted(self) -> Iterator[None]:
        self._active += 1
        try:
            yield
        finally:
            self._active -= 1

    def _require_host(self, scope: Scope) -> None:
        if self._hosts is None:
            return
        given = [_without_port(value) for name, value in scope["headers"] if name == b"host"]
        if len(given) != 1 or not (given[0] in self._hosts or _is_address(given[0])):
            detail = "the header Host is no name of this server: serve.hosts has its names"
            raise Refused(HTTPStatus.MISDIRECTED_REQUEST, "misdirected_request", detail)

    async def _read_body(self, receive: Receive) -> bytes | None:
        """Returns the body; None if the client has gone."""
        body = bytearray()
        try:
            async with asyncio.timeout(BODY_S):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        return None
                    body += message.get("body", b"")
                    if len(body) > self._body_max:
                        detail = f"the body has more than {self._body_max} bytes (serve.body_max)"
                        status = HTTPStatus.REQUEST_ENTITY_TOO_LARGE
                        raise Refused(status, "body_too_large", detail)
                    if not message.get("more_body", False):
                        return bytes(body)
        except TimeoutError:
            detail = f"the body has not arrived within {BODY_S:g} s"
            raise Refused(HTTPStatus.REQUEST_TIMEOUT, "body_too_slow", detail) from None


def _require_head(scope: Scope) -> None:
    """h11 bounds a head that comes in parts; one that comes at once may have any size. A head with
    two lengths may be two requests to a proxy in front. One with two tokens may have the client's
    own beside the proxy's.
    """
    names = [name for name, _ in scope["headers"]]
    size = len(scope["method"]) + len(scope["raw_path"]) + len(scope["query_string"])
    size += sum(len(name) + len(value) for name, value in scope["headers"])
    if size > HEADER_BYTES_MAX:
        detail = f"the head has more than {HEADER_BYTES_MAX} bytes"
        raise Refused(HTTPStatus.BAD_REQUEST, "head_too_large", detail)
    if names.count(b"authorization") > 1:
        detail = "give one header Authorization"
        raise Refused(HTTPStatus.BAD_REQUEST, "bad_request", detail)
    if {b"content-length", b"transfer-encoding"}.issubset(names):
        detail = "either Content-Length or Transfer-Encoding"
        raise Refused(HTTPStatus.BAD_REQUEST, "ambiguous_length", detail)


def _without_port(value: bytes) -> str:
    """Returns the host of a header's value, without its port."""
    host = value.decode("latin-1")
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.partition(":")[0].lower()


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


def _replayed(body: bytes, receive: Receive) -> Receive:
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        return messages.pop() if messages else await receive()

    return replay
