"""Settings of a target that no transaction survives: its timers are parked, all others leave.

Kafka refuses a transaction's own markers in a topic that takes records of this very millisecond
only, or whose index has no room, and does not try again: the transactional id would be blocked for
ever.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path

import pytest
from kafka import KafkaAdminClient
from tests.harness.fault_judge import FaultTopics
from tests.harness.kafka_shard import CLOCK
from tests.harness.log_files import compressed_batches
from tests.harness.proxied_shard import ProxiedShard, shard_of_two_teams
from tests.harness.publishing import (
    Message,
    create_topics,
    new_publisher,
    progress,
    publish,
    slot_of,
    started,
)
from tests.harness.reader import read_topic
from tests.harness.shared_broker import SharedBroker
from tests.harness.sparkless_shard import SparklessShard, until
from tests.harness.topics import alter, configs
from tests.soak.cluster import Cluster

from duewheel.config.settings import load
from duewheel.errors import PublishDoubt
from duewheel.kafka.log.compression import Compression, decompressed
from duewheel.kafka.publish.transactional_ids import TransactionalIds
from duewheel.kafka.targets.target_describer import SETTINGS
from duewheel.schemas.wire.codec_names import Codec
from duewheel.schemas.wire.record_rows import rows_of
from duewheel.schemas.wire.single_record import Header
from duewheel.wheel.dequeue.statistics import Statistics

pytestmark = pytest.mark.kafka

BEFORE, AFTER = "message.timestamp.before.max.ms", "message.timestamp.after.max.ms"
INDEX = "segment.index.bytes"
_EXTRA_FLAGS, _FASTEST = 8, 4  # gzip's header has the level
USUAL = {BEFORE: str(2**63 - 1), AFTER: "3600000", INDEX: "10485760"}
# With the worst values of index, flush, compaction, jitter, throttling and retention a transaction
# of 100 partitions took as long as without, on one broker. Not measured: elections, deleted
# tombstones, and tiered storage, which needs a plugin.
HARMLESS = {
    "compression.gzip.level",  # no effect on batches in the codec of the topic
    "compression.lz4.level",
    "compression.zstd.level",
    "delete.retention.ms",
    "file.delete.delay.ms",
    "flush.ms",
    "follower.replication.throttled.replicas",
    "index.interval.bytes",
    "leader.replication.throttled.replicas",
    "local.retention.bytes",
    "local.retention.ms",
    "min.cleanable.dirty.ratio",
    "min.compaction.lag.ms",
    "preallocate",
    "remote.log.copy.disable",
    "remote.log.delete.on.disable",
    "remote.storage.enable",
    "retention.bytes",
    "retention.ms",
    "segment.jitter.ms",
    "unclean.leader.election.enable",
}


@contextmanager
def new_shard(
    path: Path, broker: SharedBroker, compression: Compression | None = None
) -> Iterator[ProxiedShard]:
    topics = FaultTopics.named(f"settings-{uuid.uuid4().hex[:8]}")
    topics.create(broker.bootstrap_servers)
    place = (path, broker, broker.bootstrap_servers, topics)
    shard = ProxiedShard(*place, compression=compression)
    try:
        yield shard
    finally:
        shard.stop()


@pytest.fixture
def shard(tmp_path: Path, broker: SharedBroker) -> Iterator[ProxiedShard]:
    with new_shard(tmp_path, broker) as shard:
        yield shard


def test_each_setting_that_kafka_has_is_judged_or_does_no_harm(broker: SharedBroker) -> None:
    """A new version's settings fail here: measure transactions of 100 partitions with them."""
    with closing(KafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)) as admin:
        target = create_topics(admin).target
        assert configs(admin, target).keys() - {*SETTINGS} == HARMLESS


@pytest.mark.parametrize(("setting", "value"), [(BEFORE, "0"), (AFTER, "0"), (INDEX, "8")])
def test_a_target_that_no_transaction_survives_gets_none(
    shard: ProxiedShard, broker: SharedBroker, setting: str, value: str
) -> None:
    orders, strict = shard.topics.orders, shard.topics.bills
    alter(broker.bootstrap_servers, strict, {setting: value})
    shard.start()
    timers = [(topic, number % 3) for number in range(20) for topic in (orders, strict)]
    due_ms = shard.write(timers)
    shard.turn_until(lambda: shard.statistics.delivered >= 20, "the neighbours are held up")
    assert shard.statistics.parked == {strict: 20}
    assert shard.statistics.doubts == 0, "no transaction finds out"
    assert not shard.arrived(strict)
    alter(broker.bootstrap_servers, strict, {setting: USUAL[setting]})
    shard.turn_until(lambda: shard.statistics.delivered == 40, "they never come")
    arrived = [record for some in shard.arrived(strict).values() for record in some]
    assert sorted(int(record.value) for record in arrived) == list(range(1, 40, 2)), "exactly once"
    assert all(due_ms <= record.timestamp <= CLOCK.now_ms() for record in arrived)


def test_a_strict_target_with_the_brokers_timestamps_is_like_any_other(
    shard: ProxiedShard, broker: SharedBroker
) -> None:
    """The broker checks a record's time only where it keeps that."""
    strict = shard.topics.bills
    settings = {"message.timestamp.type": "LogAppendTime", BEFORE: "0", AFTER: "0"}
    alter(broker.bootstrap_servers, strict, settings)
    shard.start()
    shard.write([(strict, number % 3) for number in range(20)])
    shard.turn_until(lambda: shard.statistics.delivered == 20, "never come")
    assert not shard.statistics.parked


def test_a_target_with_slow_appends_gets_a_share(shard: ProxiedShard, broker: SharedBroker) -> None:
    """Each append waits for the disk: those beyond the share come back, all others leave."""
    orders, slow = shard.topics.orders, f"{shard.topics.bills}.slow"
    with closing(KafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)) as admin:
        config = {"flush.messages": "1"}
        admin.create_topics({slow: {"num_partitions": 12, "configs": config}})
    shard.start()
    counts = {slow: 12, orders: 4}
    shard.write([(t, number % count) for number in range(24) for t, count in counts.items()])
    shard.turn_until(lambda: shard.statistics.delivered >= 24, "the neighbours are held up")
    assert shard.statistics.parked == {slow: 8}, "the rows of four partitions"
    shard.turn_until(lambda: shard.statistics.delivered == 48, "they never come")
    values = sorted(number for some in shard.values(slow).values() for number in some)
    assert values == list(range(0, 48, 2)), "exactly once"


def test_a_message_that_compression_makes_too_large_aborts_no_transaction(
    shard: ProxiedShard, broker: SharedBroker
) -> None:
    """The broker compresses again, and random bytes become more by it."""
    small = f"{shard.topics.bills}.small"
    with closing(KafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)) as admin:
        config = {"max.message.bytes": "20000", "compression.type": "gzip"}
        admin.create_topics({small: {"num_partitions": 1, "configs": config}})

    def refused() -> int:
        return shard.statistics.dead_letters.get("record_too_large", 0)

    shard.start()
    sizes = range(19_400, 20_000, 10)
    for size in sizes:
        shard.write([(small, 0)], more=[("noise", random.Random(size).randbytes(size))])
    shard.turn_until(
        lambda: shard.statistics.delivered + refused() == len(sizes),
        "some never leave",
    )
    assert refused() > 10 and shard.statistics.delivered > 10
    assert shard.statistics.doubts == 0


def test_deliveries_come_in_the_codec_of_their_topic(
    shard: ProxiedShard, broker: SharedBroker
) -> None:
    """Kafka would compress any other batch again, at the level of the topic: a MiB of two symbols
    takes seconds, and all others wait.
    """
    orders = shard.topics.orders
    gzip = {"compression.type": "gzip", "compression.gzip.level": "9"}
    alter(broker.bootstrap_servers, orders, gzip)
    shard.start()
    two_symbols = "".join(random.Random(1).choices("01", k=300_000)).encode()
    shard.write([(orders, 0)] * 3, more=[("text", two_symbols)])
    shard.turn_until(lambda: shard.statistics.delivered == 3, "they do not leave")
    ours = _compressed(broker.data_dir, orders)
    assert {codec for codec, _ in ours} == {"gzip"}
    assert [body[_EXTRA_FLAGS] for _, body in ours] == [_FASTEST] * len(ours), "duewheel's bytes"
    arrived = shard.arrived(orders)[0]
    assert [dict(record.headers)["text"] for record in arrived] == [two_symbols] * 3


def test_the_codec_of_a_topic_counts_more_than_the_configured_one(
    tmp_path: Path, broker: SharedBroker
) -> None:
    with new_shard(tmp_path, broker, Compression("lz4")) as shard:
        orders, bills = shard.topics.orders, shard.topics.bills
        alter(broker.bootstrap_servers, orders, {"compression.type": "uncompressed"})
        shard.start()
        shard.write([(orders, 0), (bills, 0)])
        shard.turn_until(lambda: shard.statistics.delivered == 2, "they do not leave")
        assert not _compressed(broker.data_dir, orders, plain=1)
        assert [codec for codec, _ in _compressed(broker.data_dir, bills)] == ["lz4"]


def test_copies_come_in_the_codec_of_their_timer_topic_also_those_that_were_held(
    shard: ProxiedShard, broker: SharedBroker
) -> None:
    """The state topic holds the batch of a copy without its codec."""
    timers, bills = shard.topics.timers, shard.topics.bills
    servers, text = broker.bootstrap_servers, ("text", bytes(10_000))
    for number in range(2):
        shard.write([(bills, number)], home=number, more=[text])
    alter(servers, bills, {BEFORE: "0"})
    alter(servers, timers, {INDEX: "8", "compression.type": "gzip"})
    shard.start()
    shard.turn_until(lambda: shard.copies_held == 2, "no copies are held")
    alter(servers, timers, {INDEX: USUAL[INDEX]})
    shard.turn_until(lambda: shard.copies_held == 0, "the copies stay in the state topic")
    shard.turn_until(lambda: shard.statistics.parked[bills] >= 6, "none is written at once")
    alter(servers, bills, {BEFORE: USUAL[BEFORE]})
    shard.turn_until(lambda: shard.statistics.delivered == 2, "they never come")
    copies = _compressed(broker.data_dir, timers, plain=2)
    assert [(codec, body[_EXTRA_FLAGS]) for codec, body in copies] == [("gzip", _FASTEST)] * 6
    arrived = [record for some in shard.arrived(bills).values() for record in some]
    assert [dict(record.headers)["text"] for record in arrived] == [text[1]] * 2


def test_copies_that_were_held_one_by_one_move_in_one_batch(
    shard: ProxiedShard, broker: SharedBroker
) -> None:
    """Each batch is a request to Kafka, which the deliveries of all other teams wait for."""
    timers, bills, orders = shard.topics.timers, shard.topics.bills, shard.topics.orders
    alter(broker.bootstrap_servers, bills, {BEFORE: "0"})
    alter(broker.bootstrap_servers, timers, {INDEX: "8", "compression.type": "gzip"})
    shard.start()
    for count in range(1, 6):
        shard.write([(bills, 0)])
        shard.turn_until(partial(_has_held, shard, count), "no copies are held")
    alter(broker.bootstrap_servers, timers, {INDEX: USUAL[INDEX]})
    shard.turn_until(lambda: shard.copies_held == 0, "the copies stay in the state topic")
    batches = compressed_batches(broker.data_dir, timers)[0]
    ours = [memoryview(body) for _, body in batches if body[_EXTRA_FLAGS] == _FASTEST]
    rows = list(rows_of(memoryview(decompressed("gzip", ours[0])), 5))
    assert [delta for delta, *_ in rows] == list(range(5))
    shard.write([(orders, 0)])
    alter(broker.bootstrap_servers, bills, {BEFORE: USUAL[BEFORE]})
    shard.turn_until(lambda: shard.statistics.delivered == 6, "they never come")
    assert [len(shard.arrived(topic)[0]) for topic in (bills, orders)] == [5, 1]


def _has_held(shard: ProxiedShard, copies: int) -> bool:
    return shard.copies_held == copies


def _compressed(data_dir: Path, topic: str, plain: int = 0) -> list[tuple[Codec, bytes]]:
    """Codec and body of each compressed batch in a topic's files, beside so many others."""
    found, others = compressed_batches(data_dir, topic)
    assert others == plain, f"{topic} has more batches without a codec"
    return found


@pytest.mark.parametrize("codec", ["none", "gzip"])
def test_a_record_that_is_too_large_decompressed_aborts_no_transaction(
    tmp_path: Path, broker: SharedBroker, codec: Codec
) -> None:
    """Kafka checks its bytes if they come compressed."""
    sizes = range(5_500, 6_000, 10)

    def has_left(statistics: Statistics) -> bool:
        letters = sum(statistics.dead_letters.values())
        return statistics.delivered + letters == 2 * len(sizes)

    with new_shard(tmp_path, broker, Compression(codec)) as shard:
        orders, small = shard.topics.orders, f"{shard.topics.bills}.small"
        with closing(KafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)) as admin:
            config = {"max.decompressed.message.bytes": "6000"}
            admin.create_topics({small: {"num_partitions": 1, "configs": config}})
        shard.start()
        for size in sizes:
            shard.write([(small, 0), (orders, 0)], padding=size)
        shard.turn_until(lambda: has_left(shard.statistics), "some never leave")
        assert shard.statistics.doubts == 0
        assert len(shard.arrived(orders)[0]) == len(sizes)
        refused = shard.statistics.dead_letters.get("record_too_large", 0)
        assert (0 < refused < len(sizes)) if codec == "gzip" else not refused


@pytest.fixture
def two_teams(tmp_path: Path, broker: SharedBroker) -> Iterator[ProxiedShard]:
    with shard_of_two_teams(tmp_path, broker) as shard:
        yield shard


@pytest.mark.slow
def test_after_a_refusal_only_the_timer_topic_of_the_refused_timers_rests(
    two_teams: ProxiedShard, broker: SharedBroker
) -> None:
    """Its limit is lowered after the metadata was read: that aborts a transaction."""
    shard, other = two_teams, f"{two_teams.topics.timers}.other"
    orders, bills = shard.topics.orders, shard.topics.bills
    shard.start()
    shard.write([(orders, 0), (bills, 0)])
    shard.turn_until(lambda: shard.statistics.delivered == 2, "the first never come")
    alter(broker.bootstrap_servers, bills, {"max.message.bytes": "5000"})
    shard.write([(bills, 0)], timer_topic=other, padding=8_000)
    shard.turn_until(lambda: shard.statistics.doubts == 1, "nothing is refused")
    shard.write([(orders, 1)] * 5, after_ms=0, timer_topic=other)
    shard.write([(orders, 2)] * 5, after_ms=0)
    shard.turn_until(lambda: shard.statistics.parked == {orders: 5}, "they do not wait")
    shard.turn_until(lambda: shard.statistics.delivered == 7, "the neighbours are held up")
    assert sorted(shard.values(orders)[2]) == [0, 1, 2, 3, 4]
    assert shard.statistics.dead_letters == {"record_too_large": 1}
    shard.turn_until(lambda: shard.statistics.delivered == 12, "they never come")
    assert sorted(shard.values(orders)[1]) == [0, 1, 2, 3, 4], "exactly once"
    assert shard.statistics.doubts == 1


@pytest.mark.slow
@pytest.mark.parametrize("is_deleted", [True, False])
def test_a_timer_topic_rests_once_a_second_of_its_targets_fails(
    two_teams: ProxiedShard,
    broker: SharedBroker,
    monkeypatch: pytest.MonkeyPatch,
    is_deleted: bool,
) -> None:
    """Each has changed since it was looked up, so that a transaction finds out, and is aborted."""
    refusing, note = list[str](), TransactionalIds.note_refusing
    servers = broker.bootstrap_servers

    def noted(ids: TransactionalIds, topics: list[str]) -> None:
        refusing.extend(topics)
        note(ids, topics)

    monkeypatch.setattr(TransactionalIds, "note_refusing", noted)
    shard, other = two_teams, f"{two_teams.topics.timers}.other"
    orders, bills = shard.topics.orders, shard.topics.bills
    more = f"{bills}.more"
    with closing(KafkaAdminClient(bootstrap_servers=servers)) as admin:
        admin.create_topics({more: {"num_partitions": 1}}, wait_for_metadata=True)

        def fail(target: str) -> None:
            if is_deleted:
                admin.delete_topics([target])
            else:  # the time of a transaction's begin is never that of the append
                alter(servers, target, {AFTER: "0", BEFORE: "0"})
            shard.write([(target, 0)], after_ms=0, timer_topic=other)

        shard.start()
        shard.write([(orders, 0), (bills, 0)])
        shard.turn_until(lambda: shard.statistics.delivered == 2, "the first never come")
        fail(bills)
        shard.turn_until(lambda: shard.statistics.doubts == 1, "nothing is refused")
        shard.write([(orders, 1), (more, 0)], after_ms=0, timer_topic=other)
        shard.turn_until(lambda: shard.values(orders).keys() == {0, 1}, "it waits")
        assert shard.statistics.parked.get(orders, 0) == 0, "after a single one"
        fail(more)
        shard.turn_until(lambda: shard.statistics.doubts == 2, "nothing is refused")
    shard.await_rest(other)
    assert refusing == ([] if is_deleted else [bills, more]), "a marker may be refused, too"


def test_no_transaction_waits_for_the_partitions_of_a_new_target(
    shard: ProxiedShard, broker: SharedBroker
) -> None:
    """Their broker makes the logs one after the other, long after metadata has their leaders."""
    orders, new = shard.topics.orders, f"{shard.topics.bills}.new"
    shard.start()
    with closing(KafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)) as admin:
        admin.create_topics({new: {"num_partitions": 500}}, wait_for_metadata=True)
    shard.write([(new, number) for number in range(500)] + [(orders, 0)], after_ms=0)
    shard.turn_until(lambda: shard.statistics.delivered > 0, "the neighbour is held up")
    assert shard.statistics.parked.get(new), "some partitions have no log yet"
    shard.turn_until(lambda: shard.statistics.delivered == 501, "they never come")
    assert shard.values(new) == {number: [number] for number in range(500)}, "exactly once"
    assert shard.statistics.doubts == 0


def test_a_replay_to_a_strict_target_harms_no_other(config: Path) -> None:
    """Its dead letters stay, and are replayed once the setting is corrected."""
    with closing(SparklessShard(load(config), 1)) as shard:
        strict, other = (f"{shard.target}.{name}" for name in ("strict", "other"))
        for topic in (strict, other):
            request: list[Header] = [("REAL_TOPIC", topic.encode()), ("TIMER_DELAY_MS", b"0")]
            shard.send(shard.timers, 0, (None, b"1", request))
        until(shard, lambda: shard.left == 2)
        with shard.admin() as admin:
            admin.create_topic(strict, 1)
            admin.create_topic(other, 1)
        alter(shard.servers, strict, {BEFORE: "0"})
        assert shard.outcomes() == (1, {"target_unavailable": 1})
        assert [record.value for record in read_topic(shard.servers, other)] == [b"1"]
        alter(shard.servers, strict, {BEFORE: USUAL[BEFORE]})
        assert shard.outcomes() == (1, {})
        assert [record.value for record in read_topic(shard.servers, strict)] == [b"1"]


@pytest.mark.crash_matrix
def test_a_blocked_id_is_free_once_another_broker_coordinates_it(tmp_path: Path) -> None:
    """The remedy without a restart of any broker."""
    with Cluster(3, tmp_path) as brokers:
        admin = KafkaAdminClient(bootstrap_servers=brokers.bootstrap_servers)
        names = create_topics(admin)
        publisher = new_publisher(brokers, names, 0, ending_s=3.0)
        started(publisher)
        publish(publisher, [Message(names.target, b"1", partition=0)], progress(1))
        alter(brokers.bootstrap_servers, names.target, {"max.message.bytes": "70"})

        def publish_until_refused() -> None:
            while True:
                publish(publisher, [Message(names.target, b"2", partition=0)], progress(2))

        with pytest.raises(PublishDoubt):
            publish_until_refused()
        assert slot_of(publisher.start()) in {1, 2}
        assert publisher._session.producer.transactional_id == f"{names.state}-0~1"  # noqa: SLF001
        alter(brokers.bootstrap_servers, names.target, {"max.message.bytes": "1048588"})
        brokers.move_coordinator(f"{names.state}-0")
        publisher.close()
        publisher = new_publisher(brokers, names, 0)  # without the size that was read before
        started(publisher)
        publish(publisher, [Message(names.target, b"3", partition=1)], progress(3))
        assert slot_of(started(publisher)) == 3, "its markers are written, too"
        publisher.close()
        admin.close()
