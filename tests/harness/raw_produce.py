"""Writes record batches of any bytes to a broker, as a producer with a fault or an attacker may."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing

from kafka.errors import for_code
from kafka.protocol.producer import ProduceRequest

from duewheel.deadline import Deadline
from duewheel.kafka.connect.clients import KafkaClients
from duewheel.schemas.wire.record_batch import seal
from duewheel.schemas.wire.single_record import Header, encode

NAME = b"\xff\xfe name".decode(errors="surrogateescape")  # of a header; no UTF-8
_GIVE_UP_S = 60.0


def record(
    key: bytes | None, value: bytes | None, headers: Sequence[Header] = (), *, at_ms: int = 0
) -> bytes:
    """A batch of one record; the names of its headers may be any bytes (surrogates)."""
    return bytes(seal(encode(0, key, value, headers), 1, timestamp_ms=at_ms))


def produce(servers: str, topic: str, batch: bytes, partition: int = 0) -> int:
    """Writes a batch as it is; returns its base offset."""
    settings = KafkaClients({"bootstrap_servers": servers.split(",")})
    with closing(settings.connect(Deadline(_GIVE_UP_S))) as client:
        client.cluster.set_topics([topic])
        manager = client._manager  # noqa: SLF001 - its producer builds batches itself

        async def send() -> int:
            await client.cluster.refresh_metadata()
            (broker,) = client.cluster.brokers()
            data = ProduceRequest.TopicProduceData
            part = data.PartitionProduceData(index=partition, records=batch)
            request = ProduceRequest(
                transactional_id=None,
                acks=-1,
                timeout_ms=30_000,
                topic_data=[data(name=topic, partition_data=[part])],
                max_version=9,
            )
            response = await manager.send(request, broker.node_id)
            (answer,) = response.responses[0].partition_responses
            if answer.error_code:
                raise for_code(answer.error_code)(topic)
            return int(answer.base_offset)

        base: int = manager.run(send)
        return base
