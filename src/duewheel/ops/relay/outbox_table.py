"""The outbox in PostgreSQL: reads the rows that no transaction of Kafka has sent.

A relay has sent all rows of its parts up to `part` of its position, and of these only the rows of
that last part may be left in the table. So each read begins by deleting them, in one transaction
with `part` in the table duewheel_relay:

    part there is the position's           they are deleted
    one less                               they are deleted now
    any other                              rows were sent that are back, or the position is an old
                                           one: nothing is read

The last line is a database that was restored, or a standby that has lost transactions: their
deletes are gone, too. Ids are random, so that no row is deleted in place of one that was lost.

Of the rows that remain, a part takes those that waited longest of each timer topic, by `seq`: each
topic with waiting rows has an equal share, so that no application's rows delay those of the others
by more than a part. A row that commits late, with a lower `seq` than others, is in a later part. A
row that was inserted after another one was committed has the higher `seq`, and the later place:
each snapshot that has it has the other one, too.

Applications choose the sizes of rows. So lengths are read first, which takes no memory, then the
rows that a part has room for. A row that PostgreSQL cannot read is found by halving the part.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple
from uuid import UUID

import psycopg
from psycopg.rows import args_row, scalar_row

from duewheel.checkpoints.relay_position import RelayPosition
from duewheel.errors import ConfigError, DatabaseUnavailable, Fenced, RecoveryRefused
from duewheel.ops.relay.outbox_rows import OutboxRow, RefusedRow

ROW_BYTES_MAX = 16 << 20
_PART_BYTES = 8 << 20  # of memory, and of a transaction, which must end in time
_OTHER_TOPICS = 10  # in a part, that timer.topics does not have: of its pattern, or of no topic
_REASON_CHARS = 500  # it may quote any column
# Classes of SQLSTATE that data causes: exceptions, limits exceeded, corruption. Out of memory is of
# the server: _PART_BYTES and ROW_BYTES_MAX bound the memory that rows need.
_OF_DATA = ("22", "54", "XX")
# For a server that no longer answers: s, ms, s; those of the connection string count more.
_TIMEOUTS = {"connect_timeout": 10, "tcp_user_timeout": 30_000, "keepalives_idle": 30}

# Names of topics pass as bytes: in a database without an encoding they may be no text. convert_from
# takes over the collation of getdatabaseencoding(), "C"; the index serves only comparisons by that
# of its column, the default one.
_NAME = 'convert_from(%(name)s, getdatabaseencoding()) COLLATE "default"'
# From one name to the next by the index, however many rows each has.
_NAMES = f"""
WITH RECURSIVE names (name) AS (
    SELECT min(timer_topic) FROM duewheel_outbox
    WHERE refused IS NULL AND (%(name)s::bytea IS NULL OR timer_topic > {_NAME})
    UNION ALL
    SELECT (SELECT min(timer_topic) FROM duewheel_outbox
            WHERE refused IS NULL AND timer_topic > name)
    FROM names WHERE name IS NOT NULL)
SELECT convert_to(name, getdatabaseencoding()) FROM names
WHERE name IS NOT NULL LIMIT %(count)s"""  # noqa: S608
# PostgreSQL knows the length of text and bytea without the content, which may be compressed to a
# hundredth. Two columns count 16 times: the hash of a key costs as much time, parsed JSON memory.
_WEIGHTS = {"timer_topic": 1, "value": 1, "target": 1, "timer_id": 1, "tag": 1}
_WEIGHTS |= {"key": 16, "headers": 16}
_SIZE = " + ".join(
    f"{weight} * coalesce(octet_length({name}), 0)::bigint" for name, weight in _WEIGHTS.items()
)
_LENGTHS = f"""
SELECT seq, id, {_SIZE} FROM duewheel_outbox
WHERE refused IS NULL AND timer_topic = {_NAME} ORDER BY seq LIMIT %(rows)s"""  # noqa: S608
_READ = """
SELECT seq, id, timer_topic, key, value, target, due_ms, timer_id, tag, cancels, headers
FROM duewheel_outbox WHERE seq = ANY(%s) ORDER BY seq"""
_BEGIN = "INSERT INTO duewheel_relay (name, part) VALUES (%s, 0) ON CONFLICT DO NOTHING"  # one row
# A lost commit would bring back rows that are sent.
_DURABLE = """SELECT set_config('synchronous_commit', 'on', false)
WHERE current_setting('synchronous_commit') = 'off'"""
_PART = "SELECT name, part FROM duewheel_relay"
_ADVANCE = "UPDATE duewheel_relay SET part = %(part)s WHERE name = %(name)s AND part = %(part)s - 1"
_DELETE = """DELETE FROM duewheel_outbox USING unnest(%s::bigint[], %s::uuid[]) AS sent (seq, id)
WHERE duewheel_outbox.seq = sent.seq AND duewheel_outbox.id = sent.id"""
_REFUSE = "UPDATE duewheel_outbox SET refused = %s WHERE seq = %s AND id = %s"

_MISSING_RIGHTS = """
SELECT string_agg(needed || ' on ' || name, ', ') FROM (VALUES
    ('SELECT', 'duewheel_outbox'), ('UPDATE', 'duewheel_outbox'), ('DELETE', 'duewheel_outbox'),
    ('SELECT', 'duewheel_relay'), ('INSERT', 'duewheel_relay'), ('UPDATE', 'duewheel_relay')
) AS rights (needed, name) WHERE NOT has_table_privilege(to_regclass(name), needed)"""


class _Length(NamedTuple):
    """The length of a row, in the order of the columns of _LENGTHS."""

    seq: int
    id: UUID
    size: int

    @property
    def is_readable(self) -> bool:
        return self.size <= ROW_BYTES_MAX


class OutboxTable:
    """One connection. Not thread-safe. After an error it is of no more use.

    Attributes:
        has_more: whether rows may have waited that the newest part had no room for.

    All methods raise DatabaseUnavailable without an answer, and ConfigError for a database without
    the tables, or without the rights.
    """

    def __init__(self, database: str, relay: str, topics: Sequence[str]) -> None:
        """Connects. `database` is a connection string or URL of libpq; empty: its variables. Each
        part looks for rows of all `topics`, and of some others.
        """
        self._relay, self._topics = relay, [topic.encode() for topic in topics]
        self.has_more = False
        self._last_topic = b""  # of the part before: the next one begins after it
        self._names_after: bytes | None = None  # are looked for next; None: all
        try:
            given = psycopg.conninfo.conninfo_to_dict(database)
        except psycopg.ProgrammingError:  # its text quotes the string, which may have a password
            raise ConfigError("relay.database is no connection string of PostgreSQL") from None
        with _explained():
            named: dict[str, Any] = {"application_name": f"duewheel relay {relay}", **_TIMEOUTS}
            named |= given | {"client_encoding": "utf8"}
            # No plan is kept: the table grows from no rows to millions.
            self._connection = psycopg.connect(autocommit=True, prepare_threshold=None, **named)
        with _explained(self._connection):
            self._connection.execute(_DURABLE)
            self._connection.execute(_BEGIN, [relay])

    def close(self) -> None:
        """Closes the connection."""
        self._connection.close()

    def require_own(self, position: RelayPosition) -> None:
        """Refuses a table whose rows this relay must not send. Raises as `next_rows`."""
        with _explained(self._connection):
            self._part(position)

    def next_rows(
        self, position: RelayPosition, rows_max: int
    ) -> tuple[list[OutboxRow], list[RefusedRow]]:
        """Deletes the rows of the position, and reads the next ones, in the order of `seq`; and
        names those that are not to be read, or cannot be.

        Raises:
            ConfigError: the table has a relay of another name.
            RecoveryRefused: PostgreSQL has gone back: rows that are sent may be in the table.
            Fenced: another relay has sent a later part.
        """
        with _explained(self._connection):
            with self._connection.transaction():
                if self._part(position) < position.part:
                    self._delete(position)
                lengths = self._lengths(rows_max)
            rows, refused = self._read([row for row in lengths if row.is_readable])
        refused += [
            RefusedRow(
                row.seq,
                row.id,
                f"{row.size} bytes, those of key and headers 16 times: at most {ROW_BYTES_MAX}",
            )
            for row in lengths
            if not row.is_readable
        ]
        return rows, refused

    def refuse(self, rows: Sequence[RefusedRow]) -> str:
        """Leaves out rows until `refused` is null again; returns the reason of the first."""
        reasons = [_storable(row.reason) for row in rows]
        with _explained(self._connection), self._connection.transaction():
            named = [(why, row.seq, row.id) for why, row in zip(reasons, rows, strict=True)]
            self._connection.cursor().executemany(_REFUSE, named)
        return reasons[0]

    def _lengths(self, rows_max: int) -> list[_Length]:
        """The lengths of the next rows. Timer topics have equal shares of them, and take turns as
        the first one, as a part may be full before the last one.
        """
        waiting = {}
        for name in self._waiting_topics():
            cursor = self._connection.cursor(row_factory=args_row(_Length))
            rows = cursor.execute(_LENGTHS, {"name": name, "rows": rows_max}).fetchall()
            if rows:
                waiting[name] = rows
        part, size = list[_Length](), 0
        for name in sorted(waiting, key=lambda name: (name <= self._last_topic, name)):
            for row in waiting[name][: max(1, rows_max // len(waiting))]:
                if size >= _PART_BYTES:
                    break
                part.append(row)
                size += row.size if row.is_readable else 0
                self._last_topic = name
        counts = [len(rows) for rows in waiting.values()]
        self.has_more = len(part) < sum(counts) or rows_max in counts or bool(self._names_after)
        return part

    def _waiting_topics(self) -> set[bytes]:
        """The timer topics that may have rows: all of timer.topics, and so many of the others."""
        cursor = self._connection.cursor(row_factory=scalar_row)
        after, count = self._names_after, len(self._topics) + _OTHER_TOPICS
        found = cursor.execute(_NAMES, {"name": after, "count": count}).fetchall()
        self._names_after = found[-1] if len(found) == count else None
        are_all = after is None and len(found) < count
        return set(found) if are_all else {*self._topics, *found}

    def _read(self, rows: Sequence[_Length]) -> tuple[list[OutboxRow], list[RefusedRow]]:
        """Reads rows, but for those that PostgreSQL cannot read."""
        if not rows:
            return [], []
        try:
            cursor = self._connection.cursor(row_factory=args_row(OutboxRow))
            return cursor.execute(_READ, [[row.seq for row in rows]]).fetchall(), []
        except psycopg.Error as error:
            if not (error.sqlstate or "").startswith(_OF_DATA):
                raise
            if len(rows) == 1:
                return [], [RefusedRow(rows[0].seq, rows[0].id, f"PostgreSQL: {_text(error)}")]
        half = len(rows) // 2
        first, last = self._read(rows[:half]), self._read(rows[half:])
        return first[0] + last[0], first[1] + last[1]

    def _part(self, position: RelayPosition) -> int:
        name, part = self._connection.execute(_PART).fetchone() or (self._relay, 0)
        if name != self._relay:
            raise ConfigError(f"the relay {name!r} sends these rows: another one would repeat them")
        if part > position.part:
            raise Fenced(
                f"the relay {self._relay!r} has sent part {part}, and its position in Kafka is "
                f"{position.part}: another one runs under this name, or Kafka has lost the position"
            )
        if part < position.part - 1:
            raise RecoveryRefused(
                f"PostgreSQL has gone back: the relay {self._relay!r} has deleted part "
                f"{position.part - 1}, and there only {part} is deleted. Rows may be there that "
                "are sent: docs/outbox.md says how to go on"
            )
        return part

    def _delete(self, position: RelayPosition) -> None:
        named = {"name": self._relay, "part": position.part}
        if self._connection.execute(_ADVANCE, named).rowcount != 1:
            raise Fenced(f"another relay runs under the name {self._relay!r}")
        rows = position.named_rows
        names = [seq for seq, _ in rows], [row_id for _, row_id in rows]
        self._connection.execute(_DELETE, names)


@contextmanager
def _explained(connection: psycopg.Connection[Any] | None = None) -> Iterator[None]:
    """Raises errors of the driver as ours, without the values of parameters."""
    try:
        yield
    except psycopg.Error as error:
        if isinstance(error, psycopg.errors.InsufficientPrivilege) and connection is not None:
            _require_rights(connection, error)
        text = _text(error)
        if isinstance(error, psycopg.ProgrammingError | psycopg.DataError):
            raise ConfigError(f"PostgreSQL: {text}: docs/outbox.md has the tables") from None
        raise DatabaseUnavailable(f"PostgreSQL: {text}") from None


def _require_rights(connection: psycopg.Connection[Any], denied: psycopg.Error) -> None:
    """Raises ConfigError if a right is missing on a table that is found."""
    with suppress(psycopg.Error):
        if (row := connection.execute(_MISSING_RIGHTS).fetchone()) and row[0]:
            raise ConfigError(
                f"PostgreSQL: {_text(denied)}: the relay's role lacks {row[0]} (docs/outbox.md)"
            ) from None


def _text(error: psycopg.Error) -> str:
    """The first line of an error, which has no values of parameters."""
    return error.diag.message_primary or str(error).partition("\n")[0]


def _storable(reason: str) -> str:
    """A reason as text of PostgreSQL, without characters that this cannot have."""
    printable = reason[:_REASON_CHARS].replace("\0", "\\0")
    return printable.encode("utf-8", "backslashreplace").decode()
