"""Temporary refusals in some runs: of dead letters, of batches of healthy partitions, by pauses.

They draw from a generator of their own: a seed without them runs as if they did not exist.

    dead letters    the topic does not exist, or some or all of its partitions take no writes: where
                    all do, dead letters wait in their timer topic
    leader          a partition of the timer topic takes no writes: what goes back there is held
    refused batch   a partition of a target refuses batches (of timestamps, say), and metadata says
                    nothing of it: a transaction fails, then its timers are parked
    pause           an operator pauses a target or the timer topic: due timers are parked
"""

from __future__ import annotations

from random import Random

from tests.simulation.kafka_model import Kafka
from tests.simulation.timers import DEAD, TARGET_PARTITIONS, TARGETS, TOPIC

from duewheel.checkpoints.pauses import NONE_PAUSED, PausedTimers

_DEAD = TARGETS[DEAD]


class Refusals:
    """Of one run."""

    def __init__(self, seed: int, kafka: Kafka, *, letters: bool) -> None:
        """`letters`: whether dead letters can be but messages that ingest has rejected."""
        self._rng = rng = Random(f"refusals {seed}")
        self._kafka = kafka
        self._chances = {
            self._move_letters: 0.15 if letters and rng.random() < 0.35 else 0.0,
            self._move_batches: 0.15 if rng.random() < 0.25 else 0.0,
        }
        self._leaders = Random(f"leaders {seed}")
        self._often = 0.15 if self._leaders.random() < 0.3 else 0.0
        self._pauses = Random(f"pauses {seed}")
        self._pausing = 0.1 if self._pauses.random() < 0.15 else 0.0

    def befall(self) -> None:
        """Perhaps something is refused from here on, or taken again."""
        for move, chance in self._chances.items():
            if chance and self._rng.random() < chance:
                move()
        if self._leaders.random() < self._often:
            self._move_leader()
        if self._pauses.random() < self._pausing:
            self._move_pause()

    def _move_letters(self) -> None:
        kafka, rng = self._kafka, self._rng
        there = _DEAD not in kafka.absent and all(name != _DEAD for name, _ in kafka.down)
        self._take_letters()
        if there and rng.random() < 0.5:
            kafka.absent |= {_DEAD}
        elif there:
            numbers = rng.sample(range(TARGET_PARTITIONS), rng.randint(1, TARGET_PARTITIONS))
            kafka.down |= {(_DEAD, number) for number in numbers}
        kafka.history.say(f"! dead letters are {'refused' if there else 'taken again'}")
        kafka.history.counts["dead letters refused"] += there

    def _move_batches(self) -> None:
        kafka, rng = self._kafka, self._rng
        if kafka.refusing:
            kafka.refusing = frozenset()
            return
        topic = rng.choice([name for name in TARGETS if name != _DEAD])
        numbers = rng.sample(range(TARGET_PARTITIONS), rng.randint(1, TARGET_PARTITIONS))
        kafka.refusing = frozenset((topic, number) for number in numbers)
        kafka.history.say(f"! batches are refused: {sorted(kafka.refusing)}")

    def _move_leader(self) -> None:
        kafka = self._kafka
        moved = TOPIC, self._leaders.randrange(len(kafka.partitions))
        kafka.down ^= {moved}
        lost = moved in kafka.down
        kafka.history.say(f"! {moved} takes {'no writes' if lost else 'writes again'}")
        kafka.history.counts["timer partition without leader"] += lost

    def _move_pause(self) -> None:
        kafka = self._kafka
        moved = self._pauses.choice([name for name in (*TARGETS, TOPIC) if name != _DEAD])
        targets, topics, *_ = kafka.paused
        if moved == TOPIC:
            topics ^= {TOPIC}
        else:
            targets ^= {moved}
        kafka.paused = PausedTimers(targets, topics)
        kafka.history.say(f"! paused: {sorted(targets)} {sorted(topics)}")
        kafka.history.counts["paused"] += moved in targets | topics

    def _take_letters(self) -> None:
        kafka = self._kafka
        kafka.absent -= {_DEAD}
        kafka.down = frozenset(each for each in kafka.down if each[0] != _DEAD)

    def quiet_down(self) -> None:
        """Everything is taken from here on."""
        self._take_letters()
        self._kafka.refusing = frozenset()
        self._kafka.paused = NONE_PAUSED
