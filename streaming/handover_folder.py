"""The folder through which tasks hand their timers to the driver.

Tasks of this host use Spark's scratch folder. Executors on other hosts use a folder that they and
the driver have at the same path, if one is given; otherwise their timers go through Spark, which
costs the driver's host more processor time (docs/spark-cluster.md). Each data directory has its own
folder there, which a start of ingest empties.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from duewheel.errors import ConfigError, SparkUnavailable
from duewheel.streaming.executors import on_each_core

# Of a trial: the host, the file that it wrote (empty: none), and the reason.
Written = tuple[str, str, str]


def shared_folder(session: SparkSession, shared: Path, owner: str) -> Path:
    """Empties the folder of a data directory (`owner`: its uuid) in that of all data directories,
    and makes each executor of the cluster write a file there.

    Raises:
        ConfigError: this host or an executor cannot write there, or they do not share it.
        SparkUnavailable: the executors did not answer.
    """
    folder = shared.absolute() / owner
    try:
        if folder.exists():
            shutil.rmtree(folder)
        folder.mkdir(mode=0o700, parents=True)  # its files have message bodies
    except OSError as error:
        raise ConfigError(f"ingest.shared_folder: {error}") from error
    try:
        problem = lacking(on_each_core(session, trial(str(folder))))
    except (Py4JError, PySparkException) as error:
        raise SparkUnavailable("the executors did not try the shared folder") from error
    if problem:
        raise ConfigError(f"ingest.shared_folder: {problem}")
    return folder


def trial(folder: str) -> Callable[[Iterable[Any]], Iterator[Written]]:
    """The task of the job: writes a file."""

    def write(_: Iterable[Any]) -> Iterator[Written]:
        import socket

        path = Path(folder, f"trial-{socket.gethostname()}")
        try:
            path.write_bytes(b"")
        except OSError as error:
            yield socket.gethostname(), "", str(error)
        else:
            yield socket.gethostname(), str(path), ""

    return write


def lacking(written: Iterable[Written]) -> str:
    """Describes why executors cannot hand over files here; removes the files of the trial."""
    reasons = {}
    for host, path, reason in dict.fromkeys(written):  # once for each core of a host
        if reason:
            reasons[host] = f"{host} cannot write there: {reason}"
            continue
        try:
            Path(path).unlink()
        except FileNotFoundError:
            reasons[host] = f"{host} has another folder of this path"
    return "; ".join(reasons.values())
