"""One Kafka broker for all workers of a test run.

Each worker of pytest-xdist is a process. Four brokers would need four times the memory, and a third
of the processors' time: each JVM starts, compiles and wakes up by itself. The first worker that
needs a broker starts it, and stops it when no worker uses it any more.
"""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from duewheel.dev.broker import DevBroker
from duewheel.java.find import Java

# Nobody kills it. With the session of a development broker (3 s) a host without free processors
# would cut it off from its controller, and no partition would have a leader.
_SESSION = {"broker.session.timeout.ms": "120000"}

# Properties of a broker that obeys ACLs; a topic without any is open to all.
WITH_ACLS = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
}


@dataclass(frozen=True, slots=True)
class SharedBroker:
    """The run's Kafka. Tests that stop, kill or suspend a broker start their own.

    Attributes:
        bootstrap_servers: host:port for clients.
        data_dir: its files, to look at.
    """

    bootstrap_servers: str
    data_dir: Path


class AnyBroker(Protocol):
    """The run's broker, one of a test's own, or several."""

    @property
    def bootstrap_servers(self) -> str: ...


@contextmanager
def shared_broker(folder: Path, java: Java) -> Iterator[SharedBroker]:
    """The broker of the run. The worker that started it waits at the end until no other uses it.

    Args:
        folder: that all workers of the run, and no others, give.
        java: what it runs on.
    """
    address = folder / "broker.address"
    with (folder / "broker.users").open("w") as users, (folder / "broker.start").open("w") as start:
        fcntl.flock(users, fcntl.LOCK_SH)  # from here on a broker whose address is there stays
        fcntl.flock(start, fcntl.LOCK_EX)
        if address.exists():
            start.close()
            servers, data_dir = address.read_text().splitlines()
            yield SharedBroker(servers, Path(data_dir))
            return
        with DevBroker(java=java, properties=_SESSION) as own:
            address.write_text(f"{own.bootstrap_servers}\n{own.data_dir}\n")
            start.close()
            yield SharedBroker(own.bootstrap_servers, own.data_dir)
            fcntl.flock(users, fcntl.LOCK_EX)
            address.unlink()  # a later worker starts another broker
