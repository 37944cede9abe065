"""Batches of rare records: joined ones are those that the same records make."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duewheel.schemas.wire.batch_reader import CorruptBatch
from duewheel.schemas.wire.record_batch import Batch
from duewheel.schemas.wire.record_rows import rows_of
from duewheel.schemas.wire.single_record import Content, batches, encode, joined

OCTETS = st.none() | st.binary(max_size=200)
CONTENTS = st.lists(
    st.tuples(OCTETS, OCTETS, st.lists(st.tuples(st.text(max_size=9), OCTETS), max_size=3)),
    max_size=300,
)
BYTES = st.integers(1, 5_000)


@given(CONTENTS, BYTES, BYTES)
def test_joined_batches_are_those_of_their_records(
    contents: list[Content], before: int, after: int
) -> None:
    few = joined(batches(contents, before), after)
    assert list(few) == list(batches(contents, after))


@pytest.mark.parametrize(
    ("body", "count"),
    [
        (encode(0, b"k", b"v")[:-1], 1),
        (encode(0, b"k", b"v"), 2),
        (encode(0, b"k", b"v") + b"\0", 1),
        (b"", 1),
        (b"\x0c\1\0\0\1\1\0", 1),  # an attribute
        (b"\x0c\0\2\0\1\1\0", 1),  # a time of its own
        (b"\2\0\0\0", 1),  # ends within its head
        (b"\x01\0\0\0", 1),  # a negative length
    ],
)
def test_a_record_of_another_program_is_refused(body: bytes, count: int) -> None:
    with pytest.raises(CorruptBatch):
        list(joined([Batch(memoryview(body), count)], 1_000))


@given(st.binary(max_size=100), st.integers(1, 5))
def test_any_bytes_are_refused_or_joined(body: bytes, count: int) -> None:
    try:
        found = list(joined([Batch(memoryview(body), count)], 1_000))
    except CorruptBatch:
        return
    assert sum(batch.count for batch in found) == count


def test_the_joined_records_are_read_in_their_order() -> None:
    """More than 63 of them: their numbers then take two bytes."""
    texts = [b"%d" % number for number in range(200)]
    (one,) = joined((Batch(memoryview(encode(0, None, text)), 1) for text in texts), 10_000)
    rows = [(delta, value) for delta, _, _, value, _ in rows_of(one.body, one.count)]
    assert rows == list(enumerate(texts))
