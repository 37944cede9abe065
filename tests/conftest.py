"""What the tests share: a Java, one Kafka broker for the whole run, names nobody else uses."""

from __future__ import annotations

import functools
import itertools
import os
import re
import signal
import sys
import uuid
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import hypothesis
import pytest
from tests.harness import (
    time_limit,
    timelines,  # noqa: F401 - before any directory is opened
)
from tests.harness.report_log import FewOfEach
from tests.harness.shared_broker import SharedBroker, shared_broker

from duewheel.dev.jars import broker_jars
from duewheel.errors import ConfigError, DuewheelError
from duewheel.java.find import Java, find_java

Require = Callable[[object, str], None]

IN_CI = os.environ.get("CI", "").lower() in {"1", "true", "yes"}

# A deadline per example measures the machine, not the code. In CI every run draws the same
# examples: what fails there fails again when it is looked at. `make fuzz` draws many more.
EXAMPLES = 60
hypothesis.settings.register_profile("local", deadline=None, max_examples=EXAMPLES)
hypothesis.settings.register_profile("ci", deadline=None, max_examples=EXAMPLES, derandomize=True)
hypothesis.settings.register_profile(
    "fuzz",  # `make fuzz`
    deadline=None,
    max_examples=int(os.environ.get("EXAMPLES", "2000")),
    suppress_health_check=list(hypothesis.HealthCheck),
)
hypothesis.settings.load_profile("ci" if IN_CI else "local")


if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell has started the tests in the background: what they start would ignore it, too.
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Without bytecode every worker, in every run, compiles and rewrites all tests (12 s of a processor,
# with it 5), and each of some hundred processes compiles all that it imports. A variable of the
# caller's that forbids it, as images of containers often have, counts for all of these, too.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


REPORTED = FewOfEach()


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(time_limit)


def pytest_sessionstart(session: pytest.Session) -> None:
    """Shorten the log in reports of failures."""
    logs = session.config.pluginmanager.get_plugin("logging-plugin")
    if logs is not None:  # there is none with `-p no:logging`
        logs.report_handler.addFilter(REPORTED)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    REPORTED.forget()


@pytest.hookimpl(trylast=True)  # what is not run has been left out
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let tests that wait for processes and tests that compute run at the same time.

    In the order of their folders, four workers would wait for Kafka and Spark while the processors
    idle, and compute on two processors before and after. Workers take file after file in this
    order, and the short ones of `unit` at the end leave none of them alone for long.
    """
    files = [list(group) for _, group in itertools.groupby(items, key=lambda item: item.path)]
    waiting: list[list[pytest.Item]] = []
    short: list[list[pytest.Item]] = []
    computing: list[list[pytest.Item]] = []
    for file in files:
        folders = file[0].path.parts
        kind = waiting if "integration" in folders else short if "unit" in folders else computing
        kind.append(file)
    rest, units = iter(computing), iter(short)
    mixed = [[file, *itertools.islice(rest, 1), *itertools.islice(units, 2)] for file in waiting]
    ordered = [*itertools.chain.from_iterable(mixed), *rest, *units]
    items[:] = itertools.chain.from_iterable(ordered)


def _require(condition: object, reason: str) -> None:
    if condition:
        return
    if IN_CI:
        pytest.fail(f"cannot run: {reason}")
    pytest.skip(reason)


@functools.cache
def _found_java() -> Java | str:
    try:
        return find_java()
    except ConfigError as error:
        return str(error)


@pytest.fixture(scope="session")
def require() -> Require:
    """`require(condition, reason)`: without the condition the test is skipped, in CI, too.

    For what `make setup-dev` cannot bring: the right to mount, tools of a file system.
    """

    def skip_without(condition: object, reason: str) -> None:
        if not condition:
            pytest.skip(reason)

    return skip_without


@pytest.fixture(scope="session")
def java() -> Java:
    """A Java that Spark and Kafka start on."""
    found = _found_java()
    _require(isinstance(found, Java), str(found))
    assert isinstance(found, Java)
    return found


@pytest.fixture(scope="session")
def kafka_jars(java: Java) -> list[Path]:
    """What a broker needs; for tests that start one of their own."""
    try:
        return broker_jars(java)
    except DuewheelError as error:
        _require(None, str(error))
        raise


@pytest.fixture(scope="session")
def broker(
    java: Java,
    kafka_jars: list[Path],
    tmp_path_factory: pytest.TempPathFactory,
    pytestconfig: pytest.Config,
) -> SharedBroker:
    """The run's Kafka."""
    base = tmp_path_factory.getbasetemp()
    folder = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    until_the_end = ExitStack()
    # Not by the end of this fixture: that is part of the last test, which has a time limit.
    pytestconfig.add_cleanup(until_the_end.close)
    return until_the_end.enter_context(shared_broker(folder, java))


@pytest.fixture
def unique_name(request: pytest.FixtureRequest) -> Callable[[str], str]:
    """`unique_name("orders")`: a name for a topic or group that no other test and no rerun has."""
    test = re.sub(r"[^A-Za-z0-9]+", "-", request.node.name)[:60].strip("-")
    run = uuid.uuid4().hex[:8]
    return lambda purpose: f"{test}-{run}-{purpose}"


@pytest.fixture
def clean_surroundings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No variable and no duewheel.toml of the caller's reaches a test."""
    for variable in list(os.environ):
        if variable.startswith("DUEWHEEL_"):
            monkeypatch.delenv(variable)
    monkeypatch.chdir(tmp_path)
