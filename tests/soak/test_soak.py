"""A short soak. Its verdict: unit/prove/test_verdict.py."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.soak.rounds import Plan, soak


@pytest.mark.kafka
@pytest.mark.spark
@pytest.mark.crash_matrix
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("kafka_jars")
def test_three_rounds(tmp_path: Path) -> None:
    """kill -9 of dequeue and of the broker; Spark lives through both."""
    outcome = soak(Plan(3, kinds=("dequeue", "broker")), tmp_path)
    told = "\n".join([*outcome.verdict.details[:20], *outcome.findings, outcome.stuck])
    assert outcome.ok, told  # a text, because pytest shortens all else
    assert outcome.verdict.delivered > 0 < outcome.verdict.rolled
    assert outcome.verdict.replies.keys() >= {"cancelled", "already_delivered"}
    assert outcome.verdict.cancelled > 0 < outcome.verdict.chases
    assert sum(len(taken) for taken in outcome.recovery_s.values()) == 3
