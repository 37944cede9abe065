"""The process from which Spark's Python processes of a local master are forked.

Each start of a query takes three processes that plan, one after the other, and the first task a
daemon. Each of them would import pyspark, pyarrow and Kafka's client: up to a second of processor
time, for which Spark waits 10 s. Here they are imported once, beside the start of the JVM, and a
fork takes milliseconds:

    JVM ──starts──► fork_request.py ──connects──► fork server ──forks──► the process for Spark
     ▲                                                                             │
     └─────────────── connects back, or answers through stdin and stdout ──────────┘

The forked process gets the arguments, environment and descriptors of the request. Its connection to
the program that Spark has started stays open while it lives. When Spark ends that program, the
kernel sends SIGTERM to the forked process.

The server ends with ingest: its stdin then ends. Without it Spark's processes start as usual.
"""

from __future__ import annotations

import fcntl
import gc
import importlib
import os
import select
import shlex
import signal
import socket
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pyspark import worker_util

from duewheel.osutil.priority_and_heap import do_without_pandas, share_one_heap
from duewheel.streaming import fork_request

_DAEMON = "pyspark.daemon"
_IMPORTED = (
    _DAEMON,
    "pyspark.worker",
    "pyspark.sql.worker.create_data_source",
    "pyspark.sql.worker.plan_data_source_read",
    "pyspark.sql.streaming.python_streaming_source_runner",
    "duewheel.streaming.read_task",
    "duewheel.streaming.source",
)


# ---- in the process that starts Spark -----------------------------------------------------------


@contextmanager
def forking_python(folder: Path) -> Iterator[str]:
    """Runs a fork server for the length of a with block. Yields the path that Spark must run as
    Python: a program in `folder`, or the plain Python if the folder's file system executes no
    programs.
    """
    name = f"duewheel-{uuid.uuid4()}"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    program = folder / "python"
    program.unlink(missing_ok=True)
    program.touch(0o700)
    command = [sys.executable, "-I", "-S", fork_request.__file__, sys.executable, name]
    program.write_text(f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n')
    with socket.socket(socket.AF_UNIX) as listener:
        # Before the JVM starts: an early request waits for the imports.
        listener.bind(f"\0{name}")
        listener.listen()
        server = subprocess.Popen(
            [sys.executable, "-u", "-P", "-m", __name__, str(listener.fileno())],
            stdin=subprocess.PIPE,
            pass_fds=[listener.fileno()],
        )
    try:
        yield str(program) if os.access(program, os.X_OK) else sys.executable
    finally:
        server.communicate()


# ---- the server ---------------------------------------------------------------------------------


def main() -> None:
    """Forks until stdin ends. Called in a process of its own, with the listener's descriptor."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for ingest, which ends this process
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # leaves no zombies
    do_without_pandas()
    share_one_heap()
    for module in _IMPORTED:
        importlib.import_module(module)
    # Otherwise the garbage collection of each process would copy the pages that it shares.
    gc.freeze()
    with socket.socket(fileno=int(sys.argv[1])) as listener:
        while listener in select.select([sys.stdin, listener], [], [])[0]:
            connection, _ = listener.accept()
            with connection:
                if fork_request.peer_uid(connection) == os.geteuid() and not os.fork():
                    listener.close()
                    _become(connection)


def _become(connection: socket.socket) -> None:
    """Becomes the requested process, to its end."""
    try:
        arguments = _take_over(connection)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        _end_with(connection)
        _run(arguments)
    except SystemExit as end:
        os._exit(end.code if isinstance(end.code, int) else 1)
    except BaseException:  # noqa: BLE001 - as an interpreter does at the end of its program
        sys.excepthook(*sys.exc_info())
        os._exit(1)
    os._exit(0)


def _take_over(connection: socket.socket) -> list[str]:
    """Takes the environment and the descriptors of a request; returns its arguments."""
    head, descriptors, _, _ = socket.recv_fds(connection, 4, 3)
    with connection.makefile("rb") as file:
        length = int.from_bytes(head + file.read(4 - len(head)), "big")
        count, *parts = file.read(length).split(b"\0")[:-1]
    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.environb.clear()
    os.environb.update(dict(each.split(b"=", 1) for each in parts[int(count) :]))
    return [os.fsdecode(each) for each in parts[: int(count)]]


def _end_with(connection: socket.socket) -> None:
    """Makes the kernel send SIGTERM when the other end of the connection closes."""
    fcntl.fcntl(connection, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(connection, fcntl.F_SETSIG, signal.SIGTERM)
    fcntl.fcntl(connection, fcntl.F_SETFL, fcntl.fcntl(connection, fcntl.F_GETFL) | os.O_ASYNC)
    if select.select([connection], [], [], 0)[0]:  # it has closed before
        os._exit(1)


def _run(arguments: list[str]) -> None:
    """Runs a module like `python -m MODULE`, for the modules that Spark starts."""
    _, name, *_ = arguments
    sys.argv = arguments[1:]
    module = importlib.import_module(name)
    if name == _DAEMON:
        module.manager()
    else:
        with worker_util.get_sock_file_to_executor(timeout=None) as file:
            module.main(file, file)


if __name__ == "__main__":
    main()
