"""Targets whose own settings make appends slow, and how slow."""

from __future__ import annotations

import pytest

from duewheel.kafka.targets.costly_targets import cost_of
from duewheel.kafka.topics.description import TopicSettings
from duewheel.wheel.target_rules import USUAL_COST, Cost


@pytest.mark.parametrize(
    ("setting", "value", "is_costly"),
    [
        ("flush.messages", "1", True),
        ("flush.messages", str(2**63 - 1), False),
        ("segment.ms", "1", True),
        ("segment.ms", "604800000", False),
        ("segment.bytes", "14", True),
        ("segment.index.bytes", "100", True),
        ("max.message.bytes", "200", True),
        ("max.message.bytes", "10000", False),
    ],
)
def test_a_setting_of_the_topic_itself_makes_it_costly(
    setting: str, value: str, is_costly: bool
) -> None:
    own = TopicSettings({setting: value}, frozenset([setting]))
    assert cost_of(own) == (Cost(f"{setting}={value}", 25, 0) if is_costly else USUAL_COST)
    assert cost_of(TopicSettings({setting: value})) == USUAL_COST, "it is the broker's for all"


@pytest.mark.parametrize(
    ("codec", "level", "is_slow"),
    [
        ("zstd", 22, True),
        ("zstd", 3, False),
        ("lz4", 17, True),
        ("lz4", 9, False),
        ("gzip", 9, True),
        ("gzip", -1, False),
    ],
)
def test_a_slow_level_counts_where_the_broker_compresses(
    codec: str, level: int, is_slow: bool
) -> None:
    name = f"compression.{codec}.level"
    values = {"compression.type": codec, name: str(level)}
    expected = Cost(f"{name}={level}", 25, 4_000) if is_slow else USUAL_COST
    assert cost_of(TopicSettings(values, frozenset(values))) == expected
    values["compression.type"] = "producer"
    assert cost_of(TopicSettings(values, frozenset(values))) == USUAL_COST


def test_a_slow_level_costs_bytes_whatever_else_is_set() -> None:
    values = {"compression.type": "zstd", "compression.zstd.level": "22", "flush.messages": "1"}
    assert cost_of(TopicSettings(values, frozenset(values))).mib_ms == 4_000
