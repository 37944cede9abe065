"""Where brokers of development and tests listen, in Kafka's settings; free ports on loopback."""

from __future__ import annotations

import random
import socket
from collections.abc import Mapping
from pathlib import Path

from duewheel.errors import DuewheelError

HOST = "127.0.0.1"


def listener_properties(
    ports: Mapping[str, int], protocols: Mapping[str, str], controller_port: int
) -> dict[str, str]:
    """Broker settings of a node that listens there.

    Args:
        ports: by the listener's name; the broker itself connects to the first.
        protocols: Kafka's, such as SASL_SSL; by the listener's name.
        controller_port: without security.
    """
    protocols = {"CONTROLLER": "PLAINTEXT", **protocols}
    return {
        "listeners": addresses({**ports, "CONTROLLER": controller_port}),
        "advertised.listeners": addresses(ports),
        "listener.security.protocol.map": ",".join(f"{n}:{p}" for n, p in protocols.items()),
        "inter.broker.listener.name": next(iter(ports)),
        "controller.quorum.voters": f"1@{HOST}:{controller_port}",
    }


def addresses(ports: Mapping[str, int]) -> str:
    """A list of listeners in Kafka's words."""
    return ",".join(f"{name}://{HOST}:{port}" for name, port in ports.items())


def free_ports(count: int) -> list[int]:
    """Unused ports outside the range that the kernel gives to outgoing connections.

    Inside that range, a client that keeps trying to reach a stopped broker can get the broker's
    port as its source port: it is then connected to itself, and the broker cannot come back.
    """
    range_file = Path("/proc/sys/net/ipv4/ip_local_port_range")
    first_outgoing = int(range_file.read_text().split()[0])
    low = 10_000 if first_outgoing > 11_000 else 1024
    candidates = random.SystemRandom().sample(range(low, max(first_outgoing, low + 1000)), 500)
    free: list[int] = []
    for port in candidates:
        if not in_use(port):
            free.append(port)
            if len(free) == count:
                return free
    raise DuewheelError(f"no free port between {low} and {first_outgoing}")


def in_use(port: int) -> bool:
    """Whether something listens there."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return True
    return False
