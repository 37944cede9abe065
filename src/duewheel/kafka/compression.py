"""Compresses deliveries, one record batch at a time, as configured for their topics; and reads
compressed batches of any producer.

Copies and dead letters are not compressed: the state topic may have to hold a copy, and duewheel's
own readers of their topics would need a library for the codec. The codecs are kafka-python's,
because Kafka's own clients refuse what other writers of the same formats make, such as lz4 frames
with linked blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from kafka.codec import (
    gzip_decode,
    gzip_encode,
    lz4_decode,
    lz4_encode,
    snappy_decode,
    snappy_encode,
    zstd_decode,
    zstd_encode,
)

from duewheel.schemas.wire.batch_reader import CorruptBatch
from duewheel.schemas.wire.compression import Codec
from duewheel.schemas.wire.record_batch import Batch

_ENCODERS: dict[Codec, Callable[[memoryview], bytes]] = {
    "gzip": gzip_encode,
    "snappy": snappy_encode,
    "lz4": lz4_encode,
    "zstd": zstd_encode,
}
_DECODERS: dict[Codec, Callable[[memoryview], bytes]] = {
    "gzip": gzip_decode,
    "snappy": snappy_decode,
    "lz4": lz4_decode,
    "zstd": zstd_decode,
}


@dataclass(frozen=True, slots=True)
class Compression:
    """The codec of each target topic.

    Attributes:
        default: of topics that `by_topic` does not name.
        by_topic: the others.
    """

    default: Codec = "none"
    by_topic: Mapping[str, Codec] = field(default_factory=dict)

    def of(self, topic: str) -> Codec:
        """The codec of a topic."""
        return self.by_topic.get(topic, self.default)


def compressed(batch: Batch, codec: Codec) -> Batch:
    """The batch with its records compressed; as it is if that makes it no smaller."""
    if codec == "none":
        return batch
    body = _ENCODERS[codec](batch.body)
    if len(body) >= len(batch.body):
        return batch
    return replace(batch, body=memoryview(body), codec=codec, compressed_from=len(batch.body))


def decompressed(codec: Codec, body: memoryview) -> bytes:
    """The records of a batch.

    Raises:
        CorruptBatch: the codec refuses them.
    """
    try:
        return _DECODERS[codec](body)
    except Exception as error:  # each codec has its own kinds
        raise CorruptBatch(f"a batch compressed by {codec} cannot be read: {error}") from error
