"""Compresses deliveries, one record batch at a time, as configured for their topics; and reads
compressed batches of any producer.

Copies and dead letters are not compressed: the state topic may have to hold a copy, and duewheel's
own readers of their topics would need a library for the codec. The encoders are kafka-python's,
because Kafka's own clients refuse what other writers of the same formats make, such as lz4 frames
with linked blocks.
"""

from __future__ import annotations

import gzip
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from io import BytesIO
from typing import Any

import lz4.frame
import zstandard
from kafka.codec import (
    gzip_encode,
    lz4_decode,
    lz4_encode,
    snappy_decode,
    snappy_encode,
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
# Of one batch, decompressed. A batch of 1 MB may decompress to gigabytes: a task would be
# killed for it, at each start of ingest.
PLAIN_BYTES_MAX = 256 << 20
_CHUNK_BYTES = 1 << 20
_LZ4_RATIO_MAX = 255  # a byte of a match's length stands for so many
# How the framing of xerial begins, Kafka's of snappy: blocks, each behind its compressed size.
_XERIAL, _XERIAL_HEADER_BYTES = b"\x82SNAPPY\0", 16


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


def decompressed(codec: Codec, body: memoryview, plain_bytes_max: int = PLAIN_BYTES_MAX) -> bytes:
    """The records of a batch.

    Raises:
        CorruptBatch: the codec refuses them, or they are larger than `plain_bytes_max`.
    """
    try:
        return _DECODERS[codec](body, plain_bytes_max)
    except CorruptBatch:
        raise
    except Exception as error:  # each codec has its own kinds
        raise CorruptBatch(f"a batch compressed by {codec} cannot be read: {error}") from error


def _require_small(plain_bytes: int, most: int) -> None:
    if plain_bytes > most:
        raise CorruptBatch(f"its records decompress to more than {most >> 20} MiB")


def _read(file: Any, most: int) -> bytes:
    """All that a decompressing file gives."""
    chunks, plain_bytes = [], 0
    while chunk := file.read(_CHUNK_BYTES):
        plain_bytes += len(chunk)
        _require_small(plain_bytes, most)
        chunks.append(chunk)
    return b"".join(chunks)


def _gzip_decode(body: memoryview, most: int) -> bytes:
    with gzip.GzipFile(fileobj=BytesIO(body)) as file:
        return _read(file, most)


def _zstd_decode(body: memoryview, most: int) -> bytes:
    decompressor = zstandard.ZstdDecompressor()
    with decompressor.stream_reader(body, read_across_frames=True) as file:
        return _read(file, most)


def _lz4_decode(body: memoryview, most: int) -> bytes:
    if len(body) <= most // _LZ4_RATIO_MAX:  # nearly every batch; far faster
        small: bytes = lz4_decode(body)
        return small
    decompressor = lz4.frame.LZ4FrameDecompressor()
    plain: bytes = decompressor.decompress(body, max_length=most + 1)
    _require_small(len(plain), most)
    if not decompressor.eof:
        raise CorruptBatch("a batch compressed by lz4 cannot be read: its frame has no end")
    return plain


def _snappy_decode(body: memoryview, most: int) -> bytes:
    """Each block begins with its decompressed size."""
    if body[:8] == _XERIAL:
        plain_bytes, at = 0, _XERIAL_HEADER_BYTES
        while at < len(body):
            (size,) = struct.unpack_from(">I", body, at)
            plain_bytes += _unsigned(body, at + 4)
            at += 4 + size
    else:
        plain_bytes = _unsigned(body, 0)
    _require_small(plain_bytes, most)
    plain: bytes = snappy_decode(body)
    return plain


def _unsigned(octets: memoryview, at: int) -> int:
    """The unsigned varint at `at`."""
    value = shift = 0
    while octets[at] >= 128:
        value |= (octets[at] & 127) << shift
        at, shift = at + 1, shift + 7
    return value | octets[at] << shift


_DECODERS: dict[Codec, Callable[[memoryview, int], bytes]] = {
    "gzip": _gzip_decode,
    "snappy": _snappy_decode,
    "lz4": _lz4_decode,
    "zstd": _zstd_decode,
}
