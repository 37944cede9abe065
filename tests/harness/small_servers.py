"""Servers that are no Kafka: they take a connection, and each treats it in its own way."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from duewheel.dev.broker import HOST

TLS_CLIENT_HELLO = b"\x16"
TLS_ALERT = bytes.fromhex("15030300020228")  # fatal: handshake failure
_WAIT_S = 5.0


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
