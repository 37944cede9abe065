"""The progress of one shard in Kafka: the newest, how old it is, whether it is to be sealed, and
which transactional ids it names (kafka/publish/transactional_ids.py).
"""

from __future__ import annotations

from collections.abc import Sequence

from duewheel.checkpoints.progress import Progress
from duewheel.checkpoints.reshard_records import NOTICE_KEY, is_unfinished_notice
from duewheel.deadline import Deadline
from duewheel.kafka.connect.clients import KafkaClients
from duewheel.kafka.log.reader import LogReader
from duewheel.kafka.progress.broker_clock import broker_now_ms
from duewheel.kafka.progress.newest import SEARCH_STEPS, NewestRecord, find_newest, newest_by_key
from duewheel.schemas.batches import TopicPartition
from duewheel.schemas.wire.record_batch import Batch
from duewheel.schemas.wire.single_record import Header, single

# The notice of a killed `reshard` stays. Once the progress is newer by this, the notice is ignored:
# otherwise the shard could never start again.
_NOTICE_AGE_MS = 60_000
# A header with the numbers of transactional ids, as b"0,1"; without it there is only the first id.
_IDS_HEADER, _FIRST_ALONE = "transactional-ids", (0,)


class ShardProgress:
    """Reads the progress of one shard, and encodes it. Not thread-safe.

    Attributes:
        read_ms: the broker's time of the record that was read last; 0 without one.
        is_to_yield: whether `reshard` asks the shard to yield, as the last read has shown.
        ids: the numbers of the transactional ids, as that record names them.
    """

    def __init__(self, clients: KafkaClients, partition: TopicPartition, key: bytes) -> None:
        self._clients = clients
        self.partition, self.key = partition, key
        self.read_ms = 0
        self.is_to_yield = False
        self.ids: tuple[int, ...] = _FIRST_ALONE

    def read(self, reader: LogReader, *, past_open: bool) -> Progress | None:
        """The newest committed progress; None before the first. With `past_open` it waits for open
        transactions, which may hold a newer one.
        """
        # An end from before `init_transactions` could be below the newest record: the shard would
        # deliver again all that came after the one that is found.
        bounds = reader.bounds(partitions=[self.partition], committed=not past_open)
        newest = find_newest(reader, self.partition, self.key, bounds[self.partition])
        found = newest.get(self.key)
        if found is None:
            self.read_ms, self.is_to_yield, self.ids = 0, False, _FIRST_ALONE
            return None
        self.read_ms, self.ids = found.timestamp_ms, _ids_in(found.headers)
        self.is_to_yield = is_yield_requested(found, newest.get(NOTICE_KEY))
        return Progress.decode(found.value)

    def batch(self, progress: Progress, ids: Sequence[int]) -> Batch:
        """The record of a progress that names these ids."""
        named: list[Header] = [(_IDS_HEADER, ",".join(map(str, ids)).encode())]
        return single(self.key, progress.encode(), [] if tuple(ids) == _FIRST_ALONE else named)

    def age_ms(self, deadline: Deadline) -> int:
        """How long ago the owner wrote last, by the broker's clock: the progress that was last
        read, or a newer record in an open transaction.
        """
        hidden_ms = self._hidden_write_ms(deadline)
        now_ms = broker_now_ms(self._clients, self.partition, deadline)
        return now_ms - max(self.read_ms, hidden_ms)

    def _hidden_write_ms(self, deadline: Deadline) -> int:
        """When the broker took the newest record that an open transaction hides; 0 if there is
        none. Otherwise an owner would seem silent while another writer's open transaction hides its
        records from every reader of committed records.
        """
        partition = self.partition
        reader = LogReader(self._clients, [partition[0]], committed=False)
        with reader, reader.bounded_by(deadline):
            (stable,) = reader.ends([partition], committed=True).values()
            (end,) = reader.ends([partition], committed=False).values()
            if stable == end:
                return 0
            found = newest_by_key(reader, {partition: (max(stable, end - SEARCH_STEPS[0]), end)})
        return found[self.key].timestamp_ms if self.key in found else 0


def is_yield_requested(progress: NewestRecord, notice: NewestRecord | None) -> bool:
    """Whether `duewheel reshard` asks the shard to yield: there is a notice, and the progress is
    not newer than it by `_NOTICE_AGE_MS`.
    """
    if notice is None or progress.timestamp_ms - notice.timestamp_ms > _NOTICE_AGE_MS:
        return False
    return is_unfinished_notice(notice.value)


def _ids_in(headers: Sequence[Header]) -> tuple[int, ...]:
    named = dict(headers).get(_IDS_HEADER)
    return tuple(map(int, named.split(b","))) if named else _FIRST_ALONE
