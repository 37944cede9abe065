"""Makes the record of a timer topic of a row of the outbox (docs/outbox.md has the columns)."""

from __future__ import annotations

import json
from typing import Any, NamedTuple
from uuid import UUID

from duewheel.api.requests import NewTimer
from duewheel.client.request_headers import BY_COLUMNS, users
from duewheel.config.settings import Settings
from duewheel.errors import ConfigError, InvalidTimer
from duewheel.ops.changes.requests import record_headers
from duewheel.ops.named_timer_topic import timer_topic_of
from duewheel.ops.source_records import TimerRecord
from duewheel.schemas.header_names import ID_BYTES_MAX, NAME_OF, Request


class OutboxRow(NamedTuple):
    """A row, in the order of the columns of outbox_table.py's query."""

    seq: int
    id: UUID
    timer_topic: str
    key: str | None
    value: bytes | None
    target: str | None
    due_ms: int | None
    timer_id: str
    tag: str | None
    cancels: bool
    headers: str | None  # JSON

    @property
    def name(self) -> bytes:
        """Its name in a ledger."""
        return b"%d" % self.seq

    def refused(self, reason: str) -> RefusedRow:
        """This row, left out for a reason."""
        return RefusedRow(self.seq, self.id, reason)


class RefusedRow(NamedTuple):
    """A row that is not sent."""

    seq: int
    id: UUID
    reason: str


def record_of_row(settings: Settings, row: OutboxRow, now_ms: int) -> TimerRecord:
    """Makes the record.

    Raises:
        ConfigError: no record can be made of the row.
    """
    key = None if row.key is None else row.key.encode()
    route = row.timer_id.encode() if key is None else key
    if row.cancels:
        to, timer_id = timer_topic_of(settings, row.timer_topic), row.timer_id.encode()
        if not 0 < len(timer_id) <= ID_BYTES_MAX:
            raise InvalidTimer(f"timer_id has not 1 to {ID_BYTES_MAX} bytes")
        cancel = [(NAME_OF[Request.CANCEL], timer_id)]
        return TimerRecord(to, key, None, cancel, None, None, route)
    fields = {
        "timer_topic": row.timer_topic,
        "topic": row.target,
        "deliver_at": row.due_ms,
        "key": row.key,
        "value": "" if row.value is not None else None,  # the bytes need no check
        "id": row.timer_id,
        "tag": row.tag,
        "headers": _headers(row.headers),
    }
    timer = NewTimer.of(fields)
    users(timer.header_octets, BY_COLUMNS)
    to, request = record_headers(settings, timer, now_ms)
    return TimerRecord(to, key, row.value, request, None, None, route)


def _headers(text: str | None) -> list[dict[str, Any]]:
    """The headers of the message, as fields of NewTimer.

    Raises:
        ConfigError: the text is no JSON object.
    """
    try:
        headers = json.loads(text or "{}")
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"headers: this is no JSON: {error}") from error
    if not isinstance(headers, dict):
        raise ConfigError("headers: this is no JSON object")
    return [{"name": name, "value": value} for name, value in headers.items()]
