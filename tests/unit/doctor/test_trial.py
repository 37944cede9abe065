"""What `duewheel doctor` says of transactions, from what a reader has seen."""

from __future__ import annotations

import pytest

from duewheel.doctor import trial


@pytest.mark.parametrize(
    ("seen", "errors"),
    [
        ({trial.COMMITTED, trial.OFFSETS}, []),
        ({trial.COMMITTED}, ["committed_seen"]),
        ({trial.COMMITTED, trial.OFFSETS, trial.ZOMBIE}, ["fencing"]),
        ({trial.COMMITTED, trial.OFFSETS, trial.ABORTED}, ["read_committed"]),
    ],
)
def test_what_a_reader_of_committed_records_has_seen(seen: set[bytes], errors: list[str]) -> None:
    found = trial.check_seen("t", seen, {trial.COMMITTED, trial.OFFSETS})
    assert [f.code for f in found if f.severity == "error"] == errors
