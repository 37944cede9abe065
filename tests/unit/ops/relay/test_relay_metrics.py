"""The metrics of a relay, as they are scraped."""

from __future__ import annotations

from duewheel.ops.relay.relay_metrics import RelayMetrics
from duewheel.osutil.metrics_server import exposed
from duewheel.testing.clock import ManualClock


def test_rows_are_counted_and_a_relay_with_more_rows_is_behind() -> None:
    clock = ManualClock()
    metrics = RelayMetrics(clock)
    metrics.note(sent=5, refused=0, has_more=False)
    clock.sleep(2)
    metrics.note(sent=3, refused=2, has_more=True)
    lines = exposed(metrics)().decode().splitlines()
    assert 'duewheel_relay_rows_total{outcome="sent"} 8.0' in lines
    assert 'duewheel_relay_rows_total{outcome="refused"} 2.0' in lines
    assert "duewheel_relay_behind_seconds 2.0" in lines
    metrics.note(sent=0, refused=0, has_more=False)
    assert "duewheel_relay_behind_seconds 0.0" in exposed(metrics)().decode().splitlines()
