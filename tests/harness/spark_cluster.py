"""Spark's standalone master and workers as processes of this host, on free ports of 127.0.0.1."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import Self

import psutil
import pyspark
from tests.harness.launcher import tail, wait_until

from duewheel.dev.listeners import HOST, free_ports
from duewheel.java.find import Java
from duewheel.osutil.child_process import Child

SPARK_HOME = Path(pyspark.__file__).parent
EXECUTOR_MEMORY = "512m"  # Spark refuses less than 450 MiB

_SMALL_JVM = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"  # quick to start, with few threads
# Settings of an application, in [spark].
CONF = {
    "spark.driver.host": HOST,
    "spark.driver.bindAddress": HOST,
    "spark.executor.memory": EXECUTOR_MEMORY,
    "spark.executor.extraJavaOptions": _SMALL_JVM,
}


class SparkCluster:
    """A master and workers, each with its executors; all end with the block.

    Attributes:
        url: of the master, spark://host:port.
    """

    def __init__(self, path: Path, java: Java) -> None:
        """
        Args:
            path: of logs and of the workers' files.
            java: runs all of it.
        """
        (port,) = free_ports(1)
        self.url = f"spark://{HOST}:{port}"
        self._path = path
        self._env = {
            **os.environ,
            "JAVA_HOME": str(java.home),
            "SPARK_HOME": str(SPARK_HOME),
            "SPARK_LOCAL_IP": HOST,
            "SPARK_LOCAL_DIRS": str(path / "scratch"),
            "SPARK_DAEMON_MEMORY": "128m",
            "SPARK_DAEMON_JAVA_OPTS": f"{_SMALL_JVM} -Dspark.master.rest.enabled=false",
            "PYSPARK_PYTHON": sys.executable,
        }
        self._children: list[Child] = []
        self._port = port

    def start_master(self) -> None:
        """Start the master, without waiting for it: workers do that."""
        words = ["--host", HOST, "--port", str(self._port), "--webui-port", "0"]
        self._start("master.Master", words, "master")

    def add_workers(self, count: int) -> list[Child]:
        """Start workers of one core each, and wait until the master knows them."""
        first = len(self._children)
        names = [f"worker{number}" for number in range(first, first + count)]
        workers = [self._start_worker(name) for name in names]
        for name in names:
            self._await(name, "Successfully registered with master")
        return workers

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for child in reversed(self._children):
            kill_all_of(child)

    def _start_worker(self, name: str) -> Child:
        words = ["--host", HOST, "--cores", "1", "--memory", "600m", "--webui-port", "0"]
        words += ["--work-dir", str(self._path / name), self.url]
        return self._start("worker.Worker", words, name)

    def _start(self, name: str, words: list[str], log: str) -> Child:
        command = [str(SPARK_HOME / "bin" / "spark-class"), f"org.apache.spark.deploy.{name}"]
        with self._log(log).open("ab") as out:
            child = Child([*command, *words], stdout=out, stderr=out, env=self._env)
        self._children.append(child)
        return child

    def _log(self, name: str) -> Path:
        return self._path / f"{name}.log"

    def _await(self, name: str, text: str) -> None:
        log = self._log(name)
        wait_until(lambda: text in log.read_text(), lambda: tail(log))


def kill_all_of(child: Child) -> None:
    """SIGKILL a process and its descendants at once, as the end of their host does."""
    doomed: list[psutil.Process] = []
    with suppress(psutil.NoSuchProcess):
        process = psutil.Process(child.pid)
        doomed = [process, *process.children(recursive=True)]
    for each in doomed:
        with suppress(psutil.NoSuchProcess):
            each.send_signal(signal.SIGKILL)
    psutil.wait_procs(doomed, timeout=30)
