"""Stands where a KafkaProducer with a `transactional_id` stands, over topics in memory.

Its records are in the topics at once, and not read before `commit_transaction`; a consumer
group's offsets likewise. A process that ends inside of a transaction leaves it open, as it would in
Kafka: `init_transactions` of the next producer with the same id aborts it, and fences this one, or
else kafka-python's default of `transaction_timeout_ms` does.

A call that kafka-python refuses is refused here, with its class of error.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kafka import KafkaProducer
from kafka.errors import IllegalStateError, KafkaError, ProducerFencedError
from kafka.partitioner import DefaultPartitioner
from kafka.producer.future import FutureRecordMetadata
from kafka.structs import ConsumerGroupMetadata, OffsetAndMetadata
from kafka.structs import TopicPartition as KafkaPartition

from duewheel.client.message_reader import Untouching
from duewheel.testing.memory_cluster import MemoryCluster, MemoryProducer, MemoryTransaction


class MemoryTransactionalProducer(MemoryProducer):
    """See the module's head. Keys and values are bytes.

    Attributes:
        config: as KafkaProducer has it.
    """

    def __init__(self, cluster: MemoryCluster, transactional_id: str) -> None:
        """Connects nothing: call `init_transactions` first, as in a program."""
        serializers = {"key_serializer": Untouching(None), "value_serializer": Untouching(None)}
        super().__init__(cluster, partitioner=DefaultPartitioner(), **serializers)
        self.config = {**KafkaProducer.DEFAULT_CONFIG, "transactional_id": transactional_id}
        self._id = transactional_id
        self._is_initialized = False
        self._transaction: MemoryTransaction | None = None

    def init_transactions(self) -> None:
        """As KafkaProducer: ends an open transaction of a former producer of this id."""
        self._cluster.require_open()
        if self._is_initialized:
            raise KafkaError("init_transactions is called once")
        self._is_initialized = True
        self._cluster.take_over(self._id, self)

    def begin_transaction(self) -> None:
        """As KafkaProducer."""
        self._require_id()
        if self._transaction is not None:
            raise KafkaError("a transaction is open")
        self._transaction = self._cluster.begin(self._id)

    def send(self, topic: str, *message: Any, **options: Any) -> FutureRecordMetadata:
        """As KafkaProducer: within a transaction only."""
        self._require_transaction()
        return super().send(topic, *message, **options)

    def send_offsets_to_transaction(
        self,
        offsets: Mapping[KafkaPartition, OffsetAndMetadata],
        group_metadata: ConsumerGroupMetadata | str,
    ) -> None:
        """As KafkaProducer: the group continues there once the transaction is committed."""
        transaction = self._require_transaction()
        group = group_metadata if isinstance(group_metadata, str) else group_metadata.group_id
        transaction.offsets |= {(group, place): each.offset for place, each in offsets.items()}
        self._cluster.has_begun(transaction)

    def commit_transaction(self) -> None:
        """As KafkaProducer: then all of it is visible."""
        self._end(commit=True)

    def abort_transaction(self) -> None:
        """As KafkaProducer: none of it is ever read."""
        self._end(commit=False)

    def _end(self, *, commit: bool) -> None:
        transaction = self._require_transaction()
        self._transaction = None
        self._cluster.finish(transaction, commit=commit)

    def _require_transaction(self) -> MemoryTransaction:
        self._require_id()
        if self._transaction is None:
            raise IllegalStateError("no transaction is open: call begin_transaction")
        return self._transaction

    def _require_id(self) -> None:
        """Refuses a producer that does not own its id.

        Raises:
            KafkaError: `init_transactions` was not called; or another producer has called it since,
                or a transaction has taken too long.
        """
        self._cluster.require_open()
        if not self._is_initialized:
            raise IllegalStateError("call init_transactions first")
        if self._cluster.owners.get(self._id) is not self:
            raise ProducerFencedError
