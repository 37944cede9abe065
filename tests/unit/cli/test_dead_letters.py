"""The line of a dead letter."""

from __future__ import annotations

import pytest
from tests.harness.local_world import NOW_MS

from duewheel.checkpoints.dlq_replay_position import ReplayPosition
from duewheel.cli.dead_letters import letter_line
from duewheel.ops.dead_letters.listing import summary_of
from duewheel.schemas.dead_letters import DeadLetter
from duewheel.schemas.wire.single_record import Header


@pytest.mark.parametrize(
    ("before", "after", "shown"),
    [
        ([], [("UNIQ_KEY", b"report")], "key k  id report  "),  # a failed delivery
        ([("UNIQ_KEY", b"report")], [], "key k  id report  "),  # a rejected message
        ([], [("UNIQ_KEY", b"timers-0@5")], "key k  1 bytes"),  # a timer without an id
        ([], [], "key k  1 bytes"),
    ],
)
def test_a_dead_letter_has_the_id_of_its_timer(
    before: list[Header], after: list[Header], shown: str
) -> None:
    error: list[Header] = [("TIMER_ERROR_CODE", b"expired"), ("TIMER_ERROR", b"late")]
    headers = [*before, *error, *after, ("TIMER_SOURCE", b"timers-0@5")]
    letter = DeadLetter(0, 7, NOW_MS, b"k", b"v", headers)
    summary = summary_of(letter, ReplayPosition.decode(None, "id"))
    expected = dict([*before, *after]).get("UNIQ_KEY")
    assert summary.as_json().get("id") == (expected.decode() if expected else None)
    assert shown in letter_line(summary)
