"""Connections: a silent client does not keep one.

uvicorn waits without a limit for the head of a request, and for a client that does not read, and
counts such connections against its limit. A silent client needs no token: it could stop all others,
and the probe of a supervisor, which would then restart the process.

- A connection ends IDLE_S after it was opened, or after its last response, unless another head has
  come; however slowly one comes. It also ends if its client reads nothing of a response for IDLE_S.
- uvicorn learns of a connection after its TLS handshake. Beyond HANDSHAKES_MAX before theirs, the
  one that was accepted first ends: without files no connection could be accepted.
- Beyond CONNECTIONS_MAX the connection ends that has waited longest for its client. There is such a
  connection: gate.py bounds those that do not wait for their clients, REQUESTS_MAX, to fewer.

Sizes are bounded in gate.py, and of a head that comes in parts by h11.
"""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress
from typing import Any, Literal

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from duewheel.errors import ConfigError

IDLE_S = 30.0
CONNECTIONS_MAX = 256
HANDSHAKES_MAX = 256

# Of H11Protocol, which has no documentation: pyproject.toml has its newest known version.
_USED = ("conn", "connections", "flow", "loop", "on_response_complete", "transport")

_Phase = Literal["head", "body", "answer", "unread"]


class Listener(socket.socket):
    """A listening socket that bounds the connections whose handshake has not ended."""

    def __init__(self, fileno: int) -> None:
        super().__init__(fileno=fileno)
        # By file descriptor, in the order of accepting.
        self._before_handshake: dict[int, socket.socket] = {}

    def accept(self) -> tuple[socket.socket, Any]:
        """Accepts a connection, and ends the first one of too many."""
        accepted, address = super().accept()
        self.shook_hands(accepted)  # one with its number was closed
        self._before_handshake[accepted.fileno()] = accepted
        if len(self._before_handshake) > HANDSHAKES_MAX:
            first = self._before_handshake.pop(next(iter(self._before_handshake)))
            with suppress(OSError):  # it is closed
                first.shutdown(socket.SHUT_RDWR)
        return accepted, address

    def shook_hands(self, accepted: socket.socket) -> None:
        """The handshake of a connection has ended."""
        self._before_handshake.pop(accepted.fileno(), None)


def require_internals(config: uvicorn.Config, state: ServerState) -> None:
    """Refuses a uvicorn whose connections have not the parts that a Connection uses; called in the
    event loop.

    Raises:
        ConfigError: names its version and the parts.
    """
    made = H11Protocol(config, state, {})
    missing = [name for name in _USED if not hasattr(made, name)]
    if missing:
        raise ConfigError(
            f"uvicorn {uvicorn.__version__} does not fit: its connections have no "
            f"{', '.join(missing)}. Install the version of duewheel's lock file"
        )


class Connection(H11Protocol):
    """See the module's head. Its methods are those of asyncio.Protocol, and uvicorn's."""

    idle_s, connections_max = IDLE_S, CONNECTIONS_MAX

    phase: _Phase = "answer"
    since_s: float = 0.0
    _end: asyncio.TimerHandle | None = None

    def __init__(self, listener: Listener, **named: Any) -> None:
        """`named` are uvicorn's."""
        super().__init__(**named)
        self._listener = listener

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._listener.shook_hands(transport.get_extra_info("socket"))
        self._note_phase()
        if len(self.connections) > self.connections_max:
            self._end_longest()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._note_phase()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._note_phase()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._note_phase()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._note_phase()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_clock()
        super().connection_lost(exc)

    def _note_phase(self) -> None:
        phase = self._present_phase()
        if phase == self.phase:
            return
        self._stop_clock()
        self.phase, self.since_s = phase, self.loop.time()
        if phase in ("head", "unread"):  # the gate bounds the time of a body
            self._start_clock()

    def _present_phase(self) -> _Phase:
        if self.flow.write_paused or self.transport.is_closing():
            return "unread"
        if self.conn.their_state is h11.IDLE:
            return "head"
        return "body" if self.conn.their_state is h11.SEND_BODY else "answer"

    def _start_clock(self) -> None:
        unread = self.transport.get_write_buffer_size()
        self._end = self.loop.call_later(self.idle_s, self._end_without_headway, unread)

    def _end_without_headway(self, unread_before: int) -> None:
        if self.transport.get_write_buffer_size() < unread_before:
            self._start_clock()  # it reads, however slowly
        else:
            self.transport.abort()

    def _stop_clock(self) -> None:
        if self._end is not None:
            self._end.cancel()
            self._end = None

    def _end_longest(self) -> None:
        waiting = [
            each
            for each in self.connections
            if isinstance(each, Connection) and each is not self and each.phase != "answer"
        ]
        if waiting:
            longest = min(waiting, key=lambda each: each.since_s)
            self.connections.discard(longest)
            longest.transport.abort()
