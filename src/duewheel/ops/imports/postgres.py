"""Imports the rows of a query in PostgreSQL.

The query names the columns of a message: `position`, `due`, `topic`, `value`, and perhaps `key` and
`id`. Rows are read in the order of `position`, which must be unique and not null: the position of
the import is its value in the last row that was read, as text. So rows must not be added before it
during the import: such rows are missed, and counted at the end.

One read-only transaction reads all rows, in one state of the database. The query is the operator's
own, as in psql.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any

from duewheel.checkpoints.import_position import Place
from duewheel.errors import ConfigError
from duewheel.ops.imports.source import DueMessage, Entry, SourceChunk, refused

_CHUNK_ROWS = 500
_NEEDED = ("position", "due", "topic", "value")
_COLUMNS = (*_NEEDED, "key", "id")
_POSITION = 'source."position"'


@dataclass
class PostgresSource:
    """See ImportSource. Made by `postgres_source`.

    Attributes:
        name, identity: see there.
    """

    name: str
    identity: Mapping[str, str]
    _connection: Any
    _query: str
    _columns: Sequence[str]
    _timer_topic: str

    def size(self, place: Place) -> int:
        """See ImportSource."""
        where, values = _behind(place)
        return self._count(where, values)

    def missed(self, place: Place, read: int) -> int:
        """See ImportSource. Rows that were deleted meanwhile may hide as many."""
        if not place:
            return 0
        self._connection.rollback()  # look at the rows of now
        return max(0, self._count(f"WHERE {_POSITION} <= %s", [place["position"]]) - read)

    def chunks(self, place: Place) -> Iterator[SourceChunk]:
        """See ImportSource.

        Raises:
            ConfigError: a position is null, or there twice.
        """
        while True:
            where, values = _behind(place)
            selected = ", ".join(f'source."{name}"' for name in self._columns)
            rows: list[tuple[Any, ...]] = self._connection.execute(
                f"SELECT {_POSITION}::text, {selected} FROM ({self._query}) AS source {where} "
                f"ORDER BY {_POSITION} LIMIT {_CHUNK_ROWS + 1}",
                values,
            ).fetchall()
            _require_unique([row[0] for row in rows])
            rows = rows[:_CHUNK_ROWS]
            if not rows:
                return
            place = {"position": rows[-1][0]}
            yield SourceChunk([self._entry(row) for row in rows], place, len(rows))

    def _count(self, where: str, values: Sequence[str]) -> int:
        counted = f"SELECT count(*) FROM ({self._query}) AS source {where}"
        rows: list[tuple[int]] = self._connection.execute(counted, values).fetchall()
        return rows[0][0]

    def _entry(self, row: tuple[Any, ...]) -> Entry:
        place, *values = row
        fields = dict(zip(self._columns, values, strict=True))
        name = f"{self.name}@{place}"
        try:
            timer_id = fields.get("id", name)
            message = DueMessage(
                name,
                _due_ms(fields["due"]),
                str(fields["topic"]),
                _octets(fields.get("key")),
                _octets(fields["value"]),
                name if timer_id is None else str(timer_id),
            )
        except (ValueError, OverflowError) as error:
            return refused(name, str(error))
        return message.entry(self._timer_topic)


def _behind(place: Place) -> tuple[str, list[str]]:
    return (f"WHERE {_POSITION} > %s", [place["position"]]) if place else ("", [])


def _require_unique(positions: Sequence[str | None]) -> None:
    if None in positions:
        raise ConfigError("a position is null: take a column that never is, and is unique")
    twice = [a for a, b in itertools.pairwise(positions) if a == b]
    if twice:
        raise ConfigError(f"the position {twice[0]} is there twice: take a unique column")


def _due_ms(due: object) -> int:
    """The due time of a timestamp with time zone, or of epoch milliseconds."""
    if isinstance(due, datetime) and due.tzinfo is not None:
        return round(due.timestamp() * 1000)
    if isinstance(due, int | Decimal):
        return round(due)
    raise ValueError(
        f"due is {due!r}: it must be a timestamp with time zone, or epoch milliseconds"
    )


def _octets(value: object) -> bytes | None:
    """The bytes of a column: as they are, the text, or JSON of what PostgreSQL has as JSON."""
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, dict | list):
        return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()
    return str(value).encode()


@contextmanager
def postgres_source(dsn: str, query: str, name: str, timer_topic: str) -> Iterator[PostgresSource]:
    """Opens a source; closes its connection at the end of the with block.

    Args:
        dsn: of libpq; what it leaves out comes from libpq's variables and files.
        query: a SELECT with the columns of a message.
        name: of the import.
        timer_topic: to which the timers will be written.

    Raises:
        ConfigError: PostgreSQL cannot be read, or the query lacks a column.
    """
    import psycopg

    query = query.strip().rstrip(";")
    try:
        with psycopg.connect(dsn) as connection:
            connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            connection.read_only = True
            columns = _columns(connection, query)
            (database, cluster) = connection.execute(
                "SELECT current_database(), system_identifier::text FROM pg_control_system()"
            ).fetchall()[0]
            # Not the query: one that is corrected after a refusal continues.
            identity = {"service": "postgres", "cluster": cluster, "database": database}
            yield PostgresSource(
                name=name,
                identity=identity,
                _connection=connection,
                _query=query.replace("%", "%%"),
                _columns=columns,
                _timer_topic=timer_topic,
            )
    except psycopg.Error as error:
        raise ConfigError(f"PostgreSQL: {error}") from error


def _columns(connection: Any, query: str) -> list[str]:
    """The columns of the query that mean something."""
    cursor = connection.execute(f"SELECT * FROM ({query}) AS source LIMIT 0")
    names = [column.name for column in cursor.description]
    missing = [name for name in _NEEDED if name not in names]
    if missing:
        raise ConfigError(
            f"the query has no column {', '.join(missing)}: name them with AS; "
            f"it needs {', '.join(_NEEDED)}, and may have key and id"
        )
    return [name for name in _COLUMNS if name in names]
