"""Compression of a batch, without a broker: test_kafka_publisher.py has one read every codec."""

from __future__ import annotations

import gzip
import os
import random

import pytest
import snappy  # type: ignore[import-untyped]  # it brings no types
import zstandard
from kafka.codec import snappy_encode
from kafka.record import MemoryRecords

from duewheel.kafka.log.compression import PLAIN_BYTES_MAX, Compression, compressed, decompressed
from duewheel.schemas.wire.batch_reader import Undecodable
from duewheel.schemas.wire.codec_names import CODECS, Codec
from duewheel.schemas.wire.defects import Defect
from duewheel.schemas.wire.record_batch import Batch, seal
from duewheel.schemas.wire.single_record import several


@pytest.mark.parametrize("codec", CODECS)
def test_a_compressed_batch_reads_as_before(codec: Codec) -> None:
    keys, value = [b"%d" % i for i in range(900)], b"reminder " * 30
    plain = several(keys, value)  # more than one block of lz4
    batch = compressed(plain, codec)
    assert (batch.codec, batch.count) == (codec, 900)
    assert (len(batch.body) < len(plain.body)) == (codec != "none")
    sealed = seal(batch.body, batch.count, timestamp_ms=1, codec=batch.codec)
    records = list(MemoryRecords(bytes(sealed)).next_batch())
    assert [(record.key, record.value) for record in records] == [(key, value) for key in keys]


@pytest.mark.parametrize("codec", CODECS[1:])
@pytest.mark.parametrize("size", [500, 1 << 20])
def test_what_compression_makes_no_smaller_is_compressed_and_hardly_larger(
    codec: Codec, size: int
) -> None:
    """Else a broker would compress it again."""
    noise = several([b"k"], os.urandom(size))
    batch = compressed(noise, codec)
    assert batch.codec == codec
    assert len(batch.body) <= len(noise.body) + len(noise.body) // 600 + 64


def test_no_bytes_take_gzip_long() -> None:
    """The usual levels take a hundred times as long for two symbols as for a text."""
    two_symbols = bytes(random.Random(1).choices(b"01", k=1 << 20))
    batch = compressed(several([b"k"], two_symbols), "gzip")
    fastest = 4
    assert batch.body[8] == fastest, "the header's extra flags"


def test_a_topic_may_have_its_own_codec() -> None:
    by_topic = Compression("lz4", {"orders": "zstd", "tiny": "none"})
    assert [by_topic.of(topic) for topic in ("orders", "tiny", "bills")] == [
        *("zstd", "none", "lz4"),
    ]


@pytest.mark.parametrize("codec", CODECS[1:])
@pytest.mark.parametrize("excess", [0, 1])
def test_records_that_decompress_to_more_than_a_task_may_have_are_refused(
    codec: Codec, excess: int
) -> None:
    """Before they are in memory."""
    plain = bytes((3 << 20) + excess)
    body = compressed(Batch(memoryview(plain), 1), codec).body
    if excess:
        with pytest.raises(Undecodable, match=Defect.TOO_LARGE.name):
            decompressed(codec, body, 3 << 20)
    else:
        assert decompressed(codec, body, 3 << 20) == plain


def test_both_framings_of_snappy_are_bounded() -> None:
    """Some clients write one block without xerial's header."""
    plain = b"reminder " * 1_000
    body = memoryview(snappy_encode(plain, xerial_compatible=False))
    assert decompressed("snappy", body) == plain
    with pytest.raises(Undecodable, match=Defect.TOO_LARGE.name):
        decompressed("snappy", body, len(plain) - 1)


def test_a_size_of_snappy_has_32_bits() -> None:
    """As one of 64 it would count as too large, and a megabyte of it would take minutes."""
    with pytest.raises(Undecodable, match=Defect.COMPRESSION.name):
        decompressed("snappy", memoryview(b"\x80" * 9 + b"\1"))


@pytest.mark.parametrize("xerial", [False, True])
def test_no_memory_is_taken_for_a_size_that_no_block_of_snappy_has(
    xerial: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library allocates what a block claims before it reads on: 6 bytes cost a millisecond."""
    block = b"\x80\x80\x80\x08\0a"  # 16 MiB, which a batch of any size may have
    assert len(block) == 6
    framed = b"\x82SNAPPY\0\0\0\0\1\0\0\0\1" + len(block).to_bytes(4, "big") + block
    monkeypatch.setattr(snappy, "uncompress", lambda _: pytest.fail("memory is allocated"))
    with pytest.raises(Undecodable, match=Defect.COMPRESSION.name):
        decompressed("snappy", memoryview(framed if xerial else block))


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4"])
@pytest.mark.parametrize("is_full", [False, True])
def test_what_is_cut_off_is_refused(codec: Codec, *, is_full: bool) -> None:
    """Kafka-python's zstd gives what there is: its records end beyond their batch then. Lz4 has
    another decoder where the records could exceed the bound.
    """
    plain = several([b"%d" % i for i in range(900)], b"reminder " * 30)
    body, most = compressed(plain, codec).body, len(plain.body) if is_full else PLAIN_BYTES_MAX
    with pytest.raises(Undecodable, match=Defect.COMPRESSION.name):
        decompressed(codec, body[: len(body) // 2], most)


@pytest.mark.parametrize("codec", ["gzip", "zstd"])
def test_few_bytes_do_not_become_many(codec: Codec) -> None:
    """Only bytes on the wire count for a quota of Kafka's; a batch as large as those of others is
    read however well it shrinks.
    """
    small, large = (bytes(size << 20) for size in (16, 32))
    encode = gzip.compress if codec == "gzip" else zstandard.compress
    assert len(decompressed(codec, memoryview(encode(small)))) == len(small)
    with pytest.raises(Undecodable, match="TOO_LARGE"):
        decompressed(codec, memoryview(encode(large)))
