"""kafka-python's network client, closed safely beside a call that its deadline has abandoned.

Its private parts are named here, and in server_choice.py. Loop and manager are used elsewhere, too:

    client      `_manager` has the connections and the metadata, `_net` the loop that runs them
    loop        `_io_thread`, which only an admin client and a producer start; its setting
                `selector`; `wait_write`, which a connection awaits before each send; `run` and
                `call_soon_threadsafe` take work, `drain` ends it
    manager     `_build_transport` opens a connection, `get_connection` gives that to one broker;
                `send` takes a request to a broker, `run` and `call_soon` a coroutine, which
                `wait_for` bounds; `close`
    transport   `_sock_recv` reads its socket once; returns the bytes, and an error or its end
    metadata    `_topics`, the names in its next request

Each new client is checked for these names (private_parts.py).
"""

from __future__ import annotations

import contextlib
import select
import selectors
import threading
from collections.abc import Iterable
from typing import Any

from kafka.errors import KafkaConnectionError
from kafka.net.compat import KafkaNetClient
from kafka.net.selector import NetworkSelector

from duewheel.kafka.connect import server_choice
from duewheel.kafka.connect.private_parts import require_parts

_LEAVES_S = 2.0  # an abandoned call, once its connections are closed; usually at once
# Names by the path of their owner.
_TOUCHED = {
    "": ("_manager", "_net"),
    "_manager": (
        "_build_transport",
        "call_soon",
        "close",
        "get_connection",
        "run",
        "send",
        "wait_for",
    ),
    "_net": ("_io_thread", "call_soon_threadsafe", "drain", "run"),
    "cluster": ("_topics",),
}
_TOUCHED_OF_TRANSPORT = {"": ("_sock_recv",)}


class _Events(selectors.DefaultSelector):
    """Looks sockets up by their numbers. kafka-python looks each one up before it registers it, and
    the error that it catches would show both addresses: two calls of the system for each wait.
    """

    def get_key(self, fileobj: Any) -> selectors.SelectorKey:
        number = fileobj.fileno()
        return super().get_key(fileobj if number < 0 else number)  # a closed one has none


async def _now() -> None:
    """Is awaited without a wait."""


class _Selector(NetworkSelector):  # type: ignore[misc]  # kafka-python has no types
    """Knows whether a thread is in `poll`, also between two of its waits."""

    def __init__(self, **configs: Any) -> None:
        super().__init__(**{**configs, "selector": _Events})
        self.polled = threading.RLock()

    def wait_write(self, fileobj: Any, timeout_at: float | None = None) -> Any:
        """Waits until the socket takes bytes; mostly it does so now, without a turn of the loop."""
        if not hasattr(select, "poll"):  # Windows, and where eventlet has replaced the module's
            return super().wait_write(fileobj, timeout_at)
        writable = select.poll()
        writable.register(fileobj, select.POLLOUT)
        return _now() if writable.poll(0) else super().wait_write(fileobj, timeout_at)

    def poll(self, timeout_ms: float | None = None, future: Any = None) -> None:
        with self.polled:
            super().poll(timeout_ms, future)


class NetworkClient(KafkaNetClient):  # type: ignore[misc]
    """A client whose `close` first ends the wait of another thread in it.

    kafka-python cancels the tasks and closes the selector beside that thread. It then waits for
    tasks that no thread runs, until the connection's idle time of nine minutes is over.
    """

    def __init__(self, **configs: Any) -> None:
        """Connects nothing. `configs` are kafka-python's.

        Raises:
            Misconfigured: this kafka-python lacks a private part that is used here.
        """
        super().__init__(net=_Selector(**configs), **server_choice.CONNECT_MS, **configs)
        require_parts(self, _TOUCHED)
        require_parts(self, server_choice.TOUCHED)
        server_choice.ServerChoice(self._manager)

    def await_ready(self, node_id: Any, timeout_ms: float = 30_000) -> bool:
        """Whether a broker is connected, after `timeout_ms` at most. kafka-python raises if it is
        not; its producer then forgets the request for a coordinator that has just died, and the
        transaction has no end.
        """
        try:
            return bool(super().await_ready(node_id, timeout_ms))
        except KafkaConnectionError:
            return False

    def close(self, node_id: int | None = None) -> None:
        """Closes the connection to one broker, or all of them and the client."""
        if node_id is not None or self._net._io_thread is not None:  # noqa: SLF001 - it is joined
            super().close(node_id)
            return
        alone = self._net.polled.acquire(blocking=False)
        if not alone:
            with contextlib.suppress(RuntimeError):  # closed by then
                self._net.call_soon_threadsafe(self._manager.close)
            alone = self._net.polled.acquire(timeout=_LEAVES_S)
        try:
            if alone:
                # A task that is ready sees the end while it can still wait: a closed selector
                # refuses that, and the task that renews the metadata logs it as an error.
                self._manager.close()
                self._net.drain()
            super().close()
        finally:
            if alone:
                self._net.polled.release()


def manager_of(client: Any) -> Any:
    """The connections of a network client or an admin client. No public call asks one server."""
    return client._manager  # noqa: SLF001


def loop_of(client: NetworkClient) -> Any:
    """Runs coroutines, in the thread that waits for them."""
    return client._net  # noqa: SLF001


def set_topics(client: Any, topics: Iterable[str]) -> None:
    """Changes the topics of the metadata, which is then to be read."""
    client.cluster._topics = set()  # noqa: SLF001 - kafka-python ignores some of the topics it has
    client.cluster.set_topics(list(topics))


def keep_last_answers(manager: Any) -> None:
    """Makes the manager's transports read the bytes before the end of a connection.

    kafka-python drops an answer that it reads together with the end: on a busy host, each refusal.
    """
    build = manager._build_transport  # noqa: SLF001

    async def build_keeping(*args: Any, **options: Any) -> Any:
        transport = await build(*args, **options)
        require_parts(transport, _TOUCHED_OF_TRANSPORT)
        receive = transport._sock_recv  # noqa: SLF001

        def received() -> tuple[bytes, Exception | None]:
            octets, error = receive()
            return octets, None if octets else error  # the end is read again, by the next call

        transport._sock_recv = received  # noqa: SLF001
        return transport

    manager._build_transport = build_keeping  # noqa: SLF001
