"""The executors of a Spark cluster: whether its master answers, and whether there are any.

Spark waits where an operator should read a line: a minute for a master that is away, which it
reports by pages of stack traces, and without end for executors. Both are an error here, in one line
that names the remedy.

The tasks of a local master run below the driver's JVM: nothing of this applies to them.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import structlog
from pyspark.sql import SparkSession

from duewheel.clock import Clock
from duewheel.errors import SparkUnavailable

# An application waits this long for its first executor, and as long without one after a loss: a
# master that was started again does not know it, and gives executors only to a new one.
WITHOUT_EXECUTORS_S = 60

_CONNECT_S = 5.0
_DEFAULT_PORTS = {"spark": 7077, "http": 80, "https": 443}

_log = structlog.get_logger(__name__)
_Row = TypeVar("_Row")


def is_local(master: str) -> bool:
    """Whether tasks run on the driver's host, below its JVM."""
    return master.startswith("local")


def require_master(master: str) -> str:
    """Connects to the cluster's master, because Spark itself takes a minute to give up; returns
    this host's address on the way to it, without a port. `master` is spark://host:port, with
    further hosts after commas, or k8s://https://host:port.

    Raises:
        SparkUnavailable: none of its addresses takes a connection.
    """
    refusals = []
    for host, port in _addresses(master):
        try:
            with socket.create_connection((host, port), timeout=_CONNECT_S) as connection:
                return str(connection.getsockname()[0])
        except OSError as error:
            refusals.append(f"{host}:{port}: {error.strerror or error}")
    raise SparkUnavailable(
        f"no Spark master answers at {master} ({'; '.join(refusals)}): start it, "
        "or correct ingest.spark_master"
    )


def _addresses(master: str) -> Iterator[tuple[str, int]]:
    *schemes, hosts = master.split("://")
    for address in hosts.split("/")[0].split(","):
        host, _, port = address.rpartition(":")
        if host and port.isdecimal():
            yield host.strip("[]"), int(port)
        else:
            yield address.strip("[]"), _DEFAULT_PORTS.get(schemes[-1], 443)


def on_each_core(
    session: SparkSession, task: Callable[[Iterable[Any]], Iterator[_Row]]
) -> list[_Row]:
    """Runs a task once for each core of the executors of a cluster; returns the values that they
    yield. An executor may lack this package: a nested function is sent whole, as long as it needs
    nothing from around it.

    Raises:
        Py4JError, PySparkException: a task has failed, or the executors did not answer.
    """
    context = session.sparkContext
    count = context.defaultParallelism
    # Spark tries a task four times, with a stack trace in the log for each.
    context.setLogLevel("OFF")
    try:
        return context.parallelize(range(count), count).mapPartitions(task).collect()
    finally:
        context.setLogLevel("WARN")


class Executors:
    """The executors of one application. Not thread-safe."""

    def __init__(self, session: SparkSession, clock: Clock) -> None:
        self._session, self._clock = session, clock
        master = session.sparkContext.master
        assert master is not None, "the session was started with one"
        self.are_local = is_local(master)  # whether tasks run on this host, below the driver's JVM
        self._count = 0
        self._last_ms = clock.boottime_ms()  # when there was one

    def poll(self) -> bool:
        """Returns whether there is one; logs a change of their number. Takes a millisecond.

        Raises:
            SparkUnavailable: there is none for too long, or the master has removed the application.
        """
        if self.are_local:
            return True
        count, now_ms = self._counted(), self._clock.boottime_ms()
        if count != self._count:
            log = _log.info if count > self._count else _log.warning
            log("the number of Spark's executors has changed", before=self._count, now=count)
            self._count = count
        if count:
            self._last_ms = now_ms
        elif now_ms - self._last_ms >= WITHOUT_EXECUTORS_S * 1000:
            raise SparkUnavailable(self._refusal(f"{WITHOUT_EXECUTORS_S} s without one"))
        return count > 0

    def _counted(self) -> int:
        context = self._session.sparkContext._jsc.sc()  # noqa: SLF001 - pyspark has no other way
        if context.isStopped():
            raise SparkUnavailable(self._refusal("the master has removed the application"))
        return int(context.getExecutorMemoryStatus().size()) - 1  # one is the driver

    def _refusal(self, what: str) -> str:
        context = self._session.sparkContext
        conf = context.getConf()
        host, port = conf.get("spark.driver.host"), conf.get("spark.driver.port")
        return (
            f"no executor from {context.master}: {what}. Either no worker has the free cores and "
            "memory for one (spark.cores.max and spark.executor.memory in [spark]), or executors "
            f"start and do not reach the driver at {host}:{port} (spark.driver.host in [spark]); "
            "the workers' logs show which"
        )
