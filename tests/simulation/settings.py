"""Settings that change during a run, and which of them each record is judged by."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tests.simulation.timers import TARGETS, TOPIC, Copy, Timer

from duewheel.checkpoints.epochs import Epoch, Epochs
from duewheel.wheel.layout import WheelConfig

MAPPING = "mapping"


def mapped_to(target: int) -> dict[str, Any]:
    """What decides about messages beside the wheel's geometry."""
    return {MAPPING: {TOPIC: TARGETS[target]}}


def mapped(values: Mapping[str, Any]) -> int:
    """Index of the target of timers that name none."""
    return TARGETS.index(values[MAPPING][TOPIC])


class Settings:
    """All epochs that the progress has ever told of: it forgets some, the judge does not."""

    def __init__(self, wheel: WheelConfig) -> None:
        self.precision_ms = wheel.precision_ms
        self._wheel = wheel
        self._epochs: list[Epoch] = []

    def learn(self, epochs: Epochs) -> bool:
        """Hear of the progress's; returns whether the settings have changed."""
        new = not self._epochs or self._epochs[-1] != epochs.newest
        if new:
            self._epochs.append(epochs.newest)
        return new and len(self._epochs) > 1

    def wheel(self, copy: Copy) -> WheelConfig:
        """The geometry by which a record is placed."""
        window_ms = self._of(copy.timer.partition, copy.offset).window_ms
        return replace(self._wheel, window_ms=window_ms)

    def judged(self, timer: Timer) -> Timer:
        """The timer as it was understood when it first came."""
        target = mapped(self._of(timer.partition, timer.origin).values)
        return timer if target == timer.mapped else replace(timer, mapped=target)

    def _of(self, number: int, offset: int) -> Epoch:
        for epoch in reversed(self._epochs):
            if epoch.since.get((TOPIC, number), 0) <= offset:
                return epoch
        raise AssertionError("the first epoch begins with the topic")
