"""Shared by integration tests: a shard of real processes, and a proxy in front of the broker."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from tests.harness.config_file import write_config
from tests.harness.fault_proxy import FaultProxy
from tests.harness.shared_broker import SharedBroker
from tests.harness.whole_shard import WholeShard


@pytest.fixture
def proxy(broker: SharedBroker) -> Iterator[FaultProxy]:
    with FaultProxy(broker.bootstrap_servers) as proxy:
        yield proxy


@pytest.fixture
def hangup() -> Iterator[None]:
    """What the test starts hears a hangup: under nohup, which ignores it, so would all of that."""
    # A handler, unlike SIG_IGN, is not inherited.
    before = signal.signal(signal.SIGHUP, lambda *_: None)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.fixture
def shard(
    tmp_path: Path, broker: SharedBroker, unique_name: Callable[[str], str]
) -> Iterator[WholeShard]:
    """Its ring holds 2.8 hours."""
    name = unique_name("app")[-40:].lstrip("-")
    with closing(WholeShard(tmp_path, broker.bootstrap_servers, name)) as shard:
        yield shard


@pytest.fixture
def config(broker: SharedBroker, tmp_path: Path, unique_name: Callable[[str], str]) -> Path:
    """Of a shard whose topics are not made yet."""
    name = unique_name("app")[-40:]
    # `orders.denied` is a target that it is not open for.
    targets = {"targets": [f"{name}*", "[!o]*"]}
    return write_config(tmp_path, broker.bootstrap_servers, name, timer=targets)
