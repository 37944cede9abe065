"""The newest progress record of a shard, read again and again: by a standby, and by an empty
directory that waits for the shard's owner.
"""

from __future__ import annotations

import threading
from functools import partial

from kafka import KafkaAdminClient
from kafka.errors import KafkaError

from duewheel.checkpoints.progress import Progress
from duewheel.deadline import Deadline
from duewheel.kafka.connect.clients import KafkaClients
from duewheel.kafka.log.reader import LogReader
from duewheel.kafka.progress.newest import find_newest, newest_by_key
from duewheel.schemas.batches import TopicPartition
from duewheel.wheel.publisher_protocol import Seen

_COORDINATOR_S = 3.0  # a live coordinator answers in milliseconds


class KafkaProgressReader:
    """The ProgressReader (wheel/publisher_protocol.py) of one shard. It does not wait for open
    transactions.
    """

    def __init__(
        self,
        clients: KafkaClients,
        partition: TopicPartition,
        key: bytes,
        transactional_id: str,
        *,
        stopping: threading.Event | None = None,
        deadline_s: float = 30.0,
    ) -> None:
        """Connects nothing. `transactional_id` is that of the shard's owner; once `stopping` is
        set, no call waits longer than a moment for Kafka.
        """
        self._clients = clients
        self._partition = partition
        self._key = key
        self._transactional_id = transactional_id
        self._stopping = stopping
        begin = partial(Deadline, deadline_s, stopping)
        self._reader = LogReader(clients, [partition[0]], begin)
        self._end = 0  # it has read the offsets below
        self._seen: Seen | None = None

    def newest(self) -> Seen | None:
        """See ProgressReader."""
        reader, partition = self._reader, self._partition
        # Asked each time: otherwise a broker that is down would look like no news.
        (end,) = reader.ends([partition], committed=True).values()
        if end != self._end:
            if 0 < self._end < end:
                found = newest_by_key(reader, {partition: (self._end, end)})
            else:  # the first call, or a topic that was recreated
                (first,) = reader.starts([partition]).values()
                found, self._seen = find_newest(reader, partition, self._key, (first, end)), None
            if self._key in found:
                record = found[self._key]
                self._seen = Seen(Progress.decode(record.value), record.timestamp_ms)
            self._end = end
        return self._seen

    def require_coordinator(self) -> None:
        """See ProgressReader."""
        deadline = Deadline(_COORDINATOR_S, self._stopping)
        # A client of its own: after the coordinator has moved, a cached client keeps asking
        # the former one, which refuses.
        with self._clients.opened(KafkaAdminClient, deadline) as admin:
            self._clients.call(
                deadline,
                f"ask the coordinator of {self._transactional_id}",
                lambda: _ask_coordinator(admin, self._transactional_id),
            )

    def close(self) -> None:
        """Drops the connections."""
        self._reader.close()


def _ask_coordinator(admin: KafkaAdminClient, transactional_id: str) -> None:
    try:
        admin.describe_transactions([transactional_id])
    except KafkaError as error:
        # Other errors are answers of a coordinator: no such id, or a broker older than 3.0 without
        # this request.
        if error.retriable:
            raise
