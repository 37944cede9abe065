"""A relay in a thread of the test, and what it has sent."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from tests.harness.launcher import wait_until
from tests.harness.reader import read_topic

from duewheel.adapters import outbox
from duewheel.config.settings import Settings
from duewheel.errors import DuewheelError
from duewheel.ops.relay import relay

Connection = psycopg.Connection[Any]


class Relaying:
    """A relay in a thread."""

    def __init__(self, settings: Settings, name: str = "outbox") -> None:
        self.error: DuewheelError | None = None
        self._given = settings, name
        self.stopping = threading.Event()
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        try:
            relay.run_relay(*self._given, self.stopping)
        except DuewheelError as error:
            self.error = error

    def end(self) -> None:
        self.stopping.set()
        self.thread.join()


@contextmanager
def relaying(settings: Settings, name: str = "outbox") -> Iterator[Relaying]:
    running = Relaying(settings, name)
    try:
        yield running
    finally:
        running.end()


def count(connection: Connection, where: str = "true") -> int:
    row = connection.execute(f"SELECT count(*) FROM duewheel_outbox WHERE {where}").fetchone()
    assert row is not None
    return int(row[0])


def wait_empty(connection: Connection, running: Relaying) -> None:
    def is_empty() -> bool:
        assert running.thread.is_alive(), running.error
        return count(connection, "refused IS NULL") == 0

    wait_until(is_empty, "rows are left")


def relay_all(settings: Settings, connection: Connection) -> None:
    with relaying(settings) as running:
        wait_empty(connection, running)


def taken(settings: Settings) -> list[Any]:
    return read_topic(settings.kafka.servers, settings.timer.topics[0])


def values(settings: Settings) -> list[bytes]:
    return sorted(record.value or b"" for record in taken(settings))


def insert(connection: Connection, *names: str, key: str = "k") -> None:
    for name in names:
        outbox.schedule(connection.execute, "orders", name.encode(), key=key, delay="40m")
