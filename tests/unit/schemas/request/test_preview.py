"""The decision of ingest about a request, before it is written."""

from __future__ import annotations

from duewheel.config.settings import load
from duewheel.factory import contract
from duewheel.schemas.request.preview import Rejection, rejection_of

NOW_MS = 1_800_000_000_000


def test_a_refusal_has_the_words_of_the_dead_letter() -> None:
    timer = {"topics": "orders.delayed", "targets": "orders", "max_delay": "2d"}
    settings = load(None, {"timer": timer})
    headers = [("REAL_TOPIC", b"orders"), ("TIMER_DELAY_MS", b"172800001")]
    refused = rejection_of(contract(settings), "orders.delayed", None, b"", headers, NOW_MS)
    reason = (
        "due 172800001 ms after the record's timestamp, window included: timer.max_delay allows "
        "172800000 ms"
    )
    assert refused == Rejection("delay_too_long", reason)
