"""Clients that are silent, drip, or do not read: they stop no other."""

from __future__ import annotations

import shutil
import socket
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from starlette.types import Receive, Scope, Send
from tests.harness.launcher import wait_until
from tests.harness.served import settings_of
from uvicorn.protocols.http.h11_impl import H11Protocol

from duewheel.config.keys_and_defaults import ServeSection
from duewheel.errors import ConfigError
from duewheel.serve import connections
from duewheel.serve.connections import Connection
from duewheel.serve.server import listening, run_serve

REQUEST = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
LARGE = 16 << 20  # more than the sockets of both sides hold


class Impatient(Connection):
    idle_s, connections_max = 0.5, 8


async def _app(scope: Scope, _: Receive, send: Send) -> None:
    size = LARGE if scope["path"] == "/large" else 2
    headers = [(b"content-length", b"%d" % size)]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b"x" * size})


@contextmanager
def served(serve: ServeSection, **tls: Any) -> Iterator[int]:
    options: dict[str, Any] = {"ws": "none", "lifespan": "off", "log_config": None, **tls}
    with listening(serve) as listener:
        options["http"] = partial(Impatient, listener)
        server = uvicorn.Server(uvicorn.Config(_app, **options))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        yield listener.getsockname()[1]
        server.should_exit = True
        thread.join(30)


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with served(ServeSection(port=0)) as port:
        yield port


@contextmanager
def connected(port: int) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", port), 10) as client:
        yield client


def answer_of(client: socket.socket) -> bytes:
    client.sendall(REQUEST)
    answer = b""
    while not answer.endswith(b"\r\n\r\nxx"):
        answer += client.recv(1_000)
    return answer


def answers_by_tls(trusting: ssl.SSLContext, client: socket.socket) -> bool:
    with trusting.wrap_socket(client, server_hostname="localhost") as wrapped:
        return answer_of(wrapped).startswith(b"HTTP/1.1 200")


def is_ended(client: socket.socket) -> bool:
    try:
        return client.recv(65536) == b""
    except ConnectionError:
        return True


def test_silent_clients_stop_no_other(port: int) -> None:
    with ExitStack() as held:
        silent = [held.enter_context(connected(port)) for _ in range(20)]
        silent[-1].sendall(b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n")
        for _ in range(3):
            with connected(port) as client:
                assert answer_of(client).startswith(b"HTTP/1.1 200")


def test_silent_clients_without_a_handshake_stop_no_other(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    require: Callable[[object, str], None],
) -> None:
    """uvicorn is told of a connection after its handshake: it cannot count these."""
    require(shutil.which("openssl"), "no openssl")
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    kind = ["-newkey", "rsa:2048", "-nodes", "-subj", "/CN=localhost"]
    files = ["-keyout", str(key), "-out", str(certificate)]
    subprocess.run(["openssl", "req", "-x509", *kind, *files], check=True, capture_output=True)
    monkeypatch.setattr(connections, "HANDSHAKES_MAX", 8)
    tls = {"ssl_certfile": certificate, "ssl_keyfile": key}
    trusting = ssl.create_default_context(cafile=certificate)
    with ExitStack() as held:
        port = held.enter_context(served(ServeSection(port=0), **tls))
        silent = [held.enter_context(connected(port)) for _ in range(20)]
        assert [is_ended(client) for client in silent[:12]] == [True] * 12
        for _ in range(3):
            with connected(port) as plain:
                assert answers_by_tls(trusting, plain)
        assert all(answers_by_tls(trusting, client) for client in silent[-4:])


def test_a_silent_client_is_ended(port: int) -> None:
    with connected(port) as before, connected(port) as between:
        assert answer_of(between).startswith(b"HTTP/1.1 200")
        assert is_ended(before)
        assert is_ended(between)


def test_a_head_that_drips_is_ended(port: int) -> None:
    with connected(port) as client:
        client.settimeout(0.1)

        def drip() -> bool:
            try:
                client.sendall(b"a")
                return is_ended(client)
            except TimeoutError:
                return False
            except ConnectionError:
                return True

        wait_until(drip, "the connection is held", 10)


def test_a_client_that_does_not_read_is_ended(port: int) -> None:
    with connected(port) as client:
        client.sendall(b"GET /large HTTP/1.1\r\nHost: localhost\r\n\r\n")
        threading.Event().wait(1.5)
        read = 0
        while part := _read(client):
            read += len(part)
        assert read < LARGE


def test_a_client_that_reads_slowly_gets_it_all(port: int) -> None:
    with connected(port) as client:
        client.sendall(b"GET /large HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        read = 0
        while part := client.recv(1 << 20):
            read += len(part)
            threading.Event().wait(0.05)
        assert read > LARGE


def _read(client: socket.socket) -> bytes:
    try:
        return client.recv(1 << 20)
    except ConnectionError:
        return b""


def test_a_response_does_not_wait_for_an_acknowledgement() -> None:
    """The head and the body are two packets: the second would wait 40 ms for the first."""
    with ExitStack() as stack:
        listener = stack.enter_context(listening(ServeSection(port=0)))
        stack.enter_context(socket.create_connection(listener.getsockname()))
        accepted = stack.enter_context(listener.accept()[0])
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


class OtherProtocol(H11Protocol):
    """Of a uvicorn that has renamed what Connection looks at."""

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        del self.flow


def test_a_uvicorn_with_other_connections_is_refused_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else each connection would fail by itself, with a traceback in the log."""
    monkeypatch.setattr(connections, "H11Protocol", OtherProtocol)
    with pytest.raises(ConfigError, match=rf"uvicorn {uvicorn.__version__} .* have no flow"):
        run_serve(settings_of(tmp_path, port=0))
