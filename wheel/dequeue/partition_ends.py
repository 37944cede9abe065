"""Loads the ends of timer partitions from Kafka into the file `cancel_bounds`.

After logs were unlinked, a partition may have copies below its end whose originals have no log
(checkpoints/cancel_bounds.py). Until its end is loaded, every cancel in it is chased. A partition
without an answer delays neither other partitions nor deliveries.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import replace
from pathlib import Path

import structlog

from duewheel.checkpoints.cancel_bounds import CancelBounds
from duewheel.checkpoints.fs import FileSystem
from duewheel.clock import Clock, Interval
from duewheel.errors import ConfigError, KafkaUnavailable
from duewheel.schemas.batches import TopicPartition, is_retired
from duewheel.wheel.publisher_protocol import Publisher

log = structlog.get_logger(__name__)

_ASK_AGAIN_MS = 10_000  # after there was no answer
_LOWER_AGAIN_MS = 1_000  # while the same ends are missing: after a failed write, above all


class BoundsKeeper:
    """Lowers the file's bounds to the ends in Kafka. Not thread-safe: one loop owns it."""

    def __init__(self, path: Path, fs: FileSystem, publisher: Publisher, clock: Clock) -> None:
        self._path = path
        self._fs = fs
        self._log_ends = LogEnds(publisher, clock)
        self._bounds = CancelBounds()
        self._lowering = Interval(clock, _LOWER_AGAIN_MS)

    def read(self, r: int, partitions: Iterable[TopicPartition]) -> None:
        """Reads the file again, after a start or a garbage collection has written it.

        If the file is missing, `since` is R, and no partition has a loaded end.
        """
        bounds = CancelBounds.read(self._path)
        self._bounds = CancelBounds.blind_of(r, partitions) if bounds is None else bounds

    def lower(self, held: Container[TopicPartition]) -> None:
        """Loads missing ends, and writes them to the file.

        Args:
            held: partitions with held copies, which are skipped. Their copies will be above an
                end loaded now: a cancel between would be decided without them, and its timer
                delivered after the reply.
        """
        missing = [p for p in self._bounds.unknown_ends if p not in held]
        if not missing or not self._lowering.is_over(missing):
            return
        ends = self._log_ends.of(missing)
        if not ends:
            return
        bounds = replace(self._bounds, blind={**self._bounds.blind, **ends})
        try:
            bounds.write(self._path, self._fs)
        except OSError as error:
            log.warning("the ends of timer partitions cannot be written", reason=str(error))
            return
        self._bounds = bounds


class LogEnds:
    """Loads the ends of partitions from Kafka, with retries. Not thread-safe."""

    def __init__(self, publisher: Publisher, clock: Clock) -> None:
        self._publisher = publisher
        self._clock = clock
        self._next_ms: dict[TopicPartition, int] = {}  # of those without an answer

    def of(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Loads the present ends; partitions without an answer are requested again later.

        Those that had no answer before are in a request of their own, so that they cannot make the
        request of the others time out.
        """
        now_ms, retry_ms = self._clock.boottime_ms(), self._next_ms
        due = [p for p in partitions if retry_ms.get(p, 0) <= now_ms]
        ends = self._ask([p for p in due if p not in retry_ms])
        ends |= self._ask([p for p in due if p in retry_ms])
        for partition in due:
            if partition in ends:
                retry_ms.pop(partition, None)
            else:
                retry_ms[partition] = self._clock.boottime_ms() + _ASK_AGAIN_MS
        return ends

    def _ask(self, wanted: list[TopicPartition]) -> dict[TopicPartition, int]:
        # Copies of a retired topic go to its successor, so none can be above a cancel here.
        ends = {p: 0 for p in wanted if is_retired(p[0])}
        existing = [p for p in wanted if p not in ends]
        try:
            answers = self._publisher.log_ends(existing) if existing else {}
        except (KafkaUnavailable, ConfigError) as error:
            log.warning("the ends of timer partitions cannot be loaded", reason=str(error))
            return ends
        return {**ends, **answers}
