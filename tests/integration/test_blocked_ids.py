"""A record under the shard's producer id and a higher epoch closes its topic; the shard goes on.

Kafka takes such a record from whoever may write to the topic. Then the partition refuses the
shard's batch, and the marker that would end its transaction.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from kafka import KafkaAdminClient, KafkaProducer
from kafka.errors import MessageSizeTooLargeError
from tests.harness.kafka_shard import CLOCK
from tests.harness.launcher import wait_until
from tests.harness.proxied_shard import ProxiedShard, shard_of_two_teams
from tests.harness.publishing import (
    Message,
    create_topics,
    new_publisher,
    progress,
    publish,
    read,
    slot_of,
    started,
    values,
)
from tests.harness.raw_produce import produce, record
from tests.harness.shared_broker import SharedBroker
from tests.harness.topics import alter

from duewheel.deadline import Deadline
from duewheel.dev.broker import DevBroker
from duewheel.errors import Displaced, PublishDoubt
from duewheel.java.find import Java
from duewheel.kafka.ledger import producer_internals as internals
from duewheel.kafka.ledger.producer_internals import Outcome
from duewheel.kafka.publish import transactional_ids
from duewheel.kafka.publish.publisher import KafkaPublisher
from duewheel.kafka.targets import throttles
from duewheel.kafka.transaction_errors import PartitionRefusesId
from duewheel.kafka.transaction_limits import TransactionLimits
from duewheel.schemas.wire.record_batch import seal
from duewheel.schemas.wire.single_record import encode
from duewheel.wheel.publisher_protocol import publish_progress

pytestmark = pytest.mark.kafka
HIGHEST = 2**15 - 1


def forge(
    servers: str,
    transactional_id: str,
    topic: str,
    partition: int = 0,
    *,
    same_epoch: bool = False,
    count: int = 1,
) -> None:
    """Writes records under the producer id of this transactional id, with the highest epoch or its
    own, and sequence numbers from 0.
    """
    with closing(KafkaAdminClient(bootstrap_servers=servers)) as admin:
        known = admin.describe_transactions([transactional_id])[transactional_id]
    records = b"".join(encode(offset, None, b"forged") for offset in range(count))
    batch = seal(
        *(records, count),
        timestamp_ms=CLOCK.now_ms(),
        producer_id=known.producer_id,
        producer_epoch=known.producer_epoch if same_epoch else HIGHEST,
        base_sequence=0,
    )
    produce(servers, topic, bytes(batch), partition)


@pytest.fixture
def two_teams(
    tmp_path: Path, broker: SharedBroker, monkeypatch: pytest.MonkeyPatch
) -> Iterator[ProxiedShard]:
    """Each has a timer topic, whose rest lasts until timers come on a busy host."""
    monkeypatch.setattr(throttles, "_REFUSED_S", (15.0, 60.0))
    with shard_of_two_teams(tmp_path, broker) as shard:
        yield shard


@pytest.mark.slow
def test_a_forged_epoch_closes_its_topic_and_holds_up_nobody(
    two_teams: ProxiedShard, broker: SharedBroker
) -> None:
    """Also after a kill: the progress names the ids."""
    shard, other = two_teams, f"{two_teams.topics.timers}.other"
    orders, bills, first = shard.topics.orders, shard.topics.bills, f"{shard.topics.state}-0"
    shard.start()
    shard.write([(orders, 0)])
    shard.turn_until(lambda: shard.statistics.delivered == 1, "the first never comes")
    forge(broker.bootstrap_servers, first, bills, partition=1)
    shard.write([(bills, 1), (orders, 1)], timer_topic=other)
    shard.turn_until(lambda: shard.statistics.doubts == 1, "nothing is refused")
    assert shard.publisher._session.producer.transactional_id == f"{first}~1"  # noqa: SLF001
    shard.write([(orders, 2), (bills, 2)], after_ms=0)
    shard.turn_until(lambda: shard.statistics.delivered == 2, "the neighbour is held up")
    assert shard.values(orders) == {0: [0], 2: [0]}
    shard.turn_until(lambda: shard.statistics.delivered == 3, "the timer topic never goes on")
    assert shard.values(orders) == {0: [0], 1: [1], 2: [0]}
    assert shard.statistics.parked[orders] > 0, "the timer topic does not rest"

    shard.restart_dequeue()
    shard.write([(orders, 3)], after_ms=0)
    shard.turn_until(lambda: shard.statistics.delivered == 1, "held up after a start")
    assert shard.statistics.doubts == 0, "the closed topic is known"
    assert shard.publisher._session.producer.transactional_id == f"{first}~1"  # noqa: SLF001
    assert {p: [r.value for r in some] for p, some in shard.arrived(bills).items()} == {
        1: [b"forged"]
    }


@pytest.mark.slow
def test_a_forged_epoch_in_a_timer_topic_holds_up_its_copies_alone(
    two_teams: ProxiedShard, broker: SharedBroker
) -> None:
    """The first copy for that topic aborts a transaction. From then on copies for all its
    partitions are held in the state topic, so no other transaction is aborted, and the timer topic
    need not rest.
    """
    shard, other = two_teams, f"{two_teams.topics.timers}.other"
    orders, bills, first = shard.topics.orders, shard.topics.bills, f"{shard.topics.state}-0"
    alter(broker.bootstrap_servers, bills, {"message.timestamp.before.max.ms": "0"})  # parks
    shard.start()
    shard.write([(orders, 0)])
    shard.turn_until(lambda: shard.statistics.delivered == 1, "the first never comes")
    for number in (0, 1):
        forge(broker.bootstrap_servers, first, other, partition=number)
    shard.write([(bills, 1), (orders, 1)], timer_topic=other)
    shard.turn_until(lambda: shard.statistics.doubts == 1, "nothing is refused")
    assert shard.publisher._session.producer.transactional_id == f"{first}~1"  # noqa: SLF001
    shard.turn_until(lambda: shard.statistics.delivered == 2, "its timers are held up")
    shard.write([(bills, 2), (orders, 2)], after_ms=0, timer_topic=other, home=1)
    shard.write([(bills, 3), (orders, 3)], after_ms=0)
    shard.turn_until(lambda: shard.statistics.delivered == 4, "the neighbour is held up")
    assert shard.values(orders) == {0: [0], 1: [1], 2: [1], 3: [1]}
    shard.turn_until(lambda: shard.copies_held == 2, "the copies are lost")
    assert shard.statistics.doubts == 1, "of one topic one transaction"
    assert shard.statistics.parked.keys() == {bills}, "a timer topic rests"
    assert shard.statistics.dead_letters == {"rejected": 2}, "the forged records"

    shard.restart_dequeue()
    shard.write([(bills, 1), (orders, 1)], after_ms=0, timer_topic=other)
    shard.turn_until(lambda: shard.statistics.delivered == 1, "held up after a start")
    shard.turn_until(lambda: shard.copies_held == 3, "the copy is lost")
    assert shard.statistics.doubts == 0, "the closed topic is known"


@pytest.mark.slow
def test_a_timer_topic_rests_after_a_forged_sequence_number(
    two_teams: ProxiedShard, broker: SharedBroker
) -> None:
    """Each such partition aborts a transaction of all: the next of them may not at once."""
    shard, other = two_teams, f"{two_teams.topics.timers}.other"
    orders, bills, first = shard.topics.orders, shard.topics.bills, f"{shard.topics.state}-0"
    shard.start()
    shard.write([(orders, 0)])
    shard.turn_until(lambda: shard.statistics.delivered == 1, "the first never comes")
    forge(broker.bootstrap_servers, first, bills, partition=1, same_epoch=True, count=3)
    shard.write([(bills, 1)], timer_topic=other)
    shard.turn_until(lambda: shard.statistics.doubts == 1, "nothing is refused")
    shard.write([(orders, 1)], after_ms=0, timer_topic=other)
    shard.write([(orders, 2)], after_ms=0)
    shard.turn_until(lambda: shard.statistics.parked[orders] == 1, "it does not wait")
    shard.turn_until(lambda: shard.statistics.delivered == 4, "they never come")
    assert [shard.values(orders)[number] for number in (0, 1, 2)] == [[0], [0], [0]]
    assert [record.value for record in shard.arrived(bills)[1]] == [*[b"forged"] * 3, b"0"]
    assert shard.statistics.doubts == 1


@pytest.mark.slow
def test_a_timer_topic_takes_no_copies_after_a_forged_sequence_number_in_it(
    two_teams: ProxiedShard, broker: SharedBroker
) -> None:
    """In each of its partitions, after each start: of all of them one transaction is aborted. Its
    copies are held; its other timers, and those of the neighbour, leave.
    """
    shard, other = two_teams, f"{two_teams.topics.timers}.other"
    orders, bills, first = shard.topics.orders, shard.topics.bills, f"{shard.topics.state}-0"
    before = {"message.timestamp.before.max.ms": "0"}  # parks
    alter(broker.bootstrap_servers, bills, before)
    shard.start()
    shard.write([(orders, 0)])
    shard.turn_until(lambda: shard.statistics.delivered == 1, "the first never comes")

    def attack(home: int, held: int) -> None:
        for number in (0, 1):
            forge(*(broker.bootstrap_servers, first, other, number), same_epoch=True, count=3)
        delivered = shard.statistics.delivered
        shard.write([(bills, 0), (orders, 1)], after_ms=0, timer_topic=other, home=home)
        shard.write([(orders, 2)], after_ms=0)
        shard.turn_until(lambda: shard.copies_held == held, "no copy is held")
        shard.turn_until(lambda: shard.statistics.delivered == delivered + 2, "held up")
        assert shard.statistics.doubts == 1, "of one topic one transaction"

    attack(home=0, held=1)
    attack(home=1, held=2)
    assert shard.statistics.parked.keys() == {bills}, "its timers rest"

    alter(broker.bootstrap_servers, bills, {name: str(2**63 - 1) for name in before})
    shard.restart_dequeue()
    shard.turn_until(lambda: shard.statistics.delivered == 2, "the copies never come")
    assert shard.copies_held == 0
    assert shard.values(bills) == {0: [0, 0]}
    assert shard.statistics.doubts == 0


def test_a_record_with_the_next_sequence_number_hides_a_delivery(
    two_teams: ProxiedShard, broker: SharedBroker
) -> None:
    """A documented limit (docs/security.md): Kafka takes the delivery for a repetition, and
    confirms it. The record needs Write on the target.
    """
    shard, bills = two_teams, two_teams.topics.bills
    shard.start()
    shard.write([(shard.topics.orders, 0)])
    shard.turn_until(lambda: shard.statistics.delivered == 1, "the first never comes")
    first = f"{shard.topics.state}-0"
    forge(broker.bootstrap_servers, first, bills, partition=1, same_epoch=True)
    shard.write([(bills, 1)])
    shard.turn_until(lambda: shard.statistics.delivered == 2, "the second is refused")
    assert [record.value for record in shard.arrived(bills)[1]] == [b"forged"]


@pytest.mark.parametrize("quiet_s", [1.0, TransactionLimits().quiet_s])
def test_a_refusal_is_known_though_later_batches_have_no_result(
    broker: SharedBroker, quiet_s: float
) -> None:
    """kafka-python sends no further batch of a partition after a refusal, so the progress behind a
    moved copy never has a result. It has begun to abort the transaction, too, which is no reason to
    wait for the one before.
    """
    servers = broker.bootstrap_servers
    with closing(KafkaAdminClient(bootstrap_servers=servers)) as admin:
        names = create_topics(admin)
    one = new_publisher(broker, names, 0)
    one.start()
    publish(one, [Message(names.target, b"1", partition=0)], progress(1))
    forge(servers, f"{names.state}-0", names.target)
    session, outcomes = one._session, list[Outcome]()  # noqa: SLF001
    place, record = session.shard_progress.partition, session.record_of(progress(2))
    batches = [((names.target, 0), record), (place, record), (place, record)]
    with pytest.raises(PartitionRefusesId):
        session.producer.transact(batches, CLOCK.now_ms(), quiet_s, outcomes.extend)
    assert [each.failed_itself for each in outcomes] == [True, False, False]
    session.ids.note_refusing([names.target])
    assert slot_of(started(one)) == 1
    assert session.producer.transactional_id == f"{names.state}-0~1"
    one.close()


def test_a_marker_that_is_refused_behind_a_commit_closes_its_topic_soon(
    broker: SharedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The owner of a target may change its settings in any instant, and change them back: no batch
    is refused then, and no setting tells which topic it was.
    """
    servers = broker.bootstrap_servers
    with closing(KafkaAdminClient(bootstrap_servers=servers)) as admin:
        names = create_topics(admin)
        other = f"{names.target}.other"
        admin.create_topics({other: {"num_partitions": 1}})
    # None of these times is waited for: the test would fail by its own.
    patient = {"publish_deadline_s": 200.0, "ending_s": 200.0, "start_deadline_s": 400.0}
    one = new_publisher(broker, names, 0, None, transaction_timeout_ms=250_000, **patient)
    one.start()
    commit = internals.commit

    def refused(producer: KafkaProducer, deadline: Deadline) -> None:
        monkeypatch.setattr(internals, "commit", commit)
        alter(servers, other, {"max.message.bytes": "70"})  # too few for a marker
        wait_until(lambda: is_refused(servers, other), "the setting has no effect")
        commit(producer, deadline)
        time.sleep(0.5)  # the coordinator writes its markers
        alter(servers, other, {"max.message.bytes": "1048588"})

    monkeypatch.setattr(internals, "commit", refused)
    both = [Message(names.target, b"1", partition=0), Message(other, b"1", partition=0)]
    publish(one, both, progress(1))
    with pytest.raises(PublishDoubt, match="does not end"):
        publish(one, [Message(names.target, b"2", partition=0)], progress(2))
    assert slot_of(started(one)) == 1
    assert one._session.producer.transactional_id == f"{names.state}-0~1"  # noqa: SLF001
    both = [Message(names.target, b"2", partition=0), Message(other, b"2", partition=0)]
    publish(one, both, progress(2))
    assert values(read(broker, names.target)) == [b"1", b"2"], "it has its marker"
    one.close()


@pytest.mark.slow
def test_markers_that_kafka_writes_slowly_block_no_id(broker: SharedBroker) -> None:
    """The first entry of an index file takes some milliseconds on some file systems, and a marker
    writes one once its partition has 4 KiB more. Each marker waits for those before.
    """
    with closing(KafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)) as admin:
        names = create_topics(admin)
        many = [f"{names.target}.{number}" for number in range(10)]
        admin.create_topics({topic: {"num_partitions": 50} for topic in many})
        wait_until(
            lambda: all(len(each["partitions"]) == 50 for each in admin.describe_topics(many)),
            "the topics never come",
        )
    one = new_publisher(broker, names, 0)
    one.start()
    large = [Message(topic, bytes(5_000), partition=n) for topic in many for n in range(50)]
    publish(one, large, progress(1))
    while True:
        try:
            publish(one, [Message(names.target, b"small", partition=0)], progress(2))
            break
        except PublishDoubt:
            assert slot_of(started(one)) == 1
    assert one._session.producer.transactional_id == f"{names.state}-0"  # noqa: SLF001
    one.close()


def is_refused(servers: str, topic: str) -> bool:
    try:
        produce(servers, topic, record(None, b"a value of some bytes", at_ms=CLOCK.now_ms()))
    except MessageSizeTooLargeError:
        return True
    return False


@pytest.mark.crash_matrix
def test_the_ids_are_free_once_kafka_is_repaired(
    java: Java, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An owner under any of the ids is fenced then."""
    monkeypatch.setattr(transactional_ids, "_RECHECK_S", 0.0)
    with DevBroker(java=java) as broker:
        servers = broker.bootstrap_servers
        with closing(KafkaAdminClient(bootstrap_servers=servers)) as admin:
            names = create_topics(admin)
        first = f"{names.state}-0"
        one, two, three = (new_publisher(broker, names, 0, ending_s=2.0) for _ in range(3))
        one.start()
        publish(one, [Message(names.target, b"1", partition=0)], progress(1))
        alter(servers, names.target, {"max.message.bytes": "70"})  # too few for a marker
        with pytest.raises(PublishDoubt):
            publish_until_refused(one, names.target, 2)
        reached = slot_of(two.start())
        assert reached in {1, 2}
        assert two._session.producer.transactional_id == f"{first}~1"  # noqa: SLF001
        publish_progress(two, progress(3))

        alter(servers, names.target, {"max.message.bytes": "1048588"})
        broker.restart()  # it coordinates the transaction
        with pytest.raises(PublishDoubt):
            publish_until_refused(two, names.target, 4)  # the coordinator frees the id later
        assert slot_of(started(two)) in {3, 4}
        while True:
            try:
                publish(two, [Message(names.target, b"3", partition=1)], progress(5))
                break
            except PublishDoubt:  # the coordinator has freed another id since
                started(two)
        assert b"3" in values(read(broker, names.target))
        assert slot_of(started(three)) == 5
        with pytest.raises(Displaced):
            publish_progress(two, progress(6))
        for each in (one, two, three):
            each.close()


def publish_until_refused(publisher: KafkaPublisher, target: str, slot: int) -> None:
    while True:  # brokers follow a setting some time later
        publish(publisher, [Message(target, b"%d" % slot, partition=0)], progress(slot))
