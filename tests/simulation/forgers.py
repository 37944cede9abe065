"""Producers that forge copies, in some runs, from the first key of their shard on.

A forged record is an ordinary message with headers that only copies have: of another timer, of a
parked copy, of a chase. It is

    unsigned     without a MAC
    guessed      signed with a key that nobody has drawn
    outdated     signed with a key that was rotated away
    borrowed     with the MAC of a copy

Nobody judges it for itself: a record that is taken for a copy leaves as the timer that it names,
and one that is refused, as a timer of its own. So the history sees a timer that is doubled, early,
or lost. What a producer may repeat, a copy as it is, byte for byte, is not simulated.

They draw from a generator of their own: a run without them is as if they did not exist.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from random import Random

from tests.simulation.contract_check import decoded
from tests.simulation.copy_keys import CopyKeys
from tests.simulation.kafka_model import Lane, Partition
from tests.simulation.requests import Asked
from tests.simulation.timers import TOPIC, Timer
from tests.simulation.world import World

from duewheel.checkpoints.progress import Progress
from duewheel.schemas import header_names as names
from duewheel.schemas.wire.record_codec import framed_bytes

_KEY_BYTES = 32
_MAC_BYTES = 16
_FAR_SLOT = 10**9


class Forgers:
    """Of one run."""

    def __init__(self, seed: int, keys: CopyKeys) -> None:
        self._rng = rng = Random(f"forgers {seed}")
        self._keys = keys
        self._often = rng.choice((0.3, 0.8)) if rng.random() < 0.35 else 0.0
        self._keyed = set[int]()  # partitions: a shard that has a key has one for ever

    def write(self, world: World, asked: Callable[[int], Asked]) -> None:
        """Perhaps some forged records, in a partition of this shard.

        Args:
            world: the shard.
            asked: draws id and request of a record of a partition.
        """
        rng, newest = self._rng, world.shard.newest()
        partitions = world.shard.partitions
        if newest is not None and newest.epochs.newest.copy_keys:
            self._keyed.update(partition.number for partition in partitions)
        partitions = [partition for partition in partitions if partition.number in self._keyed]
        if rng.random() >= self._often or not partitions:
            return
        for partition in rng.choices(partitions, k=rng.randint(1, 3)):
            wheel, now_ms = world.setup.wheel, world.clock.true_ms
            due_ms = now_ms + rng.randint(0, 3 * wheel.window_ms // 2)
            world.history.counts["forged"] += 1
            world.kafka.write(
                partition.number,
                due_ms,
                now_ms,
                rejected=False,
                added=self._added(world, partition, due_ms),
                **asked(partition.number),
            )

    def _added(self, world: World, partition: Partition, due_ms: int) -> bytes:
        """The headers that make a copy of the next record of a partition."""
        rng, number = self._rng, partition.number
        headers = [(names.ORIGIN, b"%d" % rng.randint(0, partition.end))]
        headers += rng.choice(
            (
                [],
                [(names.ROLL_TIMES, b"1")],
                [(names.NOT_BEFORE_MS, b"%d" % (due_ms + 1)), (names.RETRIES, b"1")],
                [(names.CHASE_SLOT, b"%d" % _FAR_SLOT), (names.CHASE_FLAGS, b"1")],
            )
        )
        added = b"".join(_header(name, value) for name, value in headers)
        timer = Timer(number, partition.end, due_ms, rejected=False)
        how = rng.choice(("unsigned", "guessed", "outdated", "borrowed"))
        world.history.say(f"  {how}: forged {timer.source.decode()} {headers}")
        if how == "unsigned":
            return added
        mac = self._mac(self._key(world, how), number, timer.columns[2], timer.columns[3] + added)
        borrowed = self._borrowed(partition) if how == "borrowed" else None
        return added + _header(names.COPY_MAC, borrowed or mac)

    def _key(self, world: World, how: str) -> bytes:
        """A key that is not valid, nor will be: shards that become one have the keys of all."""
        newest = [Progress.decode(each.progress[-1][0]) for each in _told(world)]
        known = [p.epochs.epochs if len(newest) > 1 else p.epochs.epochs[-1:] for p in newest]
        valid = {bytes.fromhex(key) for of in known for epoch in of for key in epoch.copy_keys}
        outdated = [key for key in self._keys.drawn if key not in valid]
        if how == "outdated" and outdated:
            world.history.counts["forged: outdated"] += 1
            return self._rng.choice(outdated)
        return self._rng.randbytes(_KEY_BYTES)

    def _mac(self, key: bytes, number: int, key_value: bytes, headers: bytes) -> bytes:
        text = b"%s-%d\0" % (TOPIC.encode(), number) + key_value + headers
        return hashlib.blake2b(text, digest_size=_MAC_BYTES, key=key).digest()

    def _borrowed(self, partition: Partition) -> bytes | None:
        copies = [copy for copy in partition.copies() if not copy.is_first]
        said = dict(decoded(self._rng.choice(copies).added)) if copies else {}
        return said.get(names.COPY_MAC)


def _told(world: World) -> list[Lane]:
    """What Kafka has of all shards with progress."""
    return [lane for lane in world.kafka.lanes.values() if lane.progress]


def _header(name: str, value: bytes) -> bytes:
    return framed_bytes(name.encode()) + framed_bytes(value)
