"""Writes and follows pauses, whose records are in the state topic.

checkpoints/pauses.py has their format and effect. Without a file of known pauses the first read
takes the whole partition, because a pause may be older than any number of progress records.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from contextlib import closing
from functools import partial

from kafka import KafkaProducer

from duewheel.checkpoints.pauses import (
    PausedKind,
    PauseRecord,
    PausesFile,
    changed,
    encoded,
    key_of,
)
from duewheel.deadline import Deadline
from duewheel.errors import INIT_MAKES_IT
from duewheel.kafka.connect.clients import KafkaClients
from duewheel.kafka.log.reader import LogReader
from duewheel.kafka.progress.newest import newest_by_key
from duewheel.kafka.progress.state_topic import state_partition


class PauseReader:
    """The pauses, read again and again. Not thread-safe; the first call connects."""

    def __init__(
        self,
        clients: KafkaClients,
        state_topic: str,
        last: PausesFile,
        deadline_s: float = 30.0,
        stopping: threading.Event | None = None,
    ) -> None:
        """Reading continues where `last` ended. Once `stopping` is set, no call waits longer than
        a moment for Kafka.
        """
        self._partition = state_partition(state_topic, 0)
        # No pause is written in a transaction. A reader of committed records would not see it
        # while another writer's transaction is open before it.
        begin = partial(Deadline, deadline_s, stopping)
        self._reader = LogReader(clients, [state_topic], begin, committed=False)
        self._last, self._is_first = last, True

    def read(self) -> PausesFile:
        """The pauses that have been written so far.

        Raises:
            KafkaUnavailable: no answer in time.
            ConfigError: there is no state topic, or no right to read it.
        """
        reader, partition, last = self._reader, self._partition, self._last
        (end,) = reader.ends([partition], committed=False).values()
        if self._is_first or end < last.read_below:
            (start,) = reader.starts([partition]).values()
            if not start <= last.read_below <= end:  # no file, or a recreated topic
                last = PausesFile(read_below=start)
        if last.read_below < end:
            found = newest_by_key(reader, {partition: (last.read_below, end)})
            records = {key: record.value for key, record in found.items()}
            last = PausesFile(changed(last.of, records), end)
        self._last, self._is_first = last, False
        return last

    def close(self) -> None:
        """Drops the connections."""
        self._reader.close()


def write_pause(
    clients: KafkaClients,
    state_topic: str,
    kind: PausedKind,
    name: str,
    pause: PauseRecord | None,
    deadline: Deadline,
    last: PausesFile,
) -> Mapping[str, PauseRecord]:
    """Writes a pause, in the place of an earlier one; None ends it. Returns the pauses before it,
    which it reads after the `last` ones: dequeue, whose these are, may not run.

    Raises:
        KafkaUnavailable: no answer in time.
        Unacknowledged: no acknowledgement in time: it may be in effect all the same.
        ConfigError: there is no state topic, or no right to write to it.
    """
    (topic, number), key = state_partition(state_topic, 0), key_of(kind, name)
    with LogReader(clients, [state_topic]) as reader, reader.bounded_by(deadline):
        reader.existing(hint=INIT_MAKES_IT)
    with closing(PauseReader(clients, state_topic, last, deadline.remaining_s())) as pauses:
        before = pauses.read().of
    own = {"acks": "all", "allow_auto_create_topics": False}
    with clients.opened(KafkaProducer, deadline, **own) as producer:

        def send() -> None:
            sent = producer.send(topic, encoded(pause), key, partition=number)
            sent.get(timeout=deadline.remaining_s())

        clients.write(deadline, f"write the pause of {name}", send)
    return before
