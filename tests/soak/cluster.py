"""The Kafka of a soak: one real broker, or three that keep every partition three times.

Of three, each is a controller too. A broker is killed as `kill -9` does, and started again on its
own files and port.
"""

from __future__ import annotations

import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self

from kafka import KafkaAdminClient
from kafka.errors import KafkaError
from kafka.structs import TopicPartition
from tests.harness.launcher import wait_until

from duewheel.dev.broker import DevBroker, new_cluster_id
from duewheel.dev.listeners import HOST, free_ports
from duewheel.schemas.hashing import java_hash

_TRANSACTIONS = "__transaction_state"
_PREFERRED = 0  # of the kinds of election
_IN_SYNC_S = 120.0
_HEAP_MB = 384
_REPLICATED = {
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
}


class Cluster:
    """Its brokers by node id. A context manager; not thread-safe."""

    def __init__(self, count: int, folder: Path) -> None:
        """
        Args:
            count: 1 or 3.
            folder: for the brokers' files.
        """
        # Clients and controllers meet here; a single broker chooses its controller's port itself.
        ports = [tuple(free_ports(2)) for _ in range(count)]
        cluster_id = new_cluster_id(uuid.uuid4())
        voters = ",".join(f"{n}@{HOST}:{ports[n - 1][1]}" for n in range(1, count + 1))
        self._brokers: dict[int, DevBroker] = {}
        for number, (port, controller_port) in enumerate(ports, 1):
            properties = (
                {}
                if count == 1
                else {
                    **_REPLICATED,
                    "node.id": str(number),
                    "listeners": f"PLAINTEXT://{HOST}:{port},CONTROLLER://{HOST}:{controller_port}",
                    "controller.quorum.voters": voters,
                }
            )
            self._brokers[number] = DevBroker(
                folder / f"broker-{number}",
                port=port,
                properties=properties,
                heap_mb=_HEAP_MB,
                cluster_id=cluster_id,
            )

    def __enter__(self) -> Self:
        with ThreadPoolExecutor(len(self._brokers)) as pool:  # none is ready before a majority is
            for started in [pool.submit(broker.start) for broker in self._brokers.values()]:
                started.result()
        self.await_in_sync()
        return self

    def __exit__(self, *_: object) -> None:
        with ThreadPoolExecutor(len(self._brokers)) as pool:
            for broker in self._brokers.values():
                pool.submit(broker.stop)

    @property
    def bootstrap_servers(self) -> str:
        return ",".join(broker.bootstrap_servers for broker in self._brokers.values())

    @property
    def numbers(self) -> list[int]:
        """Node ids."""
        return list(self._brokers)

    def pid_of(self, number: int) -> int:
        return self._brokers[number].pid

    def kill(self, number: int) -> None:
        self._brokers[number].kill()

    def restart(self, number: int) -> None:
        """Until it answers."""
        self._brokers[number].restart()

    def coordinator_of(self, transactional_id: str) -> int:
        """The broker that leads the partition in which that producer's transactions are kept."""
        return int(self._transactions_of(transactional_id)["leader_id"])

    def move_coordinator(self, transactional_id: str) -> None:
        """Until another replica leads that partition."""
        row = self._transactions_of(transactional_id)
        leader, replicas = row["leader_id"], row["replica_nodes"]
        place = TopicPartition(_TRANSACTIONS, row["partition_index"])
        admin = KafkaAdminClient(bootstrap_servers=self.bootstrap_servers)
        try:
            others = [number for number in replicas if number != leader]
            admin.alter_partition_reassignments({place: [*others, leader]})
            admin.elect_leaders(_PREFERRED, {place.topic: [place.partition]})
        finally:
            admin.close()
        what = "the coordinator does not move"
        wait_until(lambda: self.coordinator_of(transactional_id) != leader, what, _IN_SYNC_S, 0.2)

    def _transactions_of(self, transactional_id: str) -> dict[str, Any]:
        (topic,) = self._describe([_TRANSACTIONS])
        rows = {row["partition_index"]: row for row in topic["partitions"]}
        found: dict[str, Any] = rows[abs(java_hash(transactional_id)) % len(rows)]
        return found

    def await_in_sync(self) -> None:
        """Until every replica has all that was acknowledged: any one broker may be killed then."""
        wait_until(self._in_sync, "the brokers do not come into step", _IN_SYNC_S, 0.2)

    def _in_sync(self) -> bool:
        try:
            topics = self._describe(None)
        except KafkaError:
            return False
        return all(
            set(row["isr_nodes"]) == set(row["replica_nodes"])
            for topic in topics
            for row in topic["partitions"]
        )

    def _describe(self, topics: list[str] | None) -> list[dict[str, Any]]:
        admin = KafkaAdminClient(bootstrap_servers=self.bootstrap_servers)
        try:
            return list(admin.describe_topics(topics))
        finally:
            admin.close()
