"""Servers that are no Kafka: they take a connection, and each treats it in its own way."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from duewheel.dev.listeners import HOST

TLS_CLIENT_HELLO = b"\x16"
TLS_ALERT = bytes.fromhex("15030300020228")  # fatal: handshake failure
_WAIT_S = 5.0
_AT_ONCE_S = 0.2


def hangs_up(connection: socket.socket) -> None:
    """Closes the connection at once."""


def speaks_tls(connection: socket.socket) -> None:
    """Answers a TLS client, with a refusal, and no other."""
    if connection.recv(1) == TLS_CLIENT_HELLO:
        connection.sendall(TLS_ALERT)


def is_silent(connection: socket.socket) -> None:
    """Waits for the client to give up."""
    while connection.recv(4096):
        pass


def hangs(connection: socket.socket) -> None:
    """As `is_silent`, for as long as the client waits."""
    connection.settimeout(None)
    is_silent(connection)


def ends_with_the_answer(broker: str) -> Callable[[socket.socket], None]:
    """A broker whose last answer and end of a connection arrive as one: what a busy client sees."""
    host, _, port = broker.rpartition(":")

    def treat(connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 1)  # until the end, or 200 ms
        with socket.create_connection((host, int(port)), _WAIT_S) as upstream:
            while request := connection.recv(1 << 16):
                upstream.settimeout(_WAIT_S)
                upstream.sendall(request)
                answer = upstream.recv(1 << 16)
                upstream.settimeout(_AT_ONCE_S)
                try:
                    ended = not upstream.recv(1, socket.MSG_PEEK)
                except TimeoutError:
                    ended = False
                connection.sendall(answer)
                if ended:
                    return

    return treat


@contextmanager
def server(treat: Callable[[socket.socket], None]) -> Iterator[str]:
    """Serves one connection after the other; host:port."""
    with socket.create_server((HOST, 0)) as listener:

        def serve() -> None:
            with suppress(OSError):
                while True:
                    connection, _ = listener.accept()
                    connection.settimeout(_WAIT_S)
                    with connection, suppress(OSError):
                        treat(connection)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"{HOST}:{listener.getsockname()[1]}"
        finally:
            # A closed socket would leave `accept` waiting.
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()
