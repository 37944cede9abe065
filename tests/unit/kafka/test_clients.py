"""The options of Kafka's clients."""

from __future__ import annotations

import pytest
from kafka.errors import KafkaError

from duewheel.errors import ConfigError
from duewheel.kafka.clients import ClientSettings


def test_client_settings() -> None:
    with pytest.raises(ConfigError, match=r"unknown.*'sasl_plain_pasword'") as caught:
        ClientSettings({"sasl_plain_pasword": "hunter2"})
    assert "hunter2" not in str(caught.value)
    with pytest.raises(ConfigError, match="'linger_ms' is decided"):
        ClientSettings({"linger_ms": 5})

    settings = ClientSettings({"bootstrap_servers": ["a:1", "b:2"], "sasl_plain_password": "hu2"})
    assert repr(settings) == "ClientSettings(a:1,b:2)"
    assert settings.explain(KafkaError("refused: hu2\nagain")) == "KafkaError: refused: *** again"
