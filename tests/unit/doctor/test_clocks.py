"""What `duewheel doctor` says of the clocks of brokers."""

from __future__ import annotations

import pytest
from tests.harness.findings import partition

from duewheel.doctor import clocks
from duewheel.doctor.remedies import Remedies
from duewheel.doctor.scratch import ScratchTopic


@pytest.mark.parametrize(
    ("least_ms", "most_ms", "severity", "said"),
    [
        (-2, 5, "ok", "to within 5 ms"),
        (900, 1_000, "ok", "ahead by 900 to 1000 ms"),
        (1_001, 1_010, "error", "no slot is closed beyond 1000"),
        (-1_010, -1_001, "warning", "behind by 1001 to 1010 ms"),
        (-1_010, -999, "ok", "behind by 999"),
        (-5_000, 5_000, "ok", "to within 5000 ms"),
    ],
)
def test_clocks_that_differ(least_ms: int, most_ms: int, severity: str, said: str) -> None:
    finding = clocks.check_skew("broker 1", least_ms, most_ms, 1_000)
    assert finding.severity == severity
    assert said in finding.found


def test_a_broker_that_leads_no_partition_is_named() -> None:
    scratch = ScratchTopic("app.doctor.0", [partition(1, leader=2)], [1, 2, 3])
    found = list(clocks.check_led(scratch, Remedies("kafka:9092", "User:x")))
    assert [(each.subject, each.severity) for each in found] == [
        ("broker 1", "warning"),
        ("broker 3", "warning"),
    ]
    assert found[0].remedy.endswith("--alter --topic app.doctor.0 --partitions 3")
