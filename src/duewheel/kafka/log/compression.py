"""Compresses the batches of dequeue, and reads compressed batches of any producer.

The codec is that of `compression.type` of the topic, else the configured one: the broker would
compress a batch of another codec again, at a level that the topic's owner chooses, while all others
wait. The encoders are kafka-python's, because Kafka's own clients refuse other variants of the same
formats, such as lz4 frames with linked blocks. But its gzip takes 3.5 s for a MiB of two symbols:
the lowest level takes 30 ms at most, whatever the bytes are.
"""

from __future__ import annotations

import struct
import threading
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from kafka.codec import (
    gzip_encode,
    has_gzip,
    has_lz4,
    has_snappy,
    has_zstd,
    lz4_decode,
    lz4_encode,
    snappy_encode,
    zstd_encode,
)

from duewheel.errors import Misconfigured
from duewheel.schemas.wire.batch_reader import Undecodable
from duewheel.schemas.wire.codec_names import Codec
from duewheel.schemas.wire.defects import Defect

if TYPE_CHECKING:  # the client reads compressed batches without numpy
    from duewheel.schemas.wire.record_batch import Batch

_ENCODERS: dict[Codec, Callable[[memoryview], bytes]] = {
    "gzip": partial(gzip_encode, compresslevel=1),
    "snappy": snappy_encode,
    "lz4": lz4_encode,
    "zstd": zstd_encode,
}
# Of one batch, decompressed. A batch of 1 MB may decompress to gigabytes, for which a task would be
# killed at each start of ingest.
PLAIN_BYTES_MAX = 256 << 20
# Without this, 10 kB on the wire, which is all that Kafka's quotas count, would cost a task 0.3 s.
# Batches of ordinary producers are below: most have at most 1 MiB.
_PLAIN_BYTES_FREE, _RATIO_MAX = 16 << 20, 64
_CHUNK_BYTES = 1 << 20
_GZIP = 16 + zlib.MAX_WBITS  # zlib's number for the container
_LZ4_RATIO_MAX = 255  # a byte of a match's length stands for so many
# The most bytes that a byte of each codec stands for. zstd: a block of 128 KiB in 4 bytes.
_RATIOS: Mapping[Codec, int] = {"gzip": 1032, "snappy": 22, "lz4": _LZ4_RATIO_MAX, "zstd": 1 << 15}
# How the framing of xerial begins, Kafka's of snappy: blocks, each after its compressed size.
_XERIAL, _XERIAL_HEADER_BYTES = b"\x82SNAPPY\0", 16
_SIZE = struct.Struct(">I")
_SIZE_BITS = 32  # a size that snappy gives has at most so many
_OF_THREAD = threading.local()
# On average. Writers make blocks of 32 KiB, which never shrink so far; each costs a microsecond.
_SNAPPY_BLOCK_BYTES_MIN = 32


@dataclass(frozen=True, slots=True)
class Compression:
    """The codec of each target topic.

    Attributes:
        default: the codec of topics that `by_topic` does not name.
        by_topic: the others.
    """

    default: Codec = "none"
    by_topic: Mapping[str, Codec] = field(default_factory=dict)

    def of(self, topic: str) -> Codec:
        """The codec of a topic."""
        return self.by_topic.get(topic, self.default)


def compressed(batch: Batch, codec: Codec) -> Batch:
    """The batch with its records compressed, also if that makes it no smaller."""
    if codec == "none":
        return batch
    return replace(batch, body=memoryview(_ENCODERS[codec](batch.body)), codec=codec)


def decompressed(
    codec: Codec, body: memoryview, plain_bytes_max: int = PLAIN_BYTES_MAX
) -> bytes | bytearray:
    """The records of a batch.

    Raises:
        Undecodable: the codec refuses them, or they are larger than `plain_bytes_max`, or than
            16 MiB and 64 times `body`.
        Misconfigured: the library for the codec is not installed.
    """
    if not _INSTALLED.get(codec, has_gzip)():
        library = {"snappy": "python-snappy", "zstd": "zstandard"}.get(codec, codec)
        raise Misconfigured(f"a record batch is compressed by {codec}: pip install {library}")
    most = min(plain_bytes_max, _PLAIN_BYTES_FREE + _RATIO_MAX * len(body))
    try:
        return _DECODERS[codec](body, most)
    except Exception as error:  # each codec has its own kinds
        defect = Defect.TOO_LARGE if isinstance(error, _TooLarge) else Defect.COMPRESSION
        raise Undecodable(defect, min(most, _RATIOS[codec] * len(body))) from error


class _TooLarge(Exception):
    """More bytes than are permitted."""


def _require_small(plain_bytes: int, most: int) -> None:
    if plain_bytes > most:
        raise _TooLarge


def _require(is_whole: bool) -> None:
    if not is_whole:
        raise ValueError("incomplete, or of more parts than writers make")


def _gzip_decode(body: memoryview, most: int) -> bytes:
    """Decodes one member: thousands of empty ones would cost more time than their bytes may."""
    decompressor = zlib.decompressobj(_GZIP)
    plain = decompressor.decompress(body, most + 1)
    _require_small(len(plain), most)
    _require(decompressor.eof and not decompressor.unused_data)
    return plain


def _zstd_decode(body: memoryview, most: int) -> bytearray:
    import zstandard

    # Made once per thread: making one takes as long as all else about a small batch.
    decompressor = getattr(_OF_THREAD, "zstd", None)
    if decompressor is None:
        decompressor = _OF_THREAD.zstd = zstandard.ZstdDecompressor()
    plain = bytearray()
    with decompressor.stream_reader(body, read_across_frames=True) as file:
        while chunk := file.read(_CHUNK_BYTES):
            plain += chunk
            _require_small(len(plain), most)
    return plain


def _lz4_decode(body: memoryview, most: int) -> bytes:
    import lz4.frame

    if len(body) <= most // _LZ4_RATIO_MAX:  # nearly every batch; far faster
        small: bytes = lz4_decode(body)
        return small
    decompressor = lz4.frame.LZ4FrameDecompressor()
    plain: bytes = decompressor.decompress(body, max_length=most + 1)
    _require_small(len(plain), most)
    _require(decompressor.eof)
    return plain


def _snappy_decode(body: memoryview, most: int) -> bytes:
    """Each block begins with its decompressed size. kafka-python's reader of xerial's framing would
    follow a negative size backwards, for ever.
    """
    import snappy  # type: ignore[import-untyped]  # it brings no types

    if body[:8] != _XERIAL:
        _require_small(_claimed_bytes(body), most)
        single: bytes = snappy.uncompress(body)
        return single
    blocks, plain_bytes, at = [], 0, _XERIAL_HEADER_BYTES
    while at < len(body):
        (size,) = _SIZE.unpack_from(body, at)
        block = body[at + _SIZE.size : at + _SIZE.size + size]
        plain_bytes += _claimed_bytes(block)
        _require_small(plain_bytes, most)
        blocks.append(snappy.uncompress(block))
        _require(len(blocks) <= 1 + len(body) // _SNAPPY_BLOCK_BYTES_MIN)
        at += _SIZE.size + size
    return b"".join(blocks)


def _claimed_bytes(block: memoryview) -> int:
    """The size that a block of snappy claims: memory for it is allocated before a byte is decoded,
    which took a millisecond for 6 bytes that claim 16 MiB.
    """
    claimed = _unsigned(block)
    _require(claimed <= _RATIOS["snappy"] * len(block))
    return claimed


def _unsigned(octets: memoryview) -> int:
    """The unsigned varint at the begin, of 32 bits."""
    at = value = shift = 0
    while octets[at] >= 128:
        _require(shift < _SIZE_BITS)  # a sum of longer ones would take time by its square
        value |= (octets[at] & 127) << shift
        at, shift = at + 1, shift + 7
    return value | octets[at] << shift


_INSTALLED = {"snappy": has_snappy, "lz4": has_lz4, "zstd": has_zstd}
_DECODERS: dict[Codec, Callable[[memoryview, int], bytes | bytearray]] = {
    "gzip": _gzip_decode,
    "snappy": _snappy_decode,
    "lz4": _lz4_decode,
    "zstd": _zstd_decode,
}
