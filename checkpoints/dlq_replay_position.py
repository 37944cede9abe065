"""The position of `duewheel dlq replay` in the dead-letter topic: a record in the state topic.

The transaction that replays writes it, under a key of its own (KEY). The value is JSON:

    topic_id     Kafka's id of the dead-letter topic: offsets of a recreated topic are other letters
    partitions   by number: [next, {code: next of that code}]

Invariant: a dead letter was replayed if its offset is below `next`, or below the `next` of its
code. A replay of one code skips the letters of other codes, and leaves them for a later replay. A
consumer group's offset has one number per partition, and expires a week after its last commit.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field

from duewheel.checkpoints.json_fields import MISSHAPEN, integer, name, partition_number
from duewheel.errors import RecoveryRefused

KEY = b"dead-letter-replay"


@dataclass(frozen=True)
class ReplayPosition:
    """The position, which rises as letters are replayed."""

    topic_id: str
    _next: dict[int, int] = field(default_factory=dict)
    _codes: dict[int, dict[str, int]] = field(default_factory=dict)

    def is_behind(self, partition: int, offset: int, code: str) -> bool:
        """Returns whether the dead letter at this offset was replayed or refused."""
        return offset < max(
            self._next.get(partition, 0), self._codes.get(partition, {}).get(code, 0)
        )

    def start(self, partition: int, code: str | None) -> int:
        """Returns the offset at which a replay (of one code, or of all) continues."""
        of_code = 0 if code is None else self._codes.get(partition, {}).get(code, 0)
        return max(self._next.get(partition, 0), of_code)

    def moved(self, partition: int, end: int, code: str | None) -> ReplayPosition:
        """Returns it with the position of `code` (None: of all codes) at `end`; one that is beyond
        `end` stays.
        """
        nexts, codes = dict(self._next), dict(self._codes.get(partition, {}))
        if code is not None:
            codes[code] = max(end, codes.get(code, 0))
        else:
            end = nexts[partition] = max(end, nexts.get(partition, 0))
            codes = {known: at for known, at in codes.items() if at > end}
        return ReplayPosition(self.topic_id, nexts, {**self._codes, partition: codes})

    def encode(self) -> bytes:
        numbers = sorted(self._next.keys() | self._codes.keys())
        partitions = {str(n): [self._next.get(n, 0), self._codes.get(n, {})] for n in numbers}
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
