"""What integration tests share: a shard of real processes, and a proxy in front of the broker."""

from __future__ import annotations

import signal
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
def hangup() -> Iterator[None]:
    """What the test starts hears a hangup: under nohup, which ignores it, so would all of that."""
    # A handler, unlike SIG_IGN, is not inherited.
    before = signal.signal(signal.SIGHUP, lambda *_: None)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.fixture
def shard(tmp_path: Path, broker: DevBroker, unique_name: Callable[[str], str]) -> Iterator[Shard]:
    """Its ring holds 2.8 hours."""
    name = unique_name("app")[-40:].lstrip("-")
    with closing(Shard(tmp_path, broker.bootstrap_servers, name)) as shard:
        yield shard


@pytest.fixture
def config(broker: DevBroker, tmp_path: Path, unique_name: Callable[[str], str]) -> Path:
    """Of a shard whose topics are not made yet."""
    path = tmp_path / "duewheel.toml"
    path.write_text(
        f'[app]\nid = "{unique_name("app")[-40:]}"\n'
        f'[kafka]\nbootstrap_servers = "{broker.bootstrap_servers}"\n'
        f'[timer]\ntopics = ["{unique_name("timers")}"]\nslots = 100000\nroll_window = "1h"\n'
        f'margin = "5m"\ntargets_deny = ["*.denied"]\n[storage]\ndata_dir = "{tmp_path / "data"}"\n'
    )
    return path
