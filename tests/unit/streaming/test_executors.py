"""A cluster's master that is away, and an application that has no executor for a minute."""

from __future__ import annotations

import socket
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from duewheel.errors import SparkUnavailable
from duewheel.streaming.executors import WITHOUT_EXECUTORS_S, Executors, require_master
from duewheel.testing import ManualClock


class Context:
    """As much of a Spark context as is asked; the driver counts as one of its executors."""

    def __init__(self, master: str = "spark://somewhere:7077") -> None:
        self.master, self.executors, self.stopped = master, 0, False
        self._jsc = SimpleNamespace(sc=lambda: self)

    def isStopped(self) -> bool:  # noqa: N802
        return self.stopped

    def getExecutorMemoryStatus(self) -> SimpleNamespace:  # noqa: N802
        return SimpleNamespace(size=lambda: self.executors + 1)

    def getConf(self) -> dict[str, str]:  # noqa: N802
        return {"spark.driver.host": "here", "spark.driver.port": "4040"}


def watched(context: Context) -> tuple[Executors, ManualClock]:
    clock = ManualClock()
    session: Any = SimpleNamespace(sparkContext=context)
    return Executors(session, clock), clock


@pytest.mark.parametrize("others", ["", "localhost:1,"])
def test_one_address_of_a_master_that_answers_is_enough(others: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        require_master(f"spark://{others}127.0.0.1:{server.getsockname()[1]}")


def test_a_master_that_is_away_is_named_with_each_reason() -> None:
    refused = r"\(127.0.0.1:1: Connection refused; 127.0.0.2:1: Connection refused\)"
    with pytest.raises(SparkUnavailable, match=refused):
        require_master("spark://127.0.0.1:1,127.0.0.2:1")


@pytest.mark.parametrize("master", ["k8s://https://no.such.host.invalid", "k8s://[::1]:1/path"])
def test_addresses_of_kubernetes(master: str) -> None:
    with pytest.raises(SparkUnavailable, match=r":443: |::1:1: "):
        require_master(master)


def test_executors_are_waited_for_and_their_loss_is_noticed() -> None:
    context = Context()
    executors, clock = watched(context)
    with capture_logs() as logs:
        assert not executors.poll()
        context.executors = 2
        assert executors.poll()
        context.executors = 0
        assert not executors.poll()
        clock.sleep(WITHOUT_EXECUTORS_S - 1)
        assert not executors.poll()
        clock.sleep(1)
        with pytest.raises(SparkUnavailable, match=r"60 s without one.*driver at here:4040"):
            executors.poll()
    assert [(line["before"], line["now"]) for line in logs] == [(0, 2), (2, 0)]


def test_an_application_that_the_master_removes() -> None:
    context = Context()
    executors, _ = watched(context)
    context.stopped = True
    with pytest.raises(SparkUnavailable, match="removed the application"):
        executors.poll()


def test_a_local_master_needs_none() -> None:
    executors, clock = watched(Context("local[2]"))
    clock.sleep(WITHOUT_EXECUTORS_S)
    assert executors.poll()
