"""Spark starts this instead of `python`: it requests a process of the fork server (fork_server.py),
and lives as long as that process.

Run as `python -I -S fork_request.py PYTHON SERVER -m MODULE ...`: it imports no package, so it
takes milliseconds of processor time. Spark gives a process 10 s to connect back, and one that
imports pyspark first can take longer on a busy host.

A request is its length in 4 bytes, then, each followed by a zero byte: the number of arguments, the
arguments, and the environment. The descriptors 0, 1 and 2 come with its length. Without a server
this program becomes PYTHON.
"""

from __future__ import annotations

import _socket
import os
import sys

SO_PEERCRED_BYTES = 12  # pid, uid and gid


def peer_uid(connection: _socket.socket) -> int:
    """The user at the other end: any user of the host may connect to the server's name."""
    peer = connection.getsockopt(_socket.SOL_SOCKET, _socket.SO_PEERCRED, SO_PEERCRED_BYTES)
    return int.from_bytes(peer[4:8], sys.byteorder)


def _request(arguments: list[str]) -> bytes:
    parts = [b"%d" % len(arguments), *(os.fsencode(each) for each in arguments)]
    parts += [b"%b=%b" % item for item in os.environb.items()]
    return b"".join(part + b"\0" for part in parts)


def main() -> int:
    """Returns after the end of the process."""
    python, server, *arguments = sys.argv[1:]
    connection = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    try:
        connection.connect(b"\0" + server.encode())
        if peer_uid(connection) != os.geteuid():
            raise PermissionError(server)
        request = _request(arguments)
        descriptors = b"".join(fd.to_bytes(4, sys.byteorder) for fd in (0, 1, 2))
        rights = [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, descriptors)]
        connection.sendmsg([len(request).to_bytes(4, "big")], rights)
        connection.sendall(request)
    except OSError:
        os.execv(python, [python, *arguments])  # noqa: S606 - as Spark would have done
    connection.recv(1)  # the process never writes: this returns at its end
    return 0


if __name__ == "__main__":
    sys.exit(main())
