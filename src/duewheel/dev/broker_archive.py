"""The class archive of the development broker, beside its jars; written by `make setup`."""

from __future__ import annotations

import sys

from kafka import KafkaAdminClient, KafkaProducer

from duewheel.client.transactions import transaction
from duewheel.dev.broker import JVM_OPTIONS, DevBroker
from duewheel.dev.jars import broker_archive
from duewheel.errors import DuewheelError
from duewheel.java.class_archive import recorded, write_base_archive
from duewheel.java.find import Java, find_java

_TOPIC = "rehearsal"


def write_broker_archive(java: Java) -> bool:
    """Starts a broker once for its classes, which takes ten seconds of processor time. Returns
    whether there is an archive now.
    """
    path = broker_archive(java)
    if not path.exists():
        write_base_archive(java)
        with (
            recorded(path) as options,
            DevBroker(java=java, java_options=(*JVM_OPTIONS, *options)) as broker,
        ):
            _use(broker.bootstrap_servers)
    return path.exists()


def _use(servers: str) -> None:
    """A transaction, as dequeue has them."""
    admin = KafkaAdminClient(bootstrap_servers=servers)
    admin.create_topics({_TOPIC: {"num_partitions": 1, "replication_factor": 1}})
    admin.close()
    producer = KafkaProducer(bootstrap_servers=servers, transactional_id=_TOPIC)
    producer.init_transactions()
    with transaction(producer):
        producer.send(_TOPIC, b"value")
    producer.close()


def main() -> int:
    """Writes the archive if it is missing. Without one, starts only take longer."""
    try:
        write_broker_archive(find_java())
    except (DuewheelError, OSError) as error:
        print(f"the broker starts without a class archive: {error}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
