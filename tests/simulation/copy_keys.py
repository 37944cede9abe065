"""The keys of the MACs of copies in one run.

They are drawn from a generator of their own: a run does the same with and without MACs, until a key
is rotated. Some shards begin without a key, as those of older versions did: their copies are
unsigned, until a rotation draws their first one.
"""

from __future__ import annotations

from random import Random


class CopyKeys:
    """Of one run.

    Attributes:
        at_first: whether a shard begins with a key.
        drawn: all keys, also those of plans that were not carried out.
    """

    def __init__(self, seed: int) -> None:
        self._rng = rng = Random(f"keys {seed}")
        self.at_first = rng.random() < 0.8
        self._often = rng.choice((0.0, 0.4, 0.8)) if self.at_first else 0.8
        self.drawn: list[bytes] = []

    def draw(self, bits: int) -> int:
        """So many bits, the next key."""
        key = self._rng.getrandbits(bits)
        self.drawn.append(key.to_bytes(bits // 8, "big"))
        return key

    def rotates(self) -> bool:
        """Whether an operator who changes settings draws another key, too."""
        return self._rng.random() < self._often
