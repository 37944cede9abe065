"""Producers of topics: how they connect."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.harness.config_file import write_config

from duewheel.config.settings import load
from duewheel.dev.listeners import free_ports
from duewheel.errors import KafkaUnavailable
from duewheel.kafka.connect.clients import KafkaClients
from duewheel.ops.changes.producer_pool import connect_plain


def test_a_refused_port_is_no_reason_to_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A record of each change waits for it: while Kafka is away each would take 15 s."""
    (port,) = free_ports(1)

    def opened(*_: object, **__: object) -> None:
        raise AssertionError("a producer was opened without a server")

    monkeypatch.setattr(KafkaClients, "open", opened)
    with pytest.raises(KafkaUnavailable):
        connect_plain(load(write_config(tmp_path, f"127.0.0.1:{port}", "shop")))
