"""Commands of `duewheel` in forks of a process that has imported what most of them import.

Imports are most of the processor time of a short command, and the suite runs hundreds. A fork has
arguments, environment, folder and outputs of its own, and ends as any Python does.
What is launched to stay (launcher.py) is a program of its own.
"""

from __future__ import annotations

import array
import atexit
import functools
import gc
import importlib
import json
import os
import runpy
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

_MODULES = (
    *("duewheel.cli.main", "duewheel.cli.processes", "duewheel.cli.shard", "duewheel.factory"),
    *("duewheel.ops.shard.status", "duewheel.ops.timers.pending", "kafka", "numpy"),
)
_REQUEST_BYTES = 1 << 20
_CODE_BYTES = 4


@functools.cache
def _server() -> socket.socket:
    """Of this process; it ends with it."""
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 * _REQUEST_BYTES)
    command = [sys.executable, "-P", __file__, str(its.fileno())]
    server = subprocess.Popen(command, pass_fds=[its.fileno()], start_new_session=True)
    its.close()

    def end() -> None:
        ours.close()
        server.wait()

    atexit.register(end)
    return ours


def run_command(words: list[str], timeout_s: float) -> subprocess.CompletedProcess[str]:
    """Runs `duewheel` with these arguments until it ends by itself.

    Raises:
        subprocess.TimeoutExpired: it does not in time; it then runs on.
    """
    request = [words, dict(os.environ), str(Path.cwd())]
    reply, its_reply = socket.socketpair()
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err, reply:
        with its_reply:
            descriptors = [out.fileno(), err.fileno(), its_reply.fileno()]
            socket.send_fds(_server(), [json.dumps(request).encode()], descriptors)
        reply.settimeout(timeout_s)
        try:
            code = reply.recv(_CODE_BYTES)
        except TimeoutError:
            raise subprocess.TimeoutExpired(words, timeout_s) from None
        assert len(code) == _CODE_BYTES, "the process that forks has ended"
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read().decode())
    return subprocess.CompletedProcess(words, array.array("i", code)[0], *texts)


def _serve(requests: socket.socket) -> None:
    """Returns in each fork that is to run a command, and never in the server."""
    while True:
        data, descriptors, *_ = socket.recv_fds(requests, _REQUEST_BYTES, 3)
        if not data:
            os._exit(0)
        waiter = os.fork()
        if waiter == 0:
            requests.close()
            break
        for descriptor in descriptors:
            os.close(descriptor)
        _reap()
    out, err, reply = descriptors
    child = os.fork()
    if child:
        _, status = os.waitpid(child, 0)
        os.write(reply, array.array("i", [os.waitstatus_to_exitcode(status)]).tobytes())
        os._exit(0)
    os.close(reply)
    os.dup2(out, 1)
    os.dup2(err, 2)
    os.close(out)
    os.close(err)
    words, environment, folder = json.loads(data)
    sys.argv[1:] = words
    os.environ.clear()
    os.environ.update(environment)
    # The variable is read once, by the interpreter that forks.
    sys.path[:0] = filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))
    os.chdir(folder)


def _reap() -> None:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


if __name__ == "__main__":
    for module in _MODULES:
        importlib.import_module(module)
    gc.freeze()
    _serve(socket.socket(fileno=int(sys.argv[1])))
    runpy.run_module("duewheel", run_name="__main__", alter_sys=True)
