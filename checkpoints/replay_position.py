"""How far the dead letters have been replayed: a record in the state topic.

It is written in the transaction that replays, under a key of its own (KEY); value this JSON:

    topic_id     Kafka's id of the dead-letter topic: in a recreated topic, offsets mean others
    partitions   by number: [next, {code: next of that code}]

A dead letter is behind the position if its offset is below `next`, or below that of its code:
a replay of one code passes over the others and leaves them for a later one. A committed offset of
a consumer group could not say that, and expires a week after it was last committed.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field

from duewheel.checkpoints.json_fields import MISSHAPEN, integer, name, partition_number
from duewheel.errors import RecoveryRefused

KEY = b"dead-letter-replay"


@dataclass
class ReplayPosition:
    """The position; moves on as letters are replayed.

    Attributes:
        topic_id: of the dead-letter topic.
    """

    topic_id: str
    _next: dict[int, int] = field(default_factory=dict)
    _codes: dict[int, dict[str, int]] = field(default_factory=dict)

    def is_behind(self, partition: int, offset: int, code: str) -> bool:
        """Whether the dead letter at this place has been dealt with."""
        return offset < max(
            self._next.get(partition, 0), self._codes.get(partition, {}).get(code, 0)
        )

    def start(self, partition: int, code: str | None) -> int:
        """Where a replay (of one code, or of all) goes on."""
        of_code = 0 if code is None else self._codes.get(partition, {}).get(code, 0)
        return max(self._next.get(partition, 0), of_code)

    def move(self, partition: int, end: int, code: str | None) -> None:
        """Everything of `code` (None: everything) below `end` has been dealt with.

        What another replay has dealt with beyond that stays so.
        """
        codes = self._codes.setdefault(partition, {})
        if code is not None:
            codes[code] = max(end, codes.get(code, 0))
            return
        end = self._next[partition] = max(end, self._next.get(partition, 0))
        self._codes[partition] = {known: at for known, at in codes.items() if at > end}

    def encode(self) -> bytes:
        """As it is written."""
        numbers = sorted(self._next.keys() | self._codes.keys())
        partitions = {str(n): [self._next.get(n, 0), self._codes.get(n, {})] for n in numbers}
        return json.dumps({"topic_id": self.topic_id, "partitions": partitions}).encode()

    @classmethod
    def decode(cls, value: bytes | None, topic_id: str) -> ReplayPosition:
        """The position in the topic with this id; the beginning if there is none.

        Raises:
            RecoveryRefused: the bytes are no such position.
        """
        position = cls(topic_id)
        if value is None:
            return position
        try:
            found = json.loads(value)
            if name(found["topic_id"]) == topic_id:
                for number, (following, codes) in found["partitions"].items():
                    position._next[partition_number(number)] = integer(following)
                    position._codes[partition_number(number)] = {
                        name(code): integer(at) for code, at in codes.items()
                    }
        except MISSHAPEN as error:
            raise RecoveryRefused(
                f"the position of the dead letters' replay cannot be read: {error!r}"
            ) from error
        return position
