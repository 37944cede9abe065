"""HTTP to the server of another shard, which gets the token of the request that is answered.

Redirects are not followed, and no proxy is used: the token is for the named servers alone. An
answer without end is refused.
"""

from __future__ import annotations

import json
import socket
import ssl
from http.client import HTTP_PORT, HTTPS_PORT, HTTPConnection, HTTPResponse
from urllib.parse import urlsplit

CONNECT_S = 2.0
ANSWER_BYTES_MAX = 16 << 20


def connected(url: str) -> socket.socket:
    """A connection; with TLS before its handshake."""
    address = urlsplit(url)
    is_secure = address.scheme == "https"
    port = address.port or (HTTPS_PORT if is_secure else HTTP_PORT)
    plain = socket.create_connection((address.hostname or "", port), CONNECT_S)
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
