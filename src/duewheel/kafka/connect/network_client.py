"""kafka-python's network client: chooses servers that answer, and is closed safely beside a call.

Only this module names its private parts. Loop and manager are used elsewhere, too:

    client      `_manager` has the connections and the metadata, `_net` the loop that runs them
    loop        `_io_thread`, which only an admin client and a producer start; its setting
                `selector`; `wait_write`, which a connection awaits before each send; `run` and
                `call_soon_threadsafe` take work, `drain` ends it
    manager     `_build_transport` opens a connection, `get_connection` gives that to one broker,
                `_conns` has them; `send` takes a request to a broker, `run` and `call_soon` a
                coroutine; `wait_for` bounds one in time; `least_loaded_node` chooses a broker,
                `update_backoff` delays the next attempt after a failure, for `connection_delay`;
                `close`
    connection  `_sock_recv` reads its socket once; returns the bytes, and an error or its end
    metadata    `_topics`, the names in its next request, which `_do_refresh_metadata` sends;
                `bootstrap_brokers` has those to begin with

The client package takes any kafka-python 3: so each new client is checked for these names.
"""

from __future__ import annotations

import contextlib
import random
import select
import selectors
import threading
from collections.abc import Iterable, Mapping
from typing import Any

import kafka
from kafka.errors import KafkaConnectionError, KafkaTimeoutError
from kafka.net.compat import KafkaNetClient
from kafka.net.selector import NetworkSelector

from duewheel.errors import Misconfigured
from duewheel.kafka.connect.silent_servers import SILENT

_LEAVES_S = 2.0  # an abandoned call, once its connections are closed; usually at once
# No client has this setting. For the first attempt to connect; after failures kafka-python doubles
# it, up to 30 s.
_CONFIGS = {"socket_connection_setup_timeout_ms": 3_000}
# For metadata, until another broker is asked; a late answer counts, too.
_METADATA_MS, _TOPIC_MS = 3_000, 50
# Names by the path of their owner.
_TOUCHED = {
    "": ("_manager", "_net"),
    "_manager": (
        "_build_transport",
        "_conns",
        "call_soon",
        "close",
        "connection_delay",
        "get_connection",
        "least_loaded_node",
        "run",
        "send",
        "update_backoff",
        "wait_for",
    ),
    "_net": ("_io_thread", "call_soon_threadsafe", "drain", "run"),
    "cluster": ("_do_refresh_metadata", "_topics", "bootstrap_brokers"),
}
_TOUCHED_OF_CONNECTION = {"": ("_sock_recv",)}


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
        super().__init__(net=_Selector(**configs), **_CONFIGS, **configs)
        _require_parts(self, _TOUCHED)
        _prefer_answering(self._manager)

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


def _prefer_answering(manager: Any) -> None:
    """Makes a manager take a server that is silent only if there is no other.

    kafka-python draws any server to begin with, and any broker for requests that each one answers;
    metadata that this one does not send is waited for until `request_timeout_ms`, 30 s.
    """
    cluster = manager.cluster
    update_backoff, bootstrap_brokers = manager.update_backoff, cluster.bootstrap_brokers
    refresh = cluster._do_refresh_metadata  # noqa: SLF001

    def note(node_id: Any) -> None:
        if (broker := cluster.broker_metadata(node_id)) is not None:
            SILENT.add(broker.host, broker.port)

    def update_and_note(node_id: Any) -> Any:
        note(node_id)
        return update_backoff(node_id)

    def first_ones() -> list[Any]:
        brokers = bootstrap_brokers()
        return [each for each in brokers if not SILENT.has(each.host, each.port)] or brokers

    def least_loaded_node() -> Any:
        def cost(broker: Any) -> tuple[bool, int, bool, float]:
            connection = manager._conns.get(broker.node_id)  # noqa: SLF001
            unanswered = 0 if connection is None else len(connection.in_flight_requests)
            is_new = connection is None or not connection.connected
            # At random among equals, or all clients would ask the same one.
            return SILENT.has(broker.host, broker.port), unanswered, is_new, random.random()

        free = [each for each in cluster.brokers() if is_free(each.node_id)]
        return min(free, key=cost).node_id if free else None

    def is_free(node_id: Any) -> bool:
        connection = manager._conns.get(node_id)  # noqa: SLF001
        paused = connection is not None and connection.paused
        return not paused and not manager.connection_delay(node_id)

    async def refresh_in_time(node_id: Any = None) -> None:
        chosen = least_loaded_node() if node_id is None else node_id
        bound_ms = _METADATA_MS + _TOPIC_MS * len(cluster._topics)  # noqa: SLF001
        try:
            await manager.wait_for(manager.call_soon(refresh, chosen), bound_ms)
        except KafkaTimeoutError:
            note(chosen)
            raise

    manager.update_backoff, manager.least_loaded_node = update_and_note, least_loaded_node
    cluster.bootstrap_brokers = first_ones
    cluster._do_refresh_metadata = refresh_in_time  # noqa: SLF001


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
        _require_parts(transport, _TOUCHED_OF_CONNECTION)
        receive = transport._sock_recv  # noqa: SLF001

        def received() -> tuple[bytes, Exception | None]:
            octets, error = receive()
            return octets, None if octets else error  # the end is read again, by the next call

        transport._sock_recv = received  # noqa: SLF001
        return transport

    manager._build_transport = build_keeping  # noqa: SLF001


def missing_part(owner: object, touched: Mapping[str, Iterable[str]]) -> str:
    """The path of the first name that an object of kafka-python lacks; "" if it has all.

    Args:
        touched: names by the path of the object that has them, from `owner` on.
    """
    for path, names in touched.items():
        holder: object = owner
        for step in filter(None, path.split(".")):
            holder = getattr(holder, step, None)
        for name in names:
            if not hasattr(holder, name):
                return f"{path or type(owner).__name__}.{name}"
    return ""


def _require_parts(owner: object, touched: Mapping[str, Iterable[str]]) -> None:
    if missing := missing_part(owner, touched):
        raise Misconfigured(
            f"kafka-python {kafka.__version__} has no {missing}, which duewheel uses: install "
            "another release of kafka-python 3"
        )
