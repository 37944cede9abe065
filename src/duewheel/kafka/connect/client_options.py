"""The options that every Kafka client gets: address, security, sockets."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer

from duewheel.errors import Misconfigured
from duewheel.kafka.connect.token_provider import tokens_of

# duewheel's guarantees depend on these: an operator's value could break them.
_OWNED = frozenset(
    {
        "bootstrap_timeout_ms",
        "kafka_client",
        "metric_reporters",
        "metrics_num_samples",
        "metrics_sample_window_ms",
        "retry_backoff_ms",
        "selector",
    }
)
_ALLOWED = (
    set(KafkaProducer.DEFAULT_CONFIG)
    & set(KafkaConsumer.DEFAULT_CONFIG)
    & set(KafkaAdminClient.DEFAULT_CONFIG)
) - _OWNED
_SECRET = re.compile("password|secret|token", re.IGNORECASE)
_TOKENS = "sasl_oauth_token_provider"  # an object, or "module:function"
_RECONNECT_BACKOFF_MAX_MS = 1_000  # kafka-python's own 30 s outlast a whole deadline


class ClientOptions:
    """Options by kafka-python's names. Immutable, so thread-safe.

    Attributes:
        values: each option of a client, secrets included.
    """

    def __init__(self, options: Mapping[str, Any]) -> None:
        """Checks the options.

        Raises:
            Misconfigured: an unknown option, or one that duewheel decides itself; or the function
                for tokens does not exist.
        """
        for name in options:
            if name in _OWNED or (name not in _ALLOWED and name in KafkaProducer.DEFAULT_CONFIG):
                raise Misconfigured(f"Kafka client setting {name!r} is decided by duewheel itself")
            if name not in _ALLOWED:
                raise Misconfigured(
                    f"unknown Kafka client setting {name!r}: the names are those of kafka-python "
                    "that producers, consumers and admin clients share"
                )
        values = {"reconnect_backoff_max_ms": _RECONNECT_BACKOFF_MAX_MS, **options}
        if isinstance(function := options.get(_TOKENS), str):
            values[_TOKENS] = tokens_of(function)
        self.values: Mapping[str, Any] = values
        self._secrets = [
            str(value)
            for name, value in options.items()
            if _SECRET.search(name) and name != _TOKENS and value
        ]

    @property
    def address(self) -> str:
        """The bootstrap servers, as text."""
        servers = self.values.get("bootstrap_servers", "localhost")
        return servers if isinstance(servers, str) else ",".join(servers)

    def redacted(self, text: str) -> str:
        """A text without the value of any secret option."""
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return text


def shared_out_of(options: dict[str, Any]) -> dict[str, Any]:
    """Takes those out of a KafkaProducer's options that other clients of its cluster share."""
    return {name: options.pop(name) for name in _ALLOWED & options.keys()}
