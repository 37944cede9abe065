"""kafka-python's network client, closed safely beside a call that its deadline has abandoned."""

from __future__ import annotations

import contextlib
import threading
from typing import Any

from kafka.net.compat import KafkaNetClient
from kafka.net.selector import NetworkSelector

_LEAVES_S = 2.0  # an abandoned call, once its connections are closed; usually at once


class _Selector(NetworkSelector):  # type: ignore[misc]  # kafka-python has no types
    """Knows whether a thread is in `poll`, also between two of its waits."""

    def __init__(self, **configs: Any) -> None:
        super().__init__(**configs)
        self.polled = threading.RLock()

    def poll(self, timeout_ms: float | None = None, future: Any = None) -> None:
        with self.polled:
            super().poll(timeout_ms, future)


class NetworkClient(KafkaNetClient):  # type: ignore[misc]
    """A client whose `close` first ends the wait of another thread in it.

    kafka-python cancels the tasks and closes the selector beside that thread. It then waits for
    tasks that no thread runs, until the connection's idle time of nine minutes is over.
    """

    def __init__(self, **configs: Any) -> None:
        """Connects nothing. `configs` are kafka-python's."""
        super().__init__(net=_Selector(**configs), **configs)

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
