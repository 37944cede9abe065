"""Settings that change during a run, and the epoch of each record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from tests.simulation.timers import TARGETS, TOPIC, Copy, Timer

from duewheel.checkpoints.config_epochs import Epoch, Epochs
from duewheel.checkpoints.progress import Progress, shard_of
from duewheel.schemas.batches import TopicPartition
from duewheel.wheel.slots import WheelConfig

MAPPING = "mapping"


def mapped_to(target: int) -> dict[str, Any]:
    """What decides about messages beside the wheel's geometry."""
    return {MAPPING: {TOPIC: TARGETS[target]}}


def mapped(values: Mapping[str, Any]) -> int:
    """Index of the target of timers that name none."""
    return TARGETS.index(values[MAPPING][TOPIC])


class Settings:
    """All epochs that any progress has ever told of: it forgets some, the judge does not."""

    def __init__(self, wheel: WheelConfig) -> None:
        self.precision_ms = wheel.precision_ms
        self._wheel = wheel
        self._shards = 1
        self._newest: dict[int, Epochs] = {}  # by shard
        self._epochs: dict[int, list[Epoch]] = {}  # by partition

    def learn(self, progress: Progress) -> bool:
        """Hear of a shard's; returns whether its settings have changed."""
        epochs, shard = progress.epochs, progress.shard
        before, self._newest[shard] = self._newest.get(shard, epochs), epochs
        self._shards = progress.shards
        for name in progress.partitions:
            first = _first_as_newest(progress, name)
            known = self._epochs.setdefault(name[1], list(epochs.epochs))
            begins = known[-1].since.get(name, 0), first.since.get(name, 0)
            if known[-1].changes(first.values) or begins[0] != begins[1]:
                known.append(first)
        return before.newest != epochs.newest

    def reassigned(self, records: Sequence[Progress]) -> bool:
        """The partitions are those of other shards from here on; returns whether each is still
        judged as it was.
        """
        before = {number: len(epochs) for number, epochs in self._epochs.items()}
        self._newest.clear()
        for record in records:
            self.learn(record)
        return before == {number: len(epochs) for number, epochs in self._epochs.items()}

    def window_ms(self, number: int) -> int:
        """The roll window that dequeue has now for a partition."""
        newest = self._newest[shard_of((TOPIC, number), self._shards)]
        return newest.newest.window_ms

    def wheel(self, copy: Copy) -> WheelConfig:
        """The geometry by which a record is placed."""
        window_ms = self._of(copy.timer.partition, copy.offset).window_ms
        return replace(self._wheel, window_ms=window_ms)

    def judged(self, timer: Timer) -> Timer:
        """The timer as it was understood when it first came."""
        target = mapped(self._of(timer.partition, timer.origin).values)
        return timer if target == timer.mapped else replace(timer, mapped=target)

    def _of(self, number: int, offset: int) -> Epoch:
        newest = self._newest[shard_of((TOPIC, number), self._shards)]
        # One that no progress names yet is judged by the newest progress.
        for epoch in reversed(self._epochs.get(number, newest.epochs)):
            if epoch.since.get((TOPIC, number), 0) <= offset:
                return epoch
        raise AssertionError("the first epoch begins with the topic")


def _first_as_newest(progress: Progress, name: TopicPartition) -> Epoch:
    """A partition's first epoch with the settings of the newest one: a key of copies that was drawn
    since does not matter here, nor an epoch without a row of this partition: another shard's, or
    one before a loss, after which the offsets began again.
    """
    *older, first = progress.epochs.epochs
    for epoch in reversed(older):
        if epoch.since.get(name, 0) >= first.since.get(name, 0):
            continue
        if epoch.changes(first.values):
            break
        first = epoch
    return first
