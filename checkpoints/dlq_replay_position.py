"""The position of `duewheel dlq replay` in the dead-letter topic: a record in the state topic.

The transaction that replays writes it, under a key of its own (KEY). The value is JSON:

    topic_id     Kafka's id of the dead-letter topic: offsets of a recreated topic are other letters
    partitions   by number: [next, {code: next of that code}], and if replays named a timer topic,
                 a list of [code or null, timer topic, next of these]

Invariant: a dead letter was replayed if its offset is below `next`, or below a `next` of its code,
its timer topic, or both. A replay of one code or topic skips other letters, and leaves them for a
later replay. A consumer group's offset has one number per partition, and expires a week after its
last commit.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from itertools import product

from duewheel.checkpoints.json_fields import MISSHAPEN, integer, name, partition_number
from duewheel.errors import RecoveryRefused
from duewheel.schemas.dead_letters import DeadLetter

KEY = b"dead-letter-replay"
ALL = None, None

Selected = tuple[str | None, str | None]  # code and timer topic; None: all


@dataclass(frozen=True)
class ReplayPosition:
    """The position, which rises as letters are replayed."""

    topic_id: str
    _nexts: dict[int, dict[Selected, int]] = field(default_factory=dict)  # by partition

    def has(self, letter: DeadLetter) -> bool:
        """Returns whether the dead letter was replayed or refused."""
        return letter.offset < self.start(letter.partition, letter.code, letter.timer_topic)

    def start(self, partition: int, code: str | None, timer_topic: str | None) -> int:
        """Returns the offset at which a replay (of one code, or of all, and likewise of a timer
        topic) continues.
        """
        nexts = self._nexts.get(partition, {})
        return max(nexts.get(each, 0) for each in product({None, code}, {None, timer_topic}))

    def moved(
        self, partition: int, end: int, code: str | None, timer_topic: str | None
    ) -> ReplayPosition:
        """Returns it with the position of these at `end`; one that is beyond `end` stays."""
        nexts = {ALL: 0, **self._nexts.get(partition, {})}
        nexts[code, timer_topic] = max(end, nexts.get((code, timer_topic), 0))
        left = {each: at for each, at in nexts.items() if each == ALL or at > nexts[ALL]}
        return ReplayPosition(self.topic_id, {**self._nexts, partition: left})

    def encode(self) -> bytes:
        partitions: dict[str, list[object]] = {}
        for number, nexts in sorted(self._nexts.items()):
            codes = {c: at for (c, topic), at in nexts.items() if c is not None and topic is None}
            of_topics = [[*each, at] for each, at in nexts.items() if each[1] is not None]
            partitions[str(number)] = [nexts[ALL], codes, *([of_topics] if of_topics else [])]
        return json.dumps({"topic_id": self.topic_id, "partitions": partitions}).encode()

    @classmethod
    def decode(cls, value: bytes | None, topic_id: str) -> ReplayPosition:
        """Decodes the position in the topic with this id; the beginning for another topic, or None.

        Raises:
            RecoveryRefused: the bytes are no such position.
        """
        position = cls(topic_id)
        if value is None:
            return position
        try:
            found = json.loads(value)
            if name(found["topic_id"]) == topic_id:
                for number, (following, codes, *more) in found["partitions"].items():
                    nexts: dict[Selected, int] = {ALL: integer(following)}
                    nexts |= {(name(code), None): integer(at) for code, at in codes.items()}
                    for code, topic, at in more[0] if more else []:
                        nexts[None if code is None else name(code), name(topic)] = integer(at)
                    position._nexts[partition_number(number)] = nexts
        except MISSHAPEN as error:
            raise RecoveryRefused(
                f"the position of the dead letters' replay cannot be read: {error!r}"
            ) from error
        return position
