"""The decision of ingest about a request, before it is written."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duewheel.config.settings import load
from duewheel.factory import contract
from duewheel.schemas.header_names import NAME_OF
from duewheel.schemas.request import preview
from duewheel.schemas.request.preview import Preview, Record, Rejection, previews_of, rejection_of
from duewheel.schemas.wire import record_reader
from duewheel.schemas.wire.batch_reader import HEADERS_MAX
from duewheel.schemas.wire.record_codec import LETTER_END

NOW_MS = 1_800_000_000_000
CONTRACT = contract(load(None, {"timer": {"topics": "orders.delayed", "targets": "orders"}}))
REQUEST = (("REAL_TOPIC", b"orders"), ("TIMER_DELAY_MS", b"1000"))


def timer(headers: int, delay_ms: int = 1_000) -> Record:
    """A timer with so many headers."""
    own = [("", b"")] * (headers - len(REQUEST))
    return b"k", b"v", [REQUEST[0], ("TIMER_DELAY_MS", b"%d" % delay_ms), *own]


def previews(*records: Record) -> list[Preview]:
    return previews_of(CONTRACT, "orders.delayed", records, NOW_MS)


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


@pytest.mark.parametrize("headers", [[200_000, 900_000], [400_000, 400_000, 400_000]])
def test_records_that_no_batch_could_have_together_are_accepted(headers: list[int]) -> None:
    """Two records of one team must not end a recovery for all."""
    accepted = Preview(None, NOW_MS + 1_000, "orders")
    assert previews(*map(timer, headers)) == [accepted] * len(headers)


def test_a_record_that_no_batch_could_have_is_refused_alone() -> None:
    accepted = Preview(None, NOW_MS + 1_000, "orders")
    reason = "it has more headers than 1000000, those of a record batch"
    refused = Preview(Rejection("unreadable_batch", reason), None, None)
    seen = previews(timer(2), timer(HEADERS_MAX + 1), timer(2))
    assert seen == [accepted, refused, accepted]


def test_a_waiting_dead_letter_is_refused() -> None:
    end = [(NAME_OF[request], b"5") for request in LETTER_END]
    accepted, refused = previews(timer(2), (b"k", b"v", [*REQUEST, *end]))
    assert accepted.rejection is None
    assert refused.rejection is not None
    assert refused.rejection.code == "waited"


@given(
    st.lists(st.tuples(st.integers(2, 12), st.integers(0, 9)), max_size=8),
    st.integers(2, 10),
)
def test_each_record_has_the_preview_that_it_has_alone(
    records: list[tuple[int, int]], headers_max: int
) -> None:
    with pytest.MonkeyPatch.context() as patched:
        for module in (preview, record_reader):
            patched.setattr(module, "HEADERS_MAX", headers_max)
        timers = [timer(*record) for record in records]
        alone = [seen for each in timers for seen in previews(each)]
        assert previews(*timers) == alone
    refused = [each.rejection is not None for each in alone]
    assert refused == [headers > headers_max for headers, _ in records]
