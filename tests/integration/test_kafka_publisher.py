"""The Kafka publisher on a real broker, read back by an independent read_committed consumer."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from kafka import KafkaAdminClient, KafkaProducer
from kafka.admin import ConfigResource
from structlog.testing import capture_logs
from tests.harness.fault_proxy import ALWAYS, Action, Fault, FaultProxy
from tests.harness.launcher import wait_until
from tests.harness.log_files import compressed_batches
from tests.harness.publishing import (
    Headers,
    Message,
    Names,
    create_topics,
    deliveries,
    new_publisher,
    own_threads,
    progress,
    publish,
    publish_prepared,
    publish_rows,
    read,
    slot_of,
    started,
    values,
)
from tests.harness.shared_broker import SharedBroker

from duewheel.checkpoints.obstacles import Obstacles
from duewheel.checkpoints.progress import Progress, record_key
from duewheel.clock import SystemClock
from duewheel.deadline import Deadline
from duewheel.errors import ConfigError, KafkaUnavailable, PublishDoubt, TransactionTooSlow
from duewheel.kafka.connect.clients import KafkaClients
from duewheel.kafka.ledger import producer_internals, transactional_producer
from duewheel.kafka.log.compression import Compression
from duewheel.kafka.progress import newest
from duewheel.kafka.progress.newest import newest_record
from duewheel.kafka.progress.state_topic import state_partition
from duewheel.kafka.publish.fenced_session import ShardNames
from duewheel.kafka.publish.publisher import KafkaPublisher, PublisherHooks
from duewheel.kafka.targets.catalog import LOOKUPS_MAX
from duewheel.kafka.transaction_limits import TransactionLimits
from duewheel.schemas.wire.codec_names import CODECS, Codec
from duewheel.wheel.dequeue import encoder
from duewheel.wheel.publisher_protocol import publish_progress

pytestmark = pytest.mark.kafka

Make = Callable[..., KafkaPublisher]


@pytest.fixture
def admin(broker: SharedBroker) -> Iterator[KafkaAdminClient]:
    client = KafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)
    yield client
    client.close()


@pytest.fixture
def names(admin: KafkaAdminClient) -> Names:
    return create_topics(admin)


@pytest.fixture
def make(broker: SharedBroker, names: Names) -> Iterator[Make]:
    made: list[KafkaPublisher] = []

    def new(shard: int = 0, **limits: Any) -> KafkaPublisher:
        made.append(new_publisher(broker, names, shard, **limits))
        return made[-1]

    yield new
    for publisher in made:
        publisher.close()


def test_records_arrive_byte_for_byte(
    broker: SharedBroker, names: Names, make: Make, admin: KafkaAdminClient
) -> None:
    large = f"{names.target}.large"
    admin.create_topics(
        {large: {"num_partitions": 1, "configs": {"max.message.bytes": "2000000"}}},
        wait_for_metadata=True,
    )
    odd: Headers = [("a", b"1"), ("a", None), ("", b""), ("b", bytes(range(256))), ("a", b"1")]
    sent = [
        Message(names.target, b"v", key=None, partition=1),
        Message(names.target, None, partition=1),
        Message(names.target, None, key=None, headers=odd, partition=1),
        Message(names.target, b"", key=b"", headers=[("x", None)], partition=1),
        Message(names.target, bytes(range(256)) * 9, key=b"\xff\x00", partition=1),
        Message(large, bytes(900_000), headers=odd),
    ]
    publisher = make()
    assert publisher.start() is None
    publish(publisher, sent, progress(1))

    got = read(broker, names.target) + read(broker, large)
    assert [(r.key, r.value) for r in got] == [(m.key, m.value) for m in sent]
    assert {r.partition for r in got[:5]} == {1}
    added: Headers = [
        ("TIMER_SOURCE", b"orders.delayed-0@1"),
        ("TIMER_DUE_MS", b"1800000000000"),
        ("UNIQ_KEY", b"orders.delayed-0@1"),
    ]
    assert [r.headers for r in got] == [m.headers + added for m in sent]


@pytest.mark.parametrize("codec", CODECS)
def test_deliveries_are_compressed_as_configured_for_their_topic(
    broker: SharedBroker, names: Names, make: Make, codec: Codec
) -> None:
    """The broker reads every record of a compressed batch before it takes it."""
    sent = [Message(names.target, b"%09d" % i * 50, key=b"k") for i in range(1_000)]
    publisher = make(compression=Compression("none", {names.target: codec}))
    publisher.start()
    publish(publisher, [*sent, Message(f"{names.target}.gone", bytes(9_000))], progress(1))
    assert values(read(broker, names.target)) == [message.value for message in sent]
    assert values(read(broker, names.dead_letters)) == [bytes(9_000)]
    assert codecs_in_log(broker, names.target) == {codec}
    assert codecs_in_log(broker, names.dead_letters) == {"none"}


def codecs_in_log(broker: SharedBroker, topic: str) -> set[Codec]:
    """The codecs of the data batches on the broker's disk."""
    found, others = compressed_batches(broker.data_dir, topic)
    return {codec for codec, _ in found} | ({"none"} if others else set())


def test_order_within_partitions_and_choice_of_partition(
    broker: SharedBroker, names: Names, make: Make
) -> None:
    keys = [b"a", b"b", b"c", b"d", b"e", None]
    sent = [Message(names.target, b"%d" % i, key=keys[i % 6]) for i in range(3_000)]
    publisher = make(batch_bytes=4_096)
    publisher.start()
    publish(publisher, sent, progress(1))

    got = read(broker, names.target)
    assert sorted(int(r.value) for r in got) == list(range(3_000))
    for key in keys:
        of_key = [r for r in got if r.key == key]
        assert [int(r.value) for r in of_key] == sorted(int(r.value) for r in of_key)
        assert len({r.partition for r in of_key}) == 1
        if key is not None:
            assert of_key[0].partition == sum(key) % 4


def test_progress_is_read_back(
    broker: SharedBroker,
    names: Names,
    make: Make,
    admin: KafkaAdminClient,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client = KafkaClients({"bootstrap_servers": broker.bootstrap_servers})

    def in_short_steps(shard: int) -> int | None:
        place, key, deadline = state_partition(names.state, shard), record_key(shard), Deadline(30)
        with monkeypatch.context() as short:
            short.setattr(newest, "SEARCH_STEPS", (4, 40))
            found = newest_record(client, place, key, deadline)
        assert found is not None
        return slot_of(Progress.decode(found.value))

    mine, other = make(shard=0), make(shard=1)
    assert mine.start() is None
    publish_progress(mine, progress(1))
    assert slot_of(mine.start()) == 1

    assert other.start() is None, "another shard's progress is not taken for one's own"
    publish_progress(other, progress(7, shard=1))
    for slot in range(2, 22):
        publish_progress(mine, progress(slot))
    assert slot_of(mine.start()) == in_short_steps(0) == 21
    producer = KafkaProducer(bootstrap_servers=broker.bootstrap_servers)
    for _ in range(50):
        producer.send(names.state, key=b"clock", partition=1)
    producer.close()
    # Fifty offsets behind the end: both steps back miss it, the beginning is read.
    assert slot_of(other.start()) == in_short_steps(1) == 7


def test_progress_waits_for_an_open_transaction_in_its_partition(
    broker: SharedBroker, names: Names, make: Make
) -> None:
    mine = make(start_deadline_s=4.0)
    mine.start()
    other = KafkaProducer(
        bootstrap_servers=broker.bootstrap_servers, transactional_id=f"{names.state}-other"
    )
    other.init_transactions()
    other.begin_transaction()
    other.send(names.state, key=record_key(9), value=b"open", partition=0).get(timeout=30)
    publish_progress(mine, progress(5))

    with pytest.raises(KafkaUnavailable, match="held back by an open transaction"):
        mine.start()
    other.abort_transaction()
    other.close()
    assert slot_of(make().start()) == 5


def test_a_second_instance_fences_the_first(broker: SharedBroker, names: Names, make: Make) -> None:
    first, second = make(), make()
    first.start()
    publish(first, [Message(names.target, b"1")], progress(1))
    assert slot_of(second.start()) == 1

    with pytest.raises(PublishDoubt):
        publish(first, [Message(names.target, b"zombie")], progress(2))
    with pytest.raises(PublishDoubt, match="not started"):
        publish_progress(first, progress(3))
    publish(second, [Message(names.target, b"2")], progress(2))
    assert sorted(v for v in values(read(broker, names.target)) if v) == [b"1", b"2"]
    assert slot_of(second.start()) == 2


def test_what_cannot_be_published_becomes_a_dead_letter_in_the_same_transaction(
    broker: SharedBroker, names: Names, make: Make, admin: KafkaAdminClient
) -> None:
    compacted = f"{names.target}.compacted"
    roomy = f"{names.target}.roomy"
    admin.create_topics(
        {
            compacted: {"num_partitions": 1, "configs": {"cleanup.policy": "compact"}},
            roomy: {"num_partitions": 1, "configs": {"max.message.bytes": "1500000"}},
        },
        wait_for_metadata=True,
    )
    kept: Headers = [("trace", b"1"), ("trace", None)]
    sent = [
        Message(names.target, b"good 1", partition=0),
        Message("no.such.topic", b"lost?", headers=kept, source=b"s@1"),
        Message("not a topic name!", b"odd", source=b"s@2"),
        Message(names.target, b"where?", partition=4, source=b"s@3"),
        Message(compacted, b"keyless", key=None, source=b"s@4"),
        Message(names.target, bytes(1_048_500), source=b"s@5"),
        Message(roomy, bytes(1_600_000), headers=kept, source=b"s@6"),
        Message(names.dead_letters, b"was rejected", source=b"s@7", dead_letter=True),
        Message(compacted, b"keyed", partition=0),
        Message(names.target, b"good 2", partition=0),
    ]
    publisher = make()
    publisher.start()
    publish(publisher, sent, progress(1))

    assert values(read(broker, names.target)) == [b"good 1", b"good 2"]
    assert values(read(broker, compacted)) == [b"keyed"]
    letters = read(broker, names.dead_letters)
    assert [dict(r.headers)["TIMER_SOURCE"] for r in letters] == [b"s@%d" % i for i in range(1, 8)]
    codes = [dict(r.headers).get("TIMER_ERROR_CODE") for r in letters]
    assert codes == [
        b"unknown_target_topic",
        b"unknown_target_topic",
        b"bad_target_partition",
        b"key_required",
        b"record_too_large",
        b"record_too_large",
        None,
    ]
    assert letters[0].headers[:2] == kept
    assert b"no.such.topic" in dict(letters[0].headers)["TIMER_ERROR"]
    assert [r.value for r in letters[:4]] == [b"lost?", b"odd", b"where?", b"keyless"]
    assert [(r.key, r.value) for r in letters[4:6]] == [(None, None)] * 2, "too large even there"


def test_limits_that_change_after_they_were_looked_up(
    broker: SharedBroker, names: Names, make: Make, admin: KafkaAdminClient
) -> None:
    publisher = make()
    publisher.start()
    publish(publisher, [Message(names.target, b"1", partition=0)], progress(1))
    admin.alter_configs([_resource(names.target, {"max.message.bytes": "10000"})])

    values_sent = (b"2", bytes(20_000), b"3")
    bad = publisher.prepare(
        deliveries([Message(names.target, v, partition=0) for v in values_sent])
    )
    with pytest.raises(PublishDoubt, match="MessageSizeTooLarge"):
        publish_prepared(publisher, bad, progress(2))
    assert slot_of(publisher.start()) == 1
    aside = publish_prepared(publisher, bad, progress(2))
    assert aside.reasons == {"record_too_large": 1, "target_unavailable": 2}
    assert len(read(broker, names.dead_letters)) == 3, "their timer topic rests, and is missing"


def test_what_was_prepared_is_published_as_it_is(
    broker: SharedBroker, names: Names, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    publisher = make()
    rows = deliveries([Message(names.target, b"v", partition=2)])
    assert publisher.prepare(rows).encoded is None, "it asks nobody"
    publisher.start()
    publish_rows(publisher, rows, progress(1))
    prepared = publisher.prepare(rows)
    publisher.start()  # after a doubt; what it has to look up again says the same

    def encode_again(*_: object) -> None:
        raise AssertionError("it was encoded already")

    monkeypatch.setattr(encoder, "encode", encode_again)
    publish_prepared(publisher, prepared, progress(2))
    assert values(read(broker, names.target)) == [b"v", b"v"]


def test_targets_that_change_between_preparing_and_publishing(
    broker: SharedBroker, names: Names, make: Make, admin: KafkaAdminClient
) -> None:
    """One has grown, one has gone, one has come: what counts is what is there at publishing."""
    gone, come = f"{names.target}.gone", f"{names.target}.come"
    admin.create_topics({gone: {"num_partitions": 1}}, wait_for_metadata=True)
    publisher = make()
    publisher.start()
    messages = [
        Message(names.target, b"grown", partition=5),
        Message(gone, b"gone"),
        Message(come, b"come"),
    ]
    both = {"bad_target_partition": 1, "unknown_target_topic": 1}
    assert publish(publisher, messages, progress(1)).reasons == both
    prepared = publisher.prepare(deliveries(messages))
    assert prepared.encoded is not None
    assert prepared.encoded.aside.reasons == both

    admin.create_partitions({names.target: 6})
    admin.delete_topics([gone])
    admin.create_topics({come: {"num_partitions": 1}}, wait_for_metadata=True)
    wait_until(lambda: gone not in admin.list_topics(), "not deleted")
    wait_until(
        lambda: len(admin.describe_topics([names.target])[0]["partitions"]) == 6, "not grown"
    )
    publisher.start()  # it believes no older answer
    aside = publish_prepared(publisher, prepared, progress(2))
    assert values(read(broker, names.target)) == [b"grown"]
    assert values(read(broker, come)) == [b"come"]
    assert values(read(broker, names.dead_letters)) == [b"grown", b"come", b"gone"]
    assert aside.reasons == {"unknown_target_topic": 1}


@pytest.mark.parametrize("is_warm", [True, False])
def test_a_target_deleted_after_it_was_looked_up_costs_no_deadline(
    broker: SharedBroker, names: Names, make: Make, admin: KafkaAdminClient, is_warm: bool
) -> None:
    """Kafka adds no partition of it to a transaction; kafka-python would ask until the deadline."""
    gone, shrunk = f"{names.target}.gone", f"{names.target}.shrunk"
    sizes = {gone: {"num_partitions": 1}, shrunk: {"num_partitions": 2}}
    admin.create_topics(sizes, wait_for_metadata=True)
    publisher = make()
    publisher.start()
    rows = deliveries(
        [
            Message(names.target, b"other"),
            Message(gone, b"gone"),
            Message(shrunk, b"shrunk", partition=1),
        ]
    )
    homes = [*rows.source_partitions, ("others.delayed", 0)]  # the timer topic of the two rests
    rows = replace(rows, source_partitions=homes, source_partition=np.array([1, 0, 0], np.int32))
    prepared = publisher.renew(publisher.prepare(rows), progress(1))
    if is_warm:
        publisher.publish(publisher.compose(prepared, progress(1)))
    admin.delete_topics([gone, shrunk])
    wait_until(lambda: not {gone, shrunk} & set(admin.list_topics()), "not deleted")
    admin.create_topics({shrunk: {"num_partitions": 1}}, wait_for_metadata=True)
    missing = f"{gone}-0, {shrunk}-1" if is_warm else gone
    with pytest.raises(PublishDoubt, match=f"{missing}: not in Kafka") as doubt:
        publish_prepared(publisher, prepared, progress(2))
    assert type(doubt.value) is PublishDoubt, "a smaller transaction would fail, too"

    assert slot_of(publisher.start()) == (1 if is_warm else None)
    publish_prepared(publisher, prepared, progress(2))
    assert values(read(broker, names.target)) == [b"other"] * (1 + is_warm)
    assert values(read(broker, names.dead_letters)) == [b"gone", b"shrunk"]


def test_missing_topics_are_named_at_start(broker: SharedBroker, names: Names) -> None:
    before = own_threads()
    publisher = new_publisher(broker, replace(names, state="not.there"), shard=0)
    with pytest.raises(ConfigError, match=r"not\.there.*does not exist"):
        publisher.start()
    wait_until(lambda: own_threads() <= before, "threads are left")


def test_a_transaction_for_a_hundred_new_topics(
    broker: SharedBroker, names: Names, make: Make, admin: KafkaAdminClient
) -> None:
    topics = [f"{names.target}.{number:03d}" for number in range(LOOKUPS_MAX)]
    admin.create_topics({t: {"num_partitions": 1} for t in topics}, wait_for_metadata=True)
    publisher = make()
    publisher.start()
    # Rows for a partition without a log would be parked.
    places = [(topic, 0) for topic in topics]
    wait_until(lambda: len(publisher.log_ends(places)) == len(places), "no logs")
    # Asking for one after another takes more than 30 s, and as much again at each new attempt.
    publish(publisher, [Message(t, t.encode()) for t in topics], progress(1))
    assert slot_of(publisher.start()) == 1
    for topic in (topics[0], topics[-1]):
        assert values(read(broker, topic)) == [topic.encode()]


@pytest.mark.slow
def test_a_transaction_that_runs_out_of_time_says_so_and_the_next_has_no_more(
    broker: SharedBroker, names: Names, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until it ends, readers of the same partitions wait; brokers that are away cost it, too."""

    commit_all = transactional_producer.commit_all

    def slow(producer: Any, batches: list[Any], *given: Any, **named: Any) -> Any:
        time.sleep(0 if len(batches) == 1 else 3)
        return commit_all(producer, batches, *given, **named)

    monkeypatch.setattr(transactional_producer, "commit_all", slow)
    publisher = make(publish_deadline_s=2.0, transaction_timeout_ms=2_500)
    rows = publisher.prepare(deliveries([Message(names.target, b"large")]))
    started(publisher)
    # A row for a partition without a log would be parked, and the transaction in time.
    wait_until(lambda: bool(publisher.log_ends([(names.target, 0)])), "no log")
    for slot in range(1, 4):
        assert slot_of(started(publisher)) == (None if slot == 1 else slot - 1)
        # A batch may be acknowledged before the deadline is looked at: the commit is late then.
        with pytest.raises(TransactionTooSlow, match=r"no answer (to a batch )?within 2 s"):
            publish_prepared(publisher, rows, progress(slot))
        assert slot_of(started(publisher)) == (None if slot == 1 else slot - 1)
        publish_progress(publisher, progress(slot))
    assert values(read(broker, names.target)) == []


@pytest.mark.parametrize("code", [19, -1])  # tried again until `quiet_s`; fails by itself
def test_partitions_that_fail_together_are_logged_and_noted_once(
    names: Names, proxy: FaultProxy, code: int
) -> None:
    notes = list[Obstacles]()
    publisher = KafkaPublisher(
        {"bootstrap_servers": proxy.bootstrap_servers},
        ShardNames(f"{names.state}-0", names.state, names.dead_letters, 0),
        SystemClock(),
        limits=TransactionLimits(quiet_s=1.0),
        hooks=PublisherHooks(on_obstacles=notes.append),
    )
    every = range(4)
    with closing(publisher):
        publisher.start()
        places = [(names.target, partition) for partition in every]
        # A row for a partition without a log would be parked.
        wait_until(lambda: len(publisher.log_ends(places)) == len(places), "no logs")
        proxy.inject(Fault("Produce", Action.REFUSE, code, topic=names.target, times=ALWAYS))
        rows = [Message(names.target, b"x", partition=partition) for partition in every]
        with capture_logs() as lines, pytest.raises(PublishDoubt):
            publish(publisher, rows, progress(1))
    named = [line["partitions"] for line in lines if "takes no writes" in line["event"]]
    noted = [{*note.targets} for note in notes if note.targets]  # another: a new state topic
    assert (named, noted) == ([[*every]], [{names.target}])


def test_what_kafka_had_once_is_waited_for(
    names: Names, make: Make, admin: KafkaAdminClient
) -> None:
    publisher = make()
    publisher.start()
    admin.delete_topics([names.state])
    wait_until(lambda: names.state not in admin.list_topics(), "not deleted")
    with pytest.raises(KafkaUnavailable, match=r"state.*does not exist"):
        publisher.start()
    admin.create_topics({names.state: {"num_partitions": 1}}, wait_for_metadata=True)
    assert started(publisher) is None


def test_names_that_no_topic_can_have(broker: SharedBroker, names: Names, make: Make) -> None:
    odd = ["x" * 250, "y" * 40_000, "a/b", "", "..\n"]
    publisher = make()
    publisher.start()
    publish(publisher, [Message(name, b"v") for name in odd], progress(1))
    letters = read(broker, names.dead_letters)
    codes = [dict(letter.headers)["TIMER_ERROR_CODE"] for letter in letters]
    assert codes == [b"unknown_target_topic"] * len(odd)


def _resource(topic: str, configs: dict[str, str]) -> Any:
    return ConfigResource("TOPIC", topic, configs)


def test_a_look_does_not_wait_for_a_transaction_that_its_writer_left_open(
    names: Names, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed = make(0)
    killed.start()
    publish(killed, [], progress(7))

    def die(*_: object, **__: object) -> None:
        raise RuntimeError("killed before the commit")

    with monkeypatch.context() as patch:
        patch.setattr(producer_internals, "commit", die)
        with pytest.raises(PublishDoubt):
            publish(killed, [Message(names.target, b"never")], progress(8))
    successor = make(start_deadline_s=5.0)  # less than the transaction's time-out
    assert slot_of(successor.peek()) == 7
    assert slot_of(successor.start()) == 7
