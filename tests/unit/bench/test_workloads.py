from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from tests.bench.figures import Recorder
from tests.bench.session import Report, Session
from tests.bench.system import RECEIPT, Receipts, System, TimerLoad


def a_session(path: Path, rows: list[tuple[int, int]]) -> Session:
    """`rows`: number and time of each receipt."""
    received = np.array([(number, at, at) for number, at in rows], RECEIPT)
    (path / "receipts").write_bytes(received.tobytes() + b"half a record")
    system = SimpleNamespace(name="fake", config={}, receipts=Receipts(path / "receipts"))
    return Session(cast("System", system), Recorder())


def values(session: Session) -> Mapping[str, Any]:
    return {figure.metric: figure.value for figure in session.recorder.figures}


def test_what_is_lost_repeated_and_early_is_counted(tmp_path: Path) -> None:
    load = TimerLoad(10, np.array([100, 200, 300, 400]))
    session = a_session(tmp_path, [(9, 0), (10, 105), (11, 199), (10, 106), (12, 303), (14, 0)])
    rows = session.received(load)
    Report(session, "any", {}).delivery(load, rows)
    assert rows["number"].tolist() == [10, 11, 10, 12]
    assert values(session) == {"lost": 1.0, "repeated": 1.0, "early": 1.0}


def test_lateness_is_the_time_of_receipt_minus_the_due_time(tmp_path: Path) -> None:
    load = TimerLoad(0, np.array([1_000, 2_000, 3_000]))
    session = a_session(tmp_path, [(2, 3_030), (0, 1_010), (1, 2_020)])
    Report(session, "any", {}).lateness(load, session.received(load))
    assert values(session)["lateness p50"] == 20.0
    assert values(session)["lateness max"] == 30.0


def test_a_consumer_that_has_written_nothing_has_received_nothing(tmp_path: Path) -> None:
    receipts = Receipts(tmp_path / "none")
    assert len(receipts) == len(receipts.read()) == 0


@pytest.mark.parametrize("count", [0, 3])
def test_receipts_are_counted_without_reading_them(tmp_path: Path, count: int) -> None:
    (tmp_path / "receipts").write_bytes(bytes(RECEIPT.itemsize * count + 1))
    assert len(Receipts(tmp_path / "receipts")) == count


def test_a_timer_that_never_comes_is_not_waited_for_forever(tmp_path: Path) -> None:
    session = a_session(tmp_path, [(0, 1_000), (2, 1_000)])
    session.await_received(TimerLoad(2, np.array([900])))
    with pytest.raises(TimeoutError, match="1 timers have not come"):
        session.await_received(TimerLoad(0, np.array([900, 900, 900])), silence_s=0.05)
