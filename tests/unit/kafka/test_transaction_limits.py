"""Limits that contradict each other."""

from __future__ import annotations

import pytest

from duewheel.errors import ConfigError
from duewheel.kafka.transaction_limits import TransactionLimits


def test_a_publish_must_be_shorter_than_its_transaction() -> None:
    with pytest.raises(ConfigError, match="transaction_timeout_ms = 5000"):
        TransactionLimits(publish_deadline_s=5, transaction_timeout_ms=5_000)
