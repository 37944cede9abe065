"""The lag, as ingest notes it."""

from __future__ import annotations

from tests.harness.local_world import NOW_MS

from duewheel.checkpoints.live_fields import Lag


def test_lag_is_never_negative() -> None:
    lag = Lag(polled_ms=NOW_MS, messages=3, oldest_ms=NOW_MS + 5, stuck_ms=NOW_MS + 5, open=0)
    assert (lag.age_ms(NOW_MS), lag.batch_age_ms(NOW_MS + 7)) == (0, 2)
