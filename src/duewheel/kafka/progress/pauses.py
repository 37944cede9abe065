"""Writes and follows pauses, whose records are in the state topic.

Format and effect: checkpoints/pauses.py. The first read takes the whole partition, because a pause
may be older than any number of progress records; the small segments of the state topic keep that
short.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping

from kafka import KafkaProducer

from duewheel.checkpoints.pauses import Kind, PauseRecord, changed, encoded, key_of
from duewheel.kafka.connect.clients import ClientSettings
from duewheel.kafka.connect.deadline import Deadline
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
        deadline_s: float = 30.0,
        stopping: threading.Event | None = None,
    ) -> None:
        """Once `stopping` is set, no call waits longer than a moment for Kafka."""
        self._place = place_of(state_topic, 0)
        self._deadline_s, self._stopping = deadline_s, stopping
        self._log = LogReader(settings, [state_topic])
        self._end = 0  # it has read the offsets below
        self._pauses: dict[str, PauseRecord] = {}

    def read(self) -> Mapping[str, PauseRecord]:
        """The pauses that have been written so far, ended ones included if they end by themselves;
        by "kind/name".

        Raises:
            KafkaUnavailable: no answer in time.
            ConfigError: there is no state topic, or no right to read it.
        """
        log, where = self._log, self._place
        log.deadline = Deadline(self._deadline_s, self._stopping)
        (end,) = log.offsets([where], LATEST).values()
        if end == self._end:
            return self._pauses
        if not 0 < self._end < end:  # the first call, or a topic that was recreated
            (self._end,) = log.offsets([where], EARLIEST).values()
            self._pauses = {}
        found = newest_in(log, {where: (self._end, end)})
        self._pauses = changed(self._pauses, {key: found[key].value for key in found})
        self._end = end
        return self._pauses

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
    place, key = place_of(state_topic, 0), key_of(kind, name)
    value = None if pause is None else encoded(pause)
    with settings.opened(KafkaProducer, deadline, acks="all") as producer:

        def send() -> None:
            sent = producer.send(place.topic, value, key, partition=place.partition)
            sent.get(timeout=deadline.remaining_s())

        settings.call(deadline, f"write the pause of {name}", send)
