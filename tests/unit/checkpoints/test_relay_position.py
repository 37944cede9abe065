"""The position of a relay, as it stands in the state topic."""

from __future__ import annotations

from uuid import uuid4

import pytest

from duewheel.checkpoints.relay_position import RelayPosition, key_of
from duewheel.errors import RecoveryRefused


def test_it_is_read_as_it_was_written() -> None:
    assert RelayPosition.decode(None, "mine") == RelayPosition()
    rows = [(7, uuid4()), (9, uuid4())]
    position = RelayPosition(4).after(rows)
    assert (position.part, position.named_rows) == (5, rows)
    assert RelayPosition.decode(position.encode(), "mine") == position
    assert key_of("mine") == b"relay:mine"


def test_a_part_of_a_thousand_rows_is_small() -> None:
    rows = [(10**15 + n, uuid4()) for n in range(1_000)]
    assert len(RelayPosition().after(rows).encode()) < 33_000


@pytest.mark.parametrize(
    "value",
    [
        *(b"", b"[]", b'{"part": 1}', b'{"part": -1, "rows": ""}', b'{"part": 1, "rows": 7}'),
        *(b'{"part": 1, "rows": "AAAA"}', b'{"part": 1, "rows": "!"}'),
    ],
)
def test_other_bytes_are_refused(value: bytes) -> None:
    with pytest.raises(RecoveryRefused, match="the relay 'mine' cannot be read"):
        RelayPosition.decode(value, "mine")
