"""An outbox in a database of a test's own, and applications that write to it."""

from __future__ import annotations

import random
import re
import threading
import time
from pathlib import Path
from typing import Any

import psycopg

from duewheel.adapters import outbox

PAGE = Path(__file__).resolve().parents[2] / "docs" / "outbox.md"
NO_POSTGRES = "PostgreSQL is not installed"


def sql_of_page() -> list[str]:
    """The SQL of docs/outbox.md: the tables, then an application's rows."""
    return re.findall(r"```sql\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)


def python_of_page() -> str:
    """The functions of docs/outbox.md that insert rows."""
    (text,) = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    return str(text)


def make_tables(database: str, timer_topic: str) -> None:
    """Makes the tables anew."""
    with psycopg.connect(database) as connection:
        connection.execute("DROP TABLE IF EXISTS duewheel_outbox, duewheel_relay")
        connection.execute(sql_of_page()[0].replace("orders.delayed", timer_topic))


class Writers:
    """Applications that write at once: each row has the writer as its key.

    Attributes:
        committed: values by key, in the order of the commits.
    """

    def __init__(self, database: str, target: str, count: int = 4, seed: int = 0) -> None:
        self._database, self._target = database, target
        self._ending = threading.Event()
        self.committed: dict[bytes, list[bytes]] = {b"%d" % n: [] for n in range(count)}
        self._threads = [
            threading.Thread(target=self._write, args=(str(n), random.Random(seed + n)))
            for n in range(count)
        ]
        for thread in self._threads:
            thread.start()

    def end(self) -> dict[bytes, list[bytes]]:
        """Ends them; returns what they have committed."""
        self._ending.set()
        for thread in self._threads:
            thread.join()
        return self.committed

    def _write(self, key: str, chance: random.Random) -> None:
        number = 0
        with psycopg.connect(self._database) as connection:
            while not self._ending.is_set():
                written = []
                connection.execute("SELECT 1")  # begins: the blocks below are savepoints
                for _ in range(chance.randint(1, 4)):
                    with connection.transaction(force_rollback=chance.random() < 0.2) as inner:
                        number += 1
                        value = f"{key}-{number}".encode()
                        execute = connection.execute
                        outbox.schedule(execute, self._target, value, key=key, delay="40m")
                    if not inner.force_rollback:
                        written.append(value)
                    time.sleep(chance.random() / 100)
                if chance.random() < 0.3:
                    connection.rollback()
                else:
                    connection.commit()
                    self.committed[key.encode()] += written


def by_key(records: list[Any]) -> dict[bytes, list[bytes]]:
    """The values of records by key, in the order of their offsets."""
    found: dict[bytes, list[bytes]] = {}
    for record in sorted(records, key=lambda each: (each.partition, each.offset)):
        found.setdefault(record.key, []).append(record.value)
    return found
