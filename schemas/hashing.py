"""Names of timers, and the hashes of ids, keys and topics.

- The source "topic-partition@offset" names the record that requested the timer. It is also the
  timer's id where the user gave none.
- Kafka's murmur2 of the key chooses the partition, as Kafka's Java client does.
- 40 bits of two murmur2 with other seeds stand for the id.
- The lookup hash stands for partition and id in the timer log: the hash of the id, xor 40 bits of
  a keyed hash of the partition. Producers do not know the key. So they cannot choose ids that
  have the lookup hashes of ids in other partitions.
- 32 bits of a keyed hash stand for the target topic there. RocketMQ has String.hashCode: a producer
  finds a name with the hash of another team's target in a second. Counts and lists would mix them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from hashlib import blake2b

import numpy as np
import numpy.typing as npt

from duewheel.schemas.arrays import Int32, Int64
from duewheel.schemas.batches import NO_KEY, TopicPartition
from duewheel.schemas.columns import (
    Bytes,
    Column,
    binary,
    data,
    decimals,
    filled,
    join,
    offsets,
    take,
)

Uint32 = npt.NDArray[np.uint32]

_KAFKA_SEED = 0x9747B28C
_ID_SEEDS = (0x3C6EF372, 0xA54FF53A)
_M = np.uint32(0x5BD1E995)
_MASK = (1 << 32) - 1
ID_HASH_BYTES = 5
TOPIC_HASH_BYTES = 4
_FEW = 16  # rows below which a row at a time is faster than a step of all rows at a time


def source_names(partitions: Sequence[TopicPartition], partition: Int32, offset: Int64) -> Column:
    """Each row's "topic-partition@offset"; `partition` indexes `partitions`."""
    prefixes = binary(f"{topic}-{number}@".encode() for topic, number in partitions)
    return join(take(prefixes, partition), decimals(offset))


def key_hashes(keys: Column) -> Int32:
    """murmur2 of each key with the sign bit cleared, NO_KEY for null."""
    hashes = (murmur2(filled(keys), _KAFKA_SEED)[0] & np.uint32(0x7FFFFFFF)).astype(np.int32)
    if keys.null_count:
        hashes[np.asarray(keys.is_null())] = NO_KEY
    return hashes


def id_hashes(ids: Column) -> Int64:
    """40-bit hash of each timer id."""
    high, low = murmur2(ids, *_ID_SEEDS)
    return (high.astype(np.int64) << 8) | (low & np.uint32(0xFF)).astype(np.int64)


def order_hashes(key_hash: Int32, ids: Column) -> Int64:
    """The hash of each key, or of the id without a key: equal for rows that keep their order."""
    hashes = key_hash.astype(np.int64)
    keyless = np.flatnonzero(key_hash == NO_KEY)
    if len(keyless):
        hashes[keyless] = id_hashes(take(ids, keyless))
    return hashes


def lookup_hashes(
    id_hash: Int64, partitions: Sequence[TopicPartition], partition: Int32, key: str
) -> Int64:
    """40-bit hash of each row's partition and timer id, with the directory's secret key."""
    masks = np.array([_partition_mask(*each, key) for each in partitions], np.int64)
    hashes: Int64 = id_hash ^ masks[partition]
    return hashes


@lru_cache(maxsize=1 << 14)
def _partition_mask(topic: str, number: int, key: str) -> int:
    return int.from_bytes(_keyed(f"{topic}-{number}", key, ID_HASH_BYTES))


@lru_cache(maxsize=1 << 14)
def topic_hash(name: str, key: str) -> int:
    """Signed 32-bit hash of a target topic, with the directory's secret key."""
    return int.from_bytes(_keyed(name, key, TOPIC_HASH_BYTES), signed=True)


def _keyed(name: str, key: str, size: int) -> bytes:
    return blake2b(name.encode(), key=key.encode(), digest_size=size).digest()


def java_hash(text: str) -> int:
    """Java's String.hashCode: over UTF-16 units, signed 32 bits."""
    units = np.frombuffer(text.encode("utf-16-le", "surrogatepass"), "<u2").tolist()
    value = 0
    for unit in units:
        value = (31 * value + unit) & _MASK
    return value - (1 << 32) if value >> 31 else value


def murmur2(column: Column, *seeds: int) -> list[Uint32]:
    """murmur2 of each value, once for each seed. No nulls.

    All rows advance together, four bytes a step, and a row is finished when its words are used up:
    the work is that of the existing bytes. The last few rows, if they are long, continue one at a
    time.
    """
    bounds = offsets(column)
    sizes = np.diff(bounds)
    octets = data(column)
    # A value may start at any byte: overlapping words, one for each byte, read any in one go.
    words = np.ndarray((max(len(octets) - 3, 0),), "<u4", octets, strides=(1,))
    hashes = [sizes.astype(np.uint32) ^ np.uint32(seed) for seed in seeds]
    _add_words(hashes, words, bounds[:-1], sizes >> 2)
    _add_rest(hashes, octets, bounds[1:], sizes & 3)
    for each in hashes:
        each ^= each >> np.uint32(13)
        each *= _M
        each ^= each >> np.uint32(15)
    return hashes


def _add_words(hashes: list[Uint32], words: Uint32, starts: Int64, counts: Int64) -> None:
    """The whole words of each value; `words` is indexed by byte."""
    rows = np.flatnonzero(counts)
    at, left = starts[rows], counts[rows]
    states = [each[rows] for each in hashes]
    while len(rows) > _FEW:
        mixed = _mixed(words[at])
        for state in states:
            state *= _M
            state ^= mixed
        at += 4
        left -= 1
        going = left > 0
        if not going.all():
            for each, state in zip(hashes, states, strict=True):
                each[rows] = state
            rows, at, left = rows[going], at[going], left[going]
            states = [state[going] for state in states]
    for i, row in enumerate(rows.tolist()):
        mixed_words = _mixed(words[at[i] : at[i] + 4 * left[i] : 4]).tolist()
        for each, state in zip(hashes, states, strict=True):
            value = int(state[i])
            for word in mixed_words:
                value = value * int(_M) & _MASK ^ word
            each[row] = value


def _mixed(words: Uint32) -> Uint32:
    """A word after murmur2's first mixing step."""
    mixed = words * _M
    mixed ^= mixed >> np.uint32(24)
    mixed *= _M
    return mixed


def _add_rest(hashes: list[Uint32], octets: Bytes, ends: Int64, counts: Int64) -> None:
    """The one to three bytes after the last whole word."""
    for place in range(3):
        rows = np.flatnonzero(counts > place)
        octet = octets[ends[rows] - counts[rows] + place].astype(np.uint32) << np.uint32(8 * place)
        for each in hashes:
            each[rows] ^= octet
    rows = np.flatnonzero(counts)
    for each in hashes:
        each[rows] *= _M
