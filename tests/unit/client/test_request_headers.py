"""Names of targets."""

from __future__ import annotations

import pytest

from duewheel.client.producer import DelayProducer
from duewheel.client.request_headers import target
from duewheel.errors import ConfigError, InvalidTimer


@pytest.mark.parametrize("name", ["", ".", "..", "a b", "a/b", "ä", "x" * 250])
def test_names_that_no_topic_has(name: str) -> None:
    with pytest.raises(InvalidTimer, match="is no topic name"):
        target(name, None, "orders.delayed")
    with pytest.raises(ConfigError, match="is no topic name"):
        DelayProducer(name)
