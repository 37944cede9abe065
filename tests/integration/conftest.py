"""Shared by integration tests: a shard of real processes, and a proxy in front of the broker."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from tests.harness.browser import REASON, Browser, browser_paths, chromium
from tests.harness.config_file import write_config
from tests.harness.fault_proxy import FaultProxy
from tests.harness.shared_broker import SharedBroker
from tests.harness.whole_shard import WholeShard

NETWORK = ("http:", "https:", "ws:", "wss:")


@pytest.fixture
def proxy(broker: SharedBroker) -> Iterator[FaultProxy]:
    with FaultProxy(broker.bootstrap_servers) as proxy:
        yield proxy


@pytest.fixture(scope="module")
def browser(require: Callable[[object, str], None]) -> Iterator[Browser]:
    paths = browser_paths()
    require(paths, REASON)
    assert paths is not None
    with chromium(paths) as started:
        yield started


@pytest.fixture
def page(browser: Browser) -> Iterator[Browser]:
    """The browser at the usual size; in the end no line in its console, and no foreign request."""
    browser.resize(1400, 900, "light")
    browser.driver.get("about:blank")
    browser.console()
    browser.requests()
    yield browser
    browser.driver.get("about:blank")
    assert browser.console() == []
    hosts = {urlsplit(url).hostname for url in browser.requests() if url.startswith(NETWORK)}
    assert hosts <= {"127.0.0.1"}


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
