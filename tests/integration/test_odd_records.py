"""One producer's odd bytes stop no reader: each test writes them raw, beside other's records."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from kafka import KafkaProducer
from tests.harness.config_file import write_config
from tests.harness.raw_produce import NAME, produce, record
from tests.harness.record_batches import sealed
from tests.harness.shared_broker import SharedBroker
from tests.harness.topics import alter

from duewheel.client import Answer, DelayProducer
from duewheel.client.handle import RecallHandle
from duewheel.config.range_ends import Bound
from duewheel.config.settings import load
from duewheel.errors import InvalidTimer
from duewheel.kafka.connect.clients import KafkaClients
from duewheel.kafka.log.reader import LogReader
from duewheel.kafka.topics.admin import KafkaAdmin
from duewheel.ops.topics.reading import records_of

pytestmark = pytest.mark.kafka

WITHIN_S = 60.0


@pytest.fixture
def topic(broker: SharedBroker, unique_name: Callable[[str], str]) -> str:
    name = unique_name("odd")
    with KafkaAdmin({"bootstrap_servers": [broker.bootstrap_servers]}) as admin:
        admin.create_topic(name, 1)
    # Some records are of 1970: the broker would delete them within seconds.
    alter(broker.bootstrap_servers, name, {"retention.ms": "-1"})
    return name


def doubled() -> bytes:
    """A batch that the broker takes: both records have the same offset delta."""
    one = record(b"k", b"1")
    batch = bytearray(one + one[61:])
    struct.pack_into(">i", batch, 8, len(batch) - 12)
    struct.pack_into(">i", batch, 23, 1)
    struct.pack_into(">i", batch, 57, 2)
    return bytes(sealed(batch))


def odd_batches() -> list[bytes]:
    wrong_codec = bytearray(record(b"k", b"not compressed"))
    wrong_codec[22] = 3  # lz4
    return [record(b"k", b"v", [(NAME, b"\xff"), (NAME, None)]), doubled(), bytes(wrong_codec)]


def test_a_reader_of_any_topic_reads_on(broker: SharedBroker, topic: str) -> None:
    servers = broker.bootstrap_servers
    taken = []
    for batch in odd_batches():
        try:
            taken.append(produce(servers, topic, batch))
        except Exception:  # noqa: BLE001 - the broker refuses some, which is as good
            continue
    last = produce(servers, topic, record(b"k", b"last"))
    assert taken[0] == 0
    with LogReader(KafkaClients({"bootstrap_servers": servers}), [topic]) as reader:
        (place,) = reader.partitions()
        bounds = {
            place: (
                reader.starts([place])[place],
                reader.ends([place], committed=True)[place],
            )
        }
        found = [each for records, _ in reader.records(bounds) for each in records]
        polled = [each for records in reader.poll({place: 0}) for each in records]
    assert found[0].headers == [(NAME, b"\xff"), (NAME, None)]
    assert found[-1] == (topic, 0, last, 0, b"k", b"last", [])
    assert polled == found
    offsets = [each.offset for each in found]
    assert offsets == sorted(set(offsets))


def test_a_foreign_record_among_the_replies_fails_no_cancel(
    broker: SharedBroker, topic: str, unique_name: Callable[[str], str]
) -> None:
    servers, timers = broker.bootstrap_servers, unique_name("timers")
    with KafkaAdmin({"bootstrap_servers": [servers]}) as admin:
        admin.create_topic(timers, 1)
    replies = KafkaProducer(bootstrap_servers=servers)
    with (
        closing(replies),
        DelayProducer(timers, bootstrap_servers=servers, reply_topic=topic) as producer,
    ):
        for number in range(4):
            cancel = producer.cancel(str(number), partition=0).result(WITHIN_S)
            source = f"{timers}-0@{cancel.offset}"
            produce(servers, topic, record(b"k", b"v", [(NAME, b"")]))
            headers = [("TIMER_ANSWER", b"cancelled"), ("TIMER_SOURCE", source.encode())]
            replies.send(topic, json.dumps({}).encode(), headers=headers).get(WITHIN_S)
            assert cancel.answer(WITHIN_S) is Answer.CANCELLED


def test_a_timer_with_an_odd_header_is_read_back_and_others_are_not_harmed(
    broker: SharedBroker, topic: str, unique_name: Callable[[str], str]
) -> None:
    """Its message cannot be written again by the client, which says so."""
    servers = broker.bootstrap_servers
    with DelayProducer(topic, bootstrap_servers=servers) as producer:
        plain = producer.schedule(unique_name("orders"), b"v", delay="1h").result(WITHIN_S)
        due_ms = RecallHandle.decode(plain.handle).due_ms
        odd = [(NAME, b""), ("TIMER_DELIVER_MS", b"%d" % due_ms)]
        offset = produce(servers, topic, record(None, b"v", odd))
        handle = RecallHandle(topic, 0, offset, due_ms, f"{topic}-0@{offset}")
        with pytest.raises(InvalidTimer, match="no UTF-8"):
            producer.reschedule(handle.encode(), delay="1h")
        producer.reschedule(plain.handle, delay="1h").result(WITHIN_S)


def test_topic_read_shows_odd_names_escaped_and_goes_on(
    broker: SharedBroker, topic: str, tmp_path: Path
) -> None:
    servers = broker.bootstrap_servers
    produce(servers, topic, record(b"k", b"v", [(NAME, b"\xff"), ("TIMER_DUE_MS", b"9" * 5_000)]))
    produce(servers, topic, record(b"k", b"last"))
    settings = load(write_config(tmp_path, servers, topic))
    rows = list(records_of(settings, topic, Bound(offset=0), follow=False))
    assert [row.value for row in rows] == ["v", "last"]
    assert rows[0].headers[0] == ("\\xff\\xfe name", "\\xff")
    assert json.dumps([row.as_json() for row in rows]).isascii()
