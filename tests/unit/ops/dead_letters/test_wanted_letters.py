"""Dead letters that are selected in columns are those that the objects would select."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st
from tests.harness.record_batches import NOW_MS, batch

from duewheel.kafka.log.columns import committed_records, records_one_by_one
from duewheel.kafka.log.leader_requests import Fetched
from duewheel.ops.dead_letters.wanted_letters import WantedLetters
from duewheel.schemas.dead_letters import DeadLetter
from duewheel.schemas.topic_scope import ALL_TOPICS, TopicScope

PLACE = ("dead", 0)
CODE, SOURCE = "TIMER_ERROR_CODE", "TIMER_SOURCE"
SOURCES = [
    "timers-0@1",
    "timers-1-0@2",
    "timers-0@3\n",
    "tim-0@1@2",
    "bills-7@0",
    "-0@1",
    "t\n-0@1",
]
VALUES = st.none() | st.sampled_from(
    [b"", b"rate", b"\xff-0@1", "timör-0@1".encode(), *(each.encode() for each in SOURCES)]
)
HEADERS = st.lists(
    st.tuples(st.sampled_from([CODE, SOURCE, "", "TIMER_SOURCe"]), VALUES), max_size=6
)
SCOPES = [ALL_TOPICS, TopicScope(("timers",)), TopicScope(("t*", "bills")), TopicScope(("??????",))]


@given(
    st.lists(HEADERS, min_size=1, max_size=8),
    st.none() | st.sampled_from(["", "rate", "timers-0@1"]),
    st.sampled_from(SCOPES),
)
@example([[(SOURCE, b"timers-0@1"), (CODE, b"rate"), (SOURCE, b"bills-0@1")]], "rate", SCOPES[1])
@example([[(CODE, b"rate"), (SOURCE, b"timers-0@1"), (CODE, b"x")]], "x", SCOPES[1])
@example([[(SOURCE, b"timers-0@1")], [(CODE, b"x"), (SOURCE, b"timers-0@1")]], None, SCOPES[1])
def test_the_same_letters_as_one_by_one(
    headers: list[list[tuple[str, bytes | None]]], code: str | None, scope: TopicScope
) -> None:
    """The last error counts, and the source after it: a message may have both headers itself."""
    octets = memoryview(batch([(NOW_MS, None, b"v", each) for each in headers]))
    ranges = {PLACE: (0, len(headers))}
    (records,) = committed_records([Fetched(PLACE, octets, (), 0, len(headers))], ranges)
    letters = [DeadLetter(0, *row) for row in records_one_by_one(records)]
    expected = [
        letter.offset
        for letter in letters
        if code in (None, letter.code) and scope.has_record(letter.source)
    ]
    assert WantedLetters(code, scope).rows(records).tolist() == expected
