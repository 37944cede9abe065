"""The progress of one shard in Kafka: the newest, how old it is, and whether it is to be sealed."""

from __future__ import annotations

from kafka.structs import TopicPartition

from duewheel.checkpoints.progress import Progress
from duewheel.checkpoints.reshard_records import NOTICE_KEY, is_unfinished_notice
from duewheel.kafka.connect.clients import ClientSettings
from duewheel.kafka.connect.deadline import Deadline
from duewheel.kafka.log.newest import NewestRecord, newest_of
from duewheel.kafka.log.reader import LogReader
from duewheel.kafka.progress.state_topic import broker_now_ms, last_write_ms

# The notice of a killed `reshard` stays. Once the progress is newer by this, the notice is ignored:
# otherwise the shard could never start again.
_NOTICE_AGE_MS = 60_000


class ShardProgress:
    """Reads it. Not thread-safe."""

    def __init__(self, settings: ClientSettings, place: TopicPartition, key: bytes) -> None:
        self._settings, self._place, self._key = settings, place, key
        self._read_ms = 0  # the broker's time of the record that was read last
        self.is_to_yield = False  # `reshard` asked for it, as the last read has shown

    def read(self, reader: LogReader, *, past_open: bool) -> Progress | None:
        """The newest committed progress; None before the first."""
        newest = newest_of(reader, self._place, self._key, past_open=past_open)
        found = newest.get(self._key)
        if found is None:
            self._read_ms, self.is_to_yield = 0, False
            return None
        self._read_ms = found.timestamp_ms
        self.is_to_yield = is_yield_requested(found, newest.get(NOTICE_KEY))
        return Progress.decode(found.value)

    def age_ms(self, deadline: Deadline) -> int:
        """How long ago the owner wrote last, by the broker's clock: the progress that was last
        read, or a newer record in an open transaction.
        """
        hidden_ms = last_write_ms(self._settings, self._place, self._key, deadline)
        now_ms = broker_now_ms(self._settings, self._place, deadline)
        return now_ms - max(self._read_ms, hidden_ms)


def is_yield_requested(progress: NewestRecord, notice: NewestRecord | None) -> bool:
    """Whether `duewheel reshard` asks the shard to yield: there is a notice, and the progress is
    not newer than it by `_NOTICE_AGE_MS`.
    """
    if notice is None or progress.timestamp_ms - notice.timestamp_ms > _NOTICE_AGE_MS:
        return False
    return is_unfinished_notice(notice.value)
