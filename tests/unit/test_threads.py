"""No thread dies in silence, and every thread of the product is one of those that do not."""

from __future__ import annotations

import ast
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import duewheel
from duewheel import threads
from duewheel.errors import DuewheelError
from duewheel.osutil.metrics_server import thread_failures
from duewheel.threads import LIBRARY, Worker, each_beside, failures

PACKAGE = Path(duewheel.__file__).parent
# Of these the result of every call is asked for, and so every error is raised.
POOLS = {
    "client/async_producer.py",
    "dev/jars.py",
    "runtime/dequeue_process.py",
    "doctor/brokers.py",
    "serve/service.py",
}


@pytest.fixture(autouse=True)
def no_failures() -> Iterator[None]:
    failures.clear()
    yield
    failures.clear()


def fail() -> None:
    raise ValueError("by design")


def started(path: Path) -> set[str]:
    """What a module uses to start threads."""
    tree = ast.parse(path.read_text())
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    names |= {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    imported = {
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }
    ways = {"Thread", "start_new_thread", "ThreadPoolExecutor", "to_thread", "run_in_executor"}
    attributes = (node for node in ast.walk(tree) if isinstance(node, ast.Attribute))
    timers = {"threading.Timer"} & {ast.unparse(n) for n in attributes if n.attr == "Timer"}
    return ((names | imported) & ways) | (imported & {"_thread"}) | timers


def test_every_thread_of_the_product_is_a_worker() -> None:
    folders = ("checkpoints", "schemas", "streaming", "wheel")
    paths = [*PACKAGE.rglob("*.py"), *(p for f in folders for p in (PACKAGE / f).rglob("*.py"))]
    assert len({path.resolve() for path in paths}) > 100, "the package was not found"
    found = {str(path.relative_to(PACKAGE)): started(path) for path in paths}
    found.pop("threads.py")
    awaited = {"ThreadPoolExecutor", "run_in_executor", "to_thread"}
    pools = {name for name, ways in found.items() if ways and ways <= awaited}
    assert pools <= POOLS
    assert {name: ways for name, ways in found.items() if ways and name not in pools} == {}


def test_an_error_that_ends_a_thread_is_said_counted_and_raised(
    caplog: pytest.LogCaptureFixture,
) -> None:
    worker = Worker("durable", fail)
    worker.start()
    worker.join()
    (line,) = caplog.records
    assert (line.levelname, line.getMessage()) == (
        "ERROR",
        "an error has ended the work of thread durable",
    )
    assert line.exc_info is not None and str(line.exc_info[1]) == "by design"
    (sample,) = (s for s in thread_failures().samples if s.name.endswith("_total"))
    assert (sample.labels, sample.value) == ({"thread": "durable"}, 1)
    with pytest.raises(DuewheelError, match=r"thread durable has ended: ValueError\('by design'\)"):
        worker.require_alive()


def test_work_that_is_to_go_on_is_started_again_after_any_error() -> None:
    begun, goes_on = [0], threading.Event()

    def work() -> None:
        begun[0] += 1
        if begun[0] < 4:
            fail()
        goes_on.set()

    worker = Worker("read ahead", work, again_after_s=0.001)
    worker.start()
    assert goes_on.wait(10)
    worker.end()
    worker.require_alive()
    assert failures == {"read ahead": 3}


def test_a_worker_that_waits_to_start_again_can_be_ended() -> None:
    worker = Worker("read ahead", fail, again_after_s=3_600)
    worker.start()
    worker.end()
    assert not worker.is_alive()


def test_an_error_that_ends_a_thread_of_a_library_is_said_and_counted(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(threading, "excepthook", threading.excepthook)
    threads.watch_libraries()
    for work in (fail, sys.exit):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert failures == {LIBRARY: 1}
    assert [line.getMessage() for line in caplog.records] == [
        f"an error has ended the work of thread {LIBRARY}"
    ]


def test_a_result_that_is_enough_ends_the_wait_for_the_others() -> None:
    release = threading.Event()

    def call(name: str) -> str:
        assert name == "quick" or release.wait(60)
        return name

    names = ["hangs", "quick"]
    assert each_beside("login", call, names, 2, lambda name: name == "quick") == ["quick"]
    release.set()
    assert each_beside("login", call, names, 1) == names
