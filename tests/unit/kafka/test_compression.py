"""Compression of a batch, without a broker: test_kafka_publisher.py has one read every codec."""

from __future__ import annotations

import os

import pytest
from kafka.record import MemoryRecords

from duewheel.kafka.compression import Compression, compressed
from duewheel.schemas.wire.compression import CODECS, Codec
from duewheel.schemas.wire.record_batch import seal
from duewheel.schemas.wire.single_record import several


@pytest.mark.parametrize("codec", CODECS)
def test_a_compressed_batch_reads_as_before(codec: Codec) -> None:
    keys, value = [b"%d" % i for i in range(900)], b"reminder " * 30
    plain = several(keys, value)  # more than one block of lz4
    batch = compressed(plain, codec)
    assert (batch.codec, batch.count, batch.plain_bytes) == (codec, 900, len(plain.body))
    assert (len(batch.body) < len(plain.body)) == (codec != "none")
    sealed = seal(batch.body, batch.count, timestamp_ms=1, codec=batch.codec)
    records = list(MemoryRecords(bytes(sealed)).next_batch())
    assert [(record.key, record.value) for record in records] == [(key, value) for key in keys]


def test_what_compression_makes_no_smaller_stays_as_it_is() -> None:
    noise = several([b"k"], os.urandom(500))
    assert compressed(noise, "zstd") is noise


def test_a_topic_may_have_its_own_codec() -> None:
    compression = Compression("lz4", {"orders": "zstd", "tiny": "none"})
    assert [compression.of(topic) for topic in ("orders", "tiny", "bills")] == [
        *("zstd", "none", "lz4"),
    ]
