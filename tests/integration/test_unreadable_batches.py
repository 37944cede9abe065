"""Record batches that a real broker takes and no reader can read, and records that would harm the
readers of their target: each is a dead letter, and timers of others are delivered meanwhile.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import lz4.frame
import pytest
import zstandard
from tests.harness.launcher import wait_until
from tests.harness.raw_produce import produce, record
from tests.harness.reader import read_topic
from tests.harness.sparkless_shard import Message, SparklessShard, timer
from tests.harness.topics import alter

from duewheel.config.settings import load
from duewheel.schemas.batches import TimerBatch
from duewheel.schemas.wire.batch_reader import HEADERS_MAX
from duewheel.schemas.wire.codec_names import Codec
from duewheel.schemas.wire.record_batch import Batch
from duewheel.schemas.wire.single_record import encode
from duewheel.schemas.wire.varint import varint

pytestmark = pytest.mark.kafka


@pytest.fixture
def shard(config: Path) -> Iterator[SparklessShard]:
    shard = SparklessShard(load(config), 1)
    yield shard
    shard.close()


def of_bytes(*body: bytes) -> bytes:
    """A record with these bytes after its length."""
    joined = b"".join(body)
    return varint(len(joined)) + joined


def lz4_with_a_wrong_checksum() -> bytes:
    frame = bytearray(lz4.frame.compress(encode(0, b"k", b"v" * 90), content_checksum=True))
    frame[-1] ^= 1
    return bytes(frame)


TWO = (encode(0, b"a", b"1"), encode(1, b"b", b"2"))
ZEROS = of_bytes(b"\0\0\0", varint(-1), varint(300 << 20), bytes(300 << 20), b"\0")
# 8 MB of headers without a name's byte and a value, which every broker takes.
CROWDED = of_bytes(b"\0\0\0\1\1", varint(HEADERS_MAX + 1), b"\0\1" * (HEADERS_MAX + 1))
BATCHES: dict[str, tuple[bytes, int, Codec, str]] = {
    "the same offset twice": (TWO[0] * 2, 2, "none", "offsets do not rise"),
    "falling offsets": (TWO[1] + TWO[0], 2, "none", "offsets do not rise"),
    "an lz4 frame with a wrong checksum": (
        *(lz4_with_a_wrong_checksum(), 1, "lz4"),
        "cannot be decompressed",
    ),
    "zstd of 300 MiB": (zstandard.compress(ZEROS), 1, "zstd", "too large together, decompressed"),
    "too many headers": (zstandard.compress(CROWDED), 1, "zstd", "too many headers together"),
}


def rejections(batches: list[TimerBatch]) -> dict[str, int]:
    (found,) = [TimerBatch.none().extended_by(*batches).rejections()]
    return found


@pytest.mark.parametrize("name", BATCHES)
def test_a_batch_that_cannot_be_read_is_one_dead_letter_and_stops_nobody(
    shard: SparklessShard, name: str
) -> None:
    body, count, codec, reason = BATCHES[name]
    shard.send(shard.timers, 0, timer(shard, b"before", ("TIMER_DELAY_MS", b"1")))
    shard.send_batch(shard.timers, 0, Batch(memoryview(body), count, codec))
    shard.send(shard.timers, 0, timer(shard, b"after", ("TIMER_DELAY_MS", b"1")))
    shard.send(shard.timers, 1, timer(shard, b"another's", ("TIMER_DELAY_MS", b"1")))
    shard.pump()
    shard.pump()

    delivered = [record.value for record in read_topic(shard.servers, shard.target)]
    assert sorted(delivered) == [b"after", b"another's", b"before"]
    (letter,) = shard.letters()
    assert (letter.key, letter.value) == (None, None)
    headers = dict(letter.headers)
    first = int(headers["TIMER_SOURCE"].rpartition(b"@")[2])
    last = first + count - 1
    assert headers["TIMER_ERROR_CODE"] == b"unreadable_batch"
    assert headers["TIMER_ERROR"].startswith(
        b"the record batch of offsets %d to %d " % (first, last)
    )
    assert headers["TIMER_ERROR"].decode().endswith(reason)
    assert headers["TIMER_SOURCE"] == f"{shard.timers}-0@{first}".encode()
    assert shard.outcomes() == (0, {"unreadable_batch": 1}), "its content is only at its source"

    # At another read, and in ranges that cut the batch, it has the same outcome.
    with shard.admin() as admin:
        (end,) = [end for p, end in admin.ends([shard.timers], committed=True).items() if p[1] == 0]
    for cuts in ([0, end], [0, first, first + 1, end], [0, first + 1, last + 1, end]):
        again = [
            batch
            for begin, until in itertools.pairwise(cuts)
            if begin < until
            for batch in shard.read({(shard.timers, 0): (begin, until)})
        ]
        assert rejections(again) == {"unreadable_batch": 1}


def test_numbers_with_bits_that_java_drops_are_delivered_in_a_form_that_all_can_read(
    shard: SparklessShard,
) -> None:
    wide = bytes([0x82, 0x80, 0x80, 0x80, 0x70])  # 1, and three bits above the 32nd
    headers = [(b"REAL_TOPIC", shard.target.encode()), (b"TIMER_DELAY_MS", b"1")]
    framed = [varint(len(n)) + n + varint(len(v)) + v for n, v in headers]
    record = of_bytes(b"\0\0\0", wide, b"k", wide, b"v", varint(2), *framed)
    shard.send_batch(shard.timers, 0, Batch(memoryview(record), 1))
    shard.pump()
    (delivered,) = read_topic(shard.servers, shard.target)
    assert (delivered.key, delivered.value) == (b"k", b"v")


def test_a_header_name_that_is_no_text_is_a_dead_letter_that_all_can_read(
    shard: SparklessShard,
) -> None:
    """Kafka-python's own consumer reads target and dead letters here."""
    bad: Message = (b"k", b"v", [("REAL_TOPIC", shard.target.encode()), ("TIMER_DELAY_MS", b"1")])
    bad[2].insert(1, ("caf\udce9", b"1"))
    cancel: Message = (None, None, [("TIMER_DEL_UNIQKEY", b"order-1"), ("\udcff", b"")])
    shard.send(shard.timers, 0, bad, cancel, timer(shard, b"good", ("TIMER_DELAY_MS", b"1")))
    shard.pump()
    shard.pump()
    assert [record.value for record in read_topic(shard.servers, shard.target)] == [b"good"]
    letters = shard.letters()
    assert [dict(letter.headers)["TIMER_ERROR_CODE"] for letter in letters] == [
        b"bad_header_name"
    ] * 2
    assert letters[0].headers[1] == ("caf?", b"1")
    assert letters[1].headers[1] == ("?", b"")
    assert (letters[0].key, letters[0].value) == (b"k", b"v")


def test_a_delay_without_a_timestamp_is_no_delay_from_1970(shard: SparklessShard) -> None:
    """The broker keeps a timestamp of -1. The delay of an hour would have been over for long."""
    kept = {"message.timestamp.type": "CreateTime", "retention.ms": "-1"}  # else records of 1970 go
    alter(shard.servers, shard.timers, kept)

    def is_kept() -> bool:
        cancel = record(None, None, [("TIMER_DEL_UNIQKEY", b"nobody")], at_ms=1)
        produce(shard.servers, shard.timers, cancel)
        found = read_topic(shard.servers, shard.timers)  # perhaps before it can be read
        return bool(found) and found[-1].timestamp == 1

    wait_until(is_kept, "the setting has no effect")
    key, value, headers = timer(shard, b"early", ("TIMER_DELAY_SEC", b"3600"))
    body = encode(0, key, value, headers)
    shard.send_batch(shard.timers, 0, Batch(memoryview(body), 1), timestamp_ms=-1)
    shard.send(shard.timers, 0, timer(shard, b"good", ("TIMER_DELAY_MS", b"1")))

    def letters() -> bool:
        shard.pump()  # each may only write what the next one commits
        return bool(shard.letters())

    wait_until(letters, "its dead letter is not committed")
    assert [record.value for record in read_topic(shard.servers, shard.target)] == [b"good"]
    (letter,) = shard.letters()
    assert dict(letter.headers)["TIMER_ERROR_CODE"] == b"no_timestamp"
    assert letter.value == b"early"
