"""Records as ingest would judge them."""

from __future__ import annotations

from duewheel.api.due_time import DueTime
from duewheel.client.request_headers import timer_headers
from duewheel.config.settings import load
from duewheel.ops.changes.acceptance import require_accepted

NOW_MS = 1_800_000_000_000


def test_what_ingest_accepts_passes() -> None:
    timer = {"topics": "orders.delayed", "targets": "orders", "max_delay": "2d"}
    settings = load(None, {"timer": timer})
    when = DueTime.of(delay="2d")
    headers = timer_headers("orders", when, "orders.delayed", headers=[("x", b"1")], id="7")
    require_accepted(settings, "orders.delayed", b"key", b"value", headers, NOW_MS)
    require_accepted(settings, "orders.delayed", None, None, headers, NOW_MS)
