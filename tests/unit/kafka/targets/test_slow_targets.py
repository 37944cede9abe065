"""Targets whose own settings make appends slow."""

from __future__ import annotations

import pytest

from duewheel.kafka.targets.slow_targets import slow_by
from duewheel.kafka.topics.description import TopicSettings


@pytest.mark.parametrize(
    ("setting", "value", "is_slow"),
    [
        ("flush.messages", "1", True),
        ("flush.messages", str(2**63 - 1), False),
        ("segment.ms", "1", True),
        ("segment.ms", "60000", True),
        ("segment.ms", "604800000", False),
        ("max.compaction.lag.ms", "1", True),
        ("max.compaction.lag.ms", "86400000", False),
        ("segment.bytes", "14", True),
        ("internal.segment.bytes", "300", True),
        ("segment.index.bytes", "100", True),
        ("max.message.bytes", "200", True),
        ("max.message.bytes", "10000", False),
        ("max.decompressed.message.bytes", "4000", True),
    ],
)
def test_a_setting_of_the_topic_itself_makes_it_slow(
    setting: str, value: str, is_slow: bool
) -> None:
    own = TopicSettings({setting: value}, frozenset([setting]))
    assert slow_by(own) == (f"{setting}={value}" if is_slow else "")
    assert slow_by(TopicSettings({setting: value})) == "", "the broker has it for all topics"
