"""What integration tests share: a shard of real processes, and a proxy in front of the broker."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from tests.harness.fault_proxy import FaultProxy
from tests.harness.whole_shard import Shard

from duewheel.dev.broker import DevBroker


@pytest.fixture
def proxy(broker: DevBroker) -> Iterator[FaultProxy]:
    with FaultProxy(broker.bootstrap_servers) as proxy:
        yield proxy


@pytest.fixture
def shard(tmp_path: Path, broker: DevBroker, unique_name: Callable[[str], str]) -> Iterator[Shard]:
    """Its ring holds 2.8 hours."""
    name = unique_name("app")[-40:].lstrip("-")
    with closing(Shard(tmp_path, broker.bootstrap_servers, name)) as shard:
        yield shard
