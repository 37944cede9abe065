"""Has a network client of kafka-python choose servers that answer.

The kernel takes connections for a process that hangs, and a host that is cut off refuses none: no
error comes. kafka-python draws any server to begin with, and any broker for a request that each one
answers. It waits for the whole deadline, or for 30 s, and may draw the same server again. So:

- An attempt to connect has 3 s, with TLS and login. After each failure the next one has twice as
  long, up to 30 s.
- A server is *silent* for 30 s after a failed attempt, and after a request for metadata that it
  does not answer within 3 s; a connection ends that. All clients of the process take others first.
- Metadata is then requested from one more broker, too: the first answer counts.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from kafka.errors import KafkaTimeoutError
from kafka.future import Future

from duewheel.deadline import Deadline
from duewheel.kafka.connect.private_parts import require_parts

# No client has this setting. kafka-python doubles it.
CONNECT_MS = {"socket_connection_setup_timeout_ms": 3_000}
_METADATA_MS = 3_000
_SILENT_S = 30.0
# The private parts that are used here, as in network_client.py.
TOUCHED: Mapping[str, Sequence[str]] = {
    "_manager": (
        "_build_transport",
        "_conns",
        "call_soon",
        "connection_delay",
        "get_connection",
        "least_loaded_node",
        "reset_backoff",
        "socket_connection_setup_timeout_ms",
        "update_backoff",
        "wait_for",
    ),
    "cluster": ("_do_refresh_metadata", "bootstrap_brokers", "broker_metadata", "brokers"),
}
_OF_CONNECTION = {"": ("connected", "in_flight_requests", "init_future", "paused")}

log = logging.getLogger("kafka.duewheel")  # among the clients' lines, which commands hide


class SilentServers:
    """Servers by host and port, for some seconds each. Thread-safe."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        """Has none."""
        self._now_s = now_s
        self._until: dict[tuple[str, int], Deadline] = {}

    def add(self, host: str, port: int, reason: object) -> None:
        """A server is silent from now on; logged with the reason, once."""
        if not self.has(host, port):
            log.warning("Kafka server %s:%s comes last for %g s: %s", host, port, _SILENT_S, reason)
        self._until[host, port] = Deadline(_SILENT_S, None, self._now_s)

    def remove(self, host: str, port: int) -> None:
        """A server has answered."""
        self._until.pop((host, port), None)

    def has(self, host: str, port: int) -> bool:
        """Whether a server is silent."""
        until = self._until.get((host, port))
        return until is not None and not until.is_over


SILENT = SilentServers()  # for all clients of the process


class ServerChoice:
    """The methods of a manager of connections, and of its metadata, that are replaced."""

    def __init__(self, manager: Any) -> None:
        """Replaces them."""
        cluster = manager.cluster
        self._manager, self._cluster = manager, cluster
        self._get_connection = manager.get_connection
        self._build = manager._build_transport  # noqa: SLF001
        self._bootstrap_brokers = cluster.bootstrap_brokers
        self._refresh = cluster._do_refresh_metadata  # noqa: SLF001
        manager.get_connection = self.get_connection
        manager.least_loaded_node = self.least_loaded_node
        manager._build_transport = self.build_transport  # noqa: SLF001
        cluster.bootstrap_brokers = self.bootstrap_brokers
        cluster._do_refresh_metadata = self.refresh_metadata  # noqa: SLF001

    def bootstrap_brokers(self) -> list[Any]:
        """The servers to begin with: kafka-python draws one."""
        brokers = self._bootstrap_brokers()
        return [each for each in brokers if not SILENT.has(each.host, each.port)] or brokers

    def least_loaded_node(self) -> Any:
        """The broker for a request that each one answers; None if none can be taken now."""

        def cost(broker: Any) -> tuple[bool, int, bool, float]:
            connection = self._manager._conns.get(broker.node_id)  # noqa: SLF001
            unanswered = 0 if connection is None else len(connection.in_flight_requests)
            is_new = connection is None or not connection.connected
            # At random among equals, or all clients would take the same one.
            return SILENT.has(broker.host, broker.port), unanswered, is_new, random.random()

        free = [each for each in self._cluster.brokers() if self._is_free(each.node_id)]
        return min(free, key=cost).node_id if free else None

    def _is_free(self, node_id: Any) -> bool:
        connection = self._manager._conns.get(node_id)  # noqa: SLF001
        paused = connection is not None and connection.paused
        return not paused and not self._manager.connection_delay(node_id)

    def get_connection(
        self, node_id: Any, *args: Any, reset_backoff_on_connect: bool = True, **options: Any
    ) -> Any:
        """As kafka-python's, which counts a failed login as a success: the next attempt would come
        at once, and have no more time.
        """
        is_new = node_id not in self._manager._conns  # noqa: SLF001
        options["reset_backoff_on_connect"] = False
        connection = self._get_connection(node_id, *args, **options)
        if is_new:
            require_parts(connection, _OF_CONNECTION)
            broker = self._cluster.broker_metadata(node_id)

            def succeeded(_: object) -> None:
                SILENT.remove(broker.host, broker.port)
                if reset_backoff_on_connect:
                    self._manager.reset_backoff(node_id)

            connection.init_future.add_callback(succeeded)
            connection.init_future.add_errback(partial(self._failed, broker))
        return connection

    def _failed(self, broker: Any, error: BaseException) -> None:
        if not self._manager.closed:
            SILENT.add(broker.host, broker.port, error)
            self._manager.call_soon(self._delay, broker.node_id)

    def _delay(self, node_id: Any) -> None:
        if not self._manager.connection_delay(node_id):  # else kafka-python has done it
            self._manager.update_backoff(node_id)

    async def build_transport(self, node: Any, timeout_at: float | None = None) -> Any:
        """As kafka-python's, which waits for a handshake of TLS without a limit."""
        if timeout_at is None:
            return await self._build(node)
        building = self._manager.call_soon(self._build, node, timeout_at)
        left_ms = max(0.0, timeout_at - time.monotonic()) * 1000
        try:
            return await self._manager.wait_for(building, left_ms)
        except KafkaTimeoutError:
            building.add_callback(lambda transport: transport.close())
            raise

    async def refresh_metadata(self, node_id: Any = None) -> None:
        """Reads the metadata from this broker; None: from any, and from one more after each time
        that none answers for 3 s. Only a broker's failure is an error.
        """
        if node_id is not None:
            await self._refresh(node_id)
            return
        first, requested = Future(), set[Any]()
        while not first.is_done:
            chosen = self.least_loaded_node()
            if chosen not in requested:
                requested.add(chosen)
                _settle(first, self._manager.call_soon(self._refresh, chosen))
            try:
                await self._manager.wait_for(first, _METADATA_MS)
            except KafkaTimeoutError:
                if (broker := self._cluster.broker_metadata(chosen)) is not None:
                    SILENT.add(broker.host, broker.port, f"no metadata within {_METADATA_MS} ms")
        await first


def _settle(first: Future, each: Future) -> None:
    """Gives the first of several futures the outcome."""
    each.add_callback(lambda value: None if first.is_done else first.success(value))
    each.add_errback(lambda error: None if first.is_done else first.failure(error))
