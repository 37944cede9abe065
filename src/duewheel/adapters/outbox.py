"""Timers that are written in the application's own transaction, to a table in PostgreSQL.

    outbox.schedule(connection.execute, "orders", b"pay", key="order-42", delay="15m", id="r-42")
    outbox.cancel(connection.execute, "r-42", key="order-42")      # paid meanwhile

Each inserts one row (docs/outbox.md); `duewheel relay postgres` sends it once the transaction has
committed. `execute` runs a statement with parameters by name, written as %(name)s:

    psycopg      connection.execute, or cursor.execute
    Django       cursor.execute, with django.db.connection.cursor() as cursor
    SQLAlchemy   session.connection().exec_driver_sql, with psycopg or psycopg2
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any

from duewheel.api.due_time import DueTime
from duewheel.client.request_headers import BY_COLUMNS, require_message, timer_headers, users
from duewheel.clock import SystemClock
from duewheel.errors import InvalidTimer

Execute = Callable[[str, dict[str, Any]], Any]
Headers = Mapping[str, str | bytes] | Iterable[tuple[str, str | bytes]]


def schedule(
    execute: Execute,
    target: str,
    value: bytes | None,
    *,
    deliver_at: datetime | int | None = None,
    delay: timedelta | str | None = None,
    key: str | bytes | None = None,
    id: str | None = None,
    tag: str | None = None,
    headers: Headers | None = None,
    timer_topic: str | None = None,
) -> None:
    """Inserts a timer.

    Args:
        deliver_at, delay: one of both; a delay counts from now on, not from the commit.
        key: text, or its bytes in UTF-8.
        headers: a mapping, or pairs as for DelayProducer, each name once; values as `key`.
        id: for cancels; by default a random one.
        timer_topic: None for the default of the column.

    Raises:
        InvalidTimer: an argument is impossible; nothing was inserted.
    """
    if (deliver_at is None) == (delay is None):
        raise InvalidTimer("give exactly one of deliver_at and delay")
    now_ms = SystemClock().now_ms()
    due = DueTime.of(DueTime.of(deliver_at, delay).due_ms(now_ms, ()))
    texts, key_text = _header_texts(headers), _key_text(key)
    own = users([(name, text.encode()) for name, text in texts.items()], BY_COLUMNS)
    require_message(key, value)
    timer_headers(target, due, timer_topic or "", headers=own, tag=tag, id=id)
    _insert(
        execute,
        timer_topic=timer_topic,
        key=key_text,
        value=value,
        target=target,
        due_ms=due.number,
        timer_id=id,
        tag=tag,
        headers=json.dumps(texts) if texts else None,
    )


def cancel(
    execute: Execute, id: str, *, key: str | bytes | None, timer_topic: str | None = None
) -> None:
    """Inserts a cancel of the pending timers with this id in the partition of the key.

    Raises:
        InvalidTimer: the key is no text; nothing was inserted.
    """
    _insert(execute, timer_topic=timer_topic, key=_key_text(key), timer_id=id, cancels=True)


def _header_texts(headers: Headers | None) -> dict[str, str]:
    texts = dict[str, str]()
    for pair in headers.items() if isinstance(headers, Mapping) else headers or ():
        match pair:
            case (str(name), value) if name not in texts:
                texts[name] = _text(value, f"the header {name}")
            case _:
                raise InvalidTimer(
                    "headers: give a mapping, or pairs of a name and a value, each name once: a "
                    "row has them as a JSON object"
                )
    return texts


def _key_text(key: str | bytes | None) -> str | None:
    return None if key is None else _text(key, "the key")


def _text(given: str | bytes, name: str) -> str:
    # Of bytes a column of text would get the hexadecimal digits.
    try:
        return given if isinstance(given, str) else str(given, "utf-8")
    except (TypeError, UnicodeDecodeError):
        raise InvalidTimer(f"{name} is neither text nor bytes of UTF-8") from None


def _insert(execute: Execute, **columns: object) -> None:
    given = {name: value for name, value in columns.items() if value is not None}
    names, values = ", ".join(given), ", ".join(f"%({name})s" for name in given)
    execute(f"INSERT INTO duewheel_outbox ({names}) VALUES ({values})", given)  # noqa: S608
