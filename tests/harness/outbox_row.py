"""A row of an outbox, and settings under which its record is a timer."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from tests.harness.local_world import NOW_MS

from duewheel.config.settings import Settings, load
from duewheel.ops.relay.outbox_rows import OutboxRow


def relay_settings() -> Settings:
    timer = {"topics": ["orders.delayed", "mails.delayed"], "targets": ["*"], "max_delay": "36500d"}
    return load(None, {"timer": timer | {"roll_window": "1h", "margin": "5m"}})


def outbox_row(**columns: Any) -> OutboxRow:
    given: dict[str, Any] = {
        "seq": 7,
        "id": UUID("0f8fad5b-d9cb-469f-a165-70867728950e"),
        "timer_topic": "orders.delayed",
        "key": "order-42",
        "value": b"pay\xff",
        "target": "orders",
        "due_ms": NOW_MS + 900_000,
        "timer_id": "reminder-42",
        "tag": None,
        "cancels": False,
        "headers": None,
    }
    return OutboxRow(**given | columns)
