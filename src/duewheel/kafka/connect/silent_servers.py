"""Remembers which servers of Kafka did not answer.

The kernel takes connections for a process that hangs, and a host that is cut off refuses none: no
error comes, and kafka-python would draw the same server again for each new client. So all clients
of a process share SILENT.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from duewheel.deadline import Deadline

_REMEMBERED_S = 30.0

log = logging.getLogger("kafka.duewheel")  # among the clients' lines, which commands hide


class SilentServers:
    """Servers by host and port; each is forgotten after 30 s. Thread-safe."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        """Has none."""
        self._now_s = now_s
        self._remembered: dict[tuple[str, int], Deadline] = {}

    def add(self, host: str, port: int) -> None:
        """No connection came about, or a request on it has no answer."""
        if not self.has(host, port):
            text = "no answer from Kafka server %s:%s: it comes last for %g s"
            log.warning(text, host, port, _REMEMBERED_S)
        self._remembered[host, port] = Deadline(_REMEMBERED_S, None, self._now_s)

    def has(self, host: str, port: int) -> bool:
        """Whether it was silent not long ago."""
        remembered = self._remembered.get((host, port))
        return remembered is not None and not remembered.is_over


SILENT = SilentServers()  # for this process
