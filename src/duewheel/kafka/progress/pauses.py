"""Writes and follows pauses, whose records are in the state topic.

Format and effect: checkpoints/pauses.py. Without a file of known pauses the first read takes the
whole partition, because a pause may be older than any number of progress records.
"""

from __future__ import annotations

import threading

from kafka import KafkaProducer

from duewheel.checkpoints.pauses import Kind, PauseRecord, PausesFile, changed, encoded, key_of
from duewheel.kafka.connect.clients import ClientSettings
from duewheel.kafka.connect.deadline import Deadline
from duewheel.kafka.log.connection import INIT_MAKES_IT
from duewheel.kafka.log.ends import EARLIEST, LATEST
from duewheel.kafka.log.newest import newest_in
from duewheel.kafka.log.reader import LogReader
from duewheel.kafka.progress.state_topic import place_of


class PauseReader:
    """The pauses, read again and again. Not thread-safe; the first call connects."""

    def __init__(
        self,
        settings: ClientSettings,
        state_topic: str,
        last: PausesFile,
        deadline_s: float = 30.0,
        stopping: threading.Event | None = None,
    ) -> None:
        """Reading continues where `last` ended. Once `stopping` is set, no call waits longer than
        a moment for Kafka.
        """
        self._place = place_of(state_topic, 0)
        self._deadline_s, self._stopping = deadline_s, stopping
        # No pause is written in a transaction. A reader of committed records would not see it
        # while another writer's transaction is open before it.
        self._log = LogReader(settings, [state_topic], committed=False)
        self._last, self._is_first = last, True

    def read(self) -> PausesFile:
        """The pauses that have been written so far.

        Raises:
            KafkaUnavailable: no answer in time.
            ConfigError: there is no state topic, or no right to read it.
        """
        log, where, last = self._log, self._place, self._last
        log.deadline = Deadline(self._deadline_s, self._stopping)
        (end,) = log.offsets([where], LATEST).values()
        if self._is_first or end < last.read_below:
            (start,) = log.offsets([where], EARLIEST).values()
            if not start <= last.read_below <= end:  # no file, or a recreated topic
                last = PausesFile(read_below=start)
        if last.read_below < end:
            found = newest_in(log, {where: (last.read_below, end)})
            records = {key: record.value for key, record in found.items()}
            last = PausesFile(changed(last.of, records), end)
        self._last, self._is_first = last, False
        return last

    def close(self) -> None:
        """Drop the connections."""
        self._log.close()


def write_pause(
    settings: ClientSettings,
    state_topic: str,
    kind: Kind,
    name: str,
    pause: PauseRecord | None,
    deadline: Deadline,
) -> None:
    """Writes a pause, in the place of an earlier one; None ends it.

    Raises:
        KafkaUnavailable: no acknowledgement in time: it may be in effect all the same.
        ConfigError: there is no state topic, or no right to write to it.
    """
    place, key, value = place_of(state_topic, 0), key_of(kind, name), encoded(pause)
    with LogReader(settings, [state_topic], deadline=deadline) as log:
        log.existing(hint=INIT_MAKES_IT)
    own = {"acks": "all", "allow_auto_create_topics": False}
    with settings.opened(KafkaProducer, deadline, **own) as producer:

        def send() -> None:
            sent = producer.send(place.topic, value, key, partition=place.partition)
            sent.get(timeout=deadline.remaining_s())

        settings.call(deadline, f"write the pause of {name}", send)
