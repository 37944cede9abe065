"""Topics whose records producers or brokers compress: all parts of duewheel can read them."""

from __future__ import annotations

import shutil
import threading
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaAdminClient
from structlog.testing import capture_logs
from tests.harness.publishing import Message, deliveries, publish_rows
from tests.harness.shard_topics import DEAD, STATE, TIMER, ShardTopics, made
from tests.harness.shared_broker import SharedBroker
from tests.harness.whole_shard import WholeShard, schedule

from duewheel import factory
from duewheel.api.dead_letters import DeadLetterFilter
from duewheel.checkpoints.progress import PartitionProgress
from duewheel.client import DelayProducer
from duewheel.doctor.remedies import KafkaCommands
from duewheel.doctor.topics import as_finding
from duewheel.kafka.topics.admin import KafkaAdmin
from duewheel.ops.dead_letters.listing import list_letters
from duewheel.ops.recovery.preview import preview_start
from duewheel.runtime.dequeue_process import init_progress
from duewheel.wheel.publisher_protocol import publish_progress

pytestmark = pytest.mark.kafka

CODECS = ("lz4", "zstd", "snappy")


@pytest.fixture(params=CODECS)
def codec(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def topics(broker: SharedBroker, tmp_path: Path, codec: str) -> Iterator[ShardTopics]:
    """A begun shard, and then a codec for each of its topics."""
    topics = made(broker, tmp_path, f"codecs-{codec}-{uuid.uuid4().hex[:8]}")
    init_progress(topics.settings)
    for role in (TIMER, DEAD, STATE):
        topics.alter(role, {"compression.type": codec})
    yield topics
    topics.client.close()


def test_progress_and_dead_letters_are_read_and_the_change_is_told(
    topics: ShardTopics, codec: str
) -> None:
    settings, clock = topics.settings, factory.StoppableClock(threading.Event())
    publisher = factory.publisher(settings, clock)
    found = publisher.start()
    assert found is not None
    dead = Message(topics.name(DEAD), b"dead " * 100, dead_letter=True)
    progress = replace(found, epoch=found.epoch + 1)
    publish_rows(publisher, deliveries([dead]), progress)
    assert publisher.start() == progress
    publisher.close()
    reader = factory.progress_reader(settings, clock)
    newest = reader.newest()
    assert newest is not None and newest.progress == progress
    reader.close()
    letters = list(list_letters(settings, DeadLetterFilter()))
    assert [row.value_bytes for row in letters] == [500]

    with KafkaAdmin(settings.kafka.client_options("admin")) as admin:
        with capture_logs() as logs:
            admin.require_topics(settings)
        told = [f for f in admin.topic_findings(settings) if f.setting == "compression.type"]
    assert {f.topic for f in told} == {topics.name(DEAD), topics.name(STATE)}
    assert len(logs) == 2 and all(f"compression.type is {codec}" in str(log) for log in logs)
    for each in (as_finding(f, KafkaCommands("broker:9092", "User:x")) for f in told):
        assert each.severity == "warning"
        assert each.remedy.endswith("--add-config compression.type=uncompressed")


def test_what_producers_compress_is_read_back_and_previewed(
    topics: ShardTopics, codec: str
) -> None:
    settings = topics.settings
    with DelayProducer(
        topics.name(TIMER), bootstrap_servers=settings.kafka.servers, compression_type=codec
    ) as producer:
        timer = producer.schedule("orders", b"pay " * 100, delay="1h").result(60)
        again = producer.reschedule(timer.handle, delay="2h").result(60)
    assert again.id == timer.id

    publisher = factory.publisher(settings, factory.StoppableClock(threading.Event()))
    found = publisher.start()
    assert found is not None
    parts = {p: PartitionProgress(at.delivered_slot, 2) for p, at in found.partitions.items()}
    publish_progress(publisher, replace(found, partitions=parts))
    publisher.close()
    shutil.rmtree(settings.storage.data_dir)
    seen = list[tuple[int, int | None]]()
    preview = preview_start(settings, lambda done, total: seen.append((done, total)))
    assert (preview.pending_rows, seen[-1]) == (2, (2, 2))


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.crash_matrix
@pytest.mark.usefixtures("java")
@pytest.mark.timeout(600)
def test_a_whole_shard_starts_again_after_its_topics_were_made_to_recompress(
    broker: SharedBroker, tmp_path: Path
) -> None:
    shard = WholeShard(tmp_path, broker.bootstrap_servers, f"codecs-{uuid.uuid4().hex[:8]}")
    client = KafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)
    topics = ShardTopics(shard.settings, shard.config, client)
    try:
        shard.start()
        for role, codec in zip((TIMER, DEAD, STATE), CODECS, strict=True):
            topics.alter(role, {"compression.type": codec})
        for prefix in (b"first", b"second"):  # the first progress that is compressed, and read
            await_all(shard, schedule(shard, 200, 1, prefix))
            assert shard.stop() == 0
            shard.start()
        assert set(shard.arrivals.count.values()) == {1}
        code = shard.command("doctor", "--output", "json")
        found = [f for f in code["findings"] if "compression.type" in f["found"]]
        assert {f["severity"] for f in found} == {"warning"} and len(found) == 2
    finally:
        shard.close()
        client.close()


def await_all(shard: WholeShard, sent: dict[bytes, Any]) -> None:
    shard.wait(lambda: sent.keys() <= shard.arrivals.first.keys())
