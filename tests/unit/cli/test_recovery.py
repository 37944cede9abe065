"""The options of `recover`, which are checked before Kafka is asked."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from duewheel.cli.main import cli
from duewheel.errors import ConfigError


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ("orders", "write it as TOPIC=INSTANT"),
        ("orders=", "write it as TOPIC=INSTANT"),
        ("=2027-01-15T08:00Z", "write it as TOPIC=INSTANT"),
        ("orders=soon", "'soon' is no due time: give epoch ms"),
        ("orders=2027-01-15T08:00", "has no zone"),
    ],
)
def test_a_topic_without_an_instant_is_named_with_its_option(given: str, why: str) -> None:
    words = ["recover", "--from-mirror", "A.", "--delivered-before", given]
    ended = CliRunner().invoke(cli, words)
    assert ended.exit_code == ConfigError.exit_code
    assert f"Invalid value for '--delivered-before': {given}: " in ended.output
    assert why in ended.output
