"""Delivery with a broker that returns errors, drops connections, stalls or is down.

The real dequeue loop and the real publisher work through a proxy that spoils single requests
(fault_proxy.py). Afterwards an independent read_committed consumer counts, straight at the broker:
every timer is there once, in order, and the progress says so. Nobody helps.
"""

from __future__ import annotations

import itertools
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from kafka import KafkaProducer, TopicPartition
from kafka.errors import KafkaTimeoutError, RequestTimedOutError
from structlog.testing import capture_logs
from tests.harness.fault_judge import (
    GIVE_UP_S,
    PARTITIONS,
    FaultTopics,
    Judge,
    in_a_while,
)
from tests.harness.fault_proxy import ALWAYS, Action, Fault, FaultProxy
from tests.harness.kafka_shard import CLOCK, KafkaShard
from tests.harness.launcher import wait_until
from tests.harness.publishing import own_threads, where_they_are
from tests.harness.reader import consumer, read_committed
from tests.harness.shared_broker import SharedBroker

from duewheel.checkpoints.process_role import Role
from duewheel.deadline import Deadline
from duewheel.kafka.connect.clients import KafkaClients
from duewheel.kafka.ledger import producer_internals as internals
from duewheel.kafka.ledger.transactional_producer import (
    commit_all,
    open_producer,
)
from duewheel.kafka.transaction_limits import TransactionLimits
from duewheel.schemas.wire.single_record import single
from duewheel.wheel.dequeue_config import DequeueConfig
from duewheel.wheel.slots import WheelConfig

pytestmark = pytest.mark.kafka

WHEEL = WheelConfig(precision_ms=50, slots=10_000, window_ms=200_000, margin_ms=100_000)
# What is parked comes back through ingest, which is not here: test_parking.py. So nobody is found
# quiet, and no back-off lasts (`make`). Short ones, with a broker that does not answer:
# only what it does must be exact, not when.
SHORT = TransactionLimits(
    start_deadline_s=2, publish_deadline_s=1, transaction_timeout_ms=1_500, quiet_s=GIVE_UP_S
)

Make = Callable[..., "JudgedShard"]


class JudgedShard(KafkaShard):
    """A shard without Spark whose dequeue reaches the broker through the proxy only."""

    def __init__(
        self,
        path: Path,
        broker: SharedBroker,
        servers: str,
        topics: FaultTopics,
        limits: TransactionLimits,
    ) -> None:
        shard = next(_numbers)  # each a shard of its own in the same state topic
        # Several transactions for what `deliver` puts in.
        config = DequeueConfig(shard, 1_000, {}, chunk_records=40)
        super().__init__(path, servers, topics, WHEEL, config, limits)
        self._judge = Judge(broker.bootstrap_servers, topics, shard, CLOCK)
        self._starts = {(topics.timers, partition): 0 for partition in range(PARTITIONS)}

    def start(self) -> None:
        self.local.start_dequeue(self._starts)
        self.local.start_ingest()

    def deliver_over(self, fault: Fault) -> None:
        """Deliver, and more while the fault has not hit as often as it is to."""
        self.deliver()
        while fault.hits < fault.times:
            self.deliver()

    def deliver(self) -> None:
        """Have more timers delivered, in several transactions."""
        last = self._judge.append(self.engine, WHEEL.precision_ms)
        give_up = time.monotonic() + GIVE_UP_S
        while self.dequeue.delivered_slot < last:
            assert time.monotonic() < give_up, "not delivered in time"
            if not self.dequeue.tick():
                CLOCK.sleep(0.01)

    def judge(self) -> None:
        self._judge.judge(self.local.directory(Role.DEQUEUE))


_numbers = itertools.count()


def await_answer(late: Fault) -> None:
    wait_until(lambda: late.done == 1, f"no answer to {late}")


@pytest.fixture(scope="module")
def topics(broker: SharedBroker) -> FaultTopics:
    topics = FaultTopics.named(f"faults-{uuid.uuid4().hex[:8]}")
    topics.create(broker.bootstrap_servers)
    return topics


@pytest.fixture
def make(
    tmp_path: Path, broker: SharedBroker, proxy: FaultProxy, topics: FaultTopics
) -> Iterator[Callable[..., JudgedShard]]:
    made: list[JudgedShard] = []

    def new(limits: TransactionLimits | None = None) -> JudgedShard:
        # A batch may be refused for good just before its transaction is given up: that parks none.
        limits = replace(limits or TransactionLimits(quiet_s=GIVE_UP_S), backoff_s=(0.0, 0.0))
        made.append(JudgedShard(tmp_path, broker, proxy.bootstrap_servers, topics, limits))
        return made[-1]

    yield new
    for shard in made:
        shard.stop()


# Over before they cost a transaction: kafka-python tries again by itself.
RETRIED = {
    "EndTxn": [
        Fault("EndTxn", Action.CUT),
        Fault("EndTxn", Action.CUT_DONE),
        *(Fault("EndTxn", Action.REFUSE, code, times=3) for code in (14, 15, 16, 51)),
        *(Fault("EndTxn", Action.MISREPORT, code) for code in (7, 16, 51)),
    ],
    "Produce": [
        Fault("Produce", Action.CUT),
        Fault("Produce", Action.CUT_DONE),
        *(Fault("Produce", Action.REFUSE, code, times=2) for code in (3, 5, 6, 7, 9, 13, 19, 56)),
        *(Fault("Produce", Action.MISREPORT, code) for code in (6, 7, 20, 46)),
    ],
    "AddPartitionsToTxn": [
        Fault("AddPartitionsToTxn", Action.CUT),
        Fault("AddPartitionsToTxn", Action.CUT_DONE),
        *(Fault("AddPartitionsToTxn", Action.REFUSE, n, times=2) for n in (3, 14, 15, 16, 51)),
        Fault("AddPartitionsToTxn", Action.MISREPORT, 51),
    ],
}

# Each ends the producer: a new one ends the transaction, and the progress tells what became of it.
# Behind 47 and 90 the loop waits for the claim of another instance, longer each time.
DOUBTED = {
    "EndTxn": [
        *(Fault("EndTxn", Action.REFUSE, code) for code in (-1, 47, 48, 90)),
        *(Fault("EndTxn", Action.MISREPORT, code) for code in (47, 90)),
    ],
    "Produce": [
        *(Fault("Produce", Action.REFUSE, code) for code in (2, 45, 47, 59, 90)),
        *(Fault("Produce", Action.MISREPORT, code) for code in (45, 59)),
    ],
    "AddPartitionsToTxn": [
        *(Fault("AddPartitionsToTxn", Action.REFUSE, code) for code in (29, 47, 55, 90)),
        Fault("AddPartitionsToTxn", Action.MISREPORT, 90),
    ],
}

# Met by a new producer, one after the other or each by one of its own.
STARTING = [
    [Fault("InitProducerId", Action.REFUSE, code) for code in (14, 15, 16, 51)],
    [Fault("InitProducerId", Action.REFUSE, 47), Fault("InitProducerId", Action.REFUSE, 90)],
    [Fault("InitProducerId", Action.REFUSE, 53)],
    [Fault("InitProducerId", Action.CUT), Fault("InitProducerId", Action.CUT_DONE)],
    [Fault("InitProducerId", Action.MISREPORT, 90), Fault("Metadata", Action.CUT)],
    [Fault("FindCoordinator", Action.CUT), Fault("FindCoordinator", Action.CUT_DONE)],
]


@pytest.mark.parametrize("api", RETRIED)
def test_what_the_client_tries_again_costs_no_transaction(
    make: Make, proxy: FaultProxy, api: str
) -> None:
    shard = make()
    shard.start()
    for fault in RETRIED[api]:
        placed = proxy.inject(fault)
        shard.deliver_over(placed)
        assert (shard.statistics.doubts, placed.hits) == (0, fault.times), fault
    shard.judge()


@pytest.mark.parametrize("code", [3, 14, 51])
def test_a_coordinator_that_refuses_partitions_for_a_while_costs_no_transaction(
    make: Make, proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """Also one that does not know them yet, unlike the metadata: then they were not deleted."""
    monkeypatch.setattr(internals, "_MISSING_AFTER_S", 0.02)
    shard = make()
    shard.start()
    shard.deliver_over(proxy.inject(Fault("AddPartitionsToTxn", Action.REFUSE, code, times=50)))
    assert shard.statistics.doubts == 0
    shard.judge()


@pytest.mark.slow
@pytest.mark.parametrize("api", DOUBTED)
def test_what_is_in_doubt_is_settled_by_the_progress(
    make: Make, proxy: FaultProxy, api: str
) -> None:
    shard = make()
    shard.start()
    for number, fault in enumerate(DOUBTED[api]):
        placed = proxy.inject(fault)
        shard.deliver_over(placed)
        assert (shard.statistics.doubts, placed.hits) == (number + 1, 1), fault
    shard.judge()


def test_a_start_that_goes_wrong_is_tried_again(make: Make, proxy: FaultProxy) -> None:
    shard = make()
    shard.start()
    for faults in STARTING:
        placed, before = [proxy.inject(fault) for fault in faults], shard.statistics.doubts
        shard.deliver_over(proxy.inject(Fault("EndTxn", Action.REFUSE, 48)))
        assert {fault.hits for fault in placed} == {1}, faults
        # A cut may come to the reader of the log ends, whose answer a transaction needs.
        may_be_read = any(fault.api == "Metadata" for fault in faults)
        assert 1 <= shard.statistics.doubts - before <= 1 + may_be_read, faults
    shard.judge()


def test_a_refused_progress_record_keeps_its_messages_back(
    make: Make, proxy: FaultProxy, topics: FaultTopics
) -> None:
    shard = make()
    shard.start()
    shard.deliver_over(
        proxy.inject(Fault("Produce", Action.REFUSE, 10, topic=topics.state, times=2))
    )
    assert shard.statistics.doubts == 2
    shard.judge()


def test_wherever_a_connection_is_cut(make: Make, proxy: FaultProxy) -> None:
    """In a transaction, while another producer is made, and in the first one of that."""
    shard = make()
    shard.start()
    for skip in range(1, 30, 4):
        proxy.inject(Fault("EndTxn", Action.REFUSE, 48))
        cut = Action.CUT if skip % 8 == 1 else Action.CUT_DONE
        shard.deliver_over(proxy.inject(Fault("", cut, skip=skip)))
    shard.judge()


def test_a_slow_broker_costs_no_transaction(make: Make, proxy: FaultProxy) -> None:
    shard = make()
    shard.start()
    apis = ("AddPartitionsToTxn", "Produce", "EndTxn")
    slow = [proxy.inject(Fault(api, Action.HOLD_ANSWER, seconds=0.7)) for api in apis]
    shard.deliver()
    assert (shard.statistics.doubts, [fault.hits for fault in slow]) == (0, [1, 1, 1])
    shard.judge()


def test_a_request_that_comes_late_changes_nothing(make: Make, proxy: FaultProxy) -> None:
    """It arrives when its producer has long been replaced, and others have gone on."""
    shard = make(SHORT)
    shard.start()
    for api in ("InitProducerId", "Produce", "EndTxn"):
        before = shard.statistics.doubts
        if api == "InitProducerId":
            proxy.inject(Fault("EndTxn", Action.REFUSE, 48))
        late = proxy.inject(Fault(api, Action.HOLD, seconds=GIVE_UP_S))
        shard.deliver_over(late)
        assert (shard.statistics.doubts > before, late.done) == (True, 0), api
        proxy.clear()
        await_answer(late)
        shard.deliver()
    shard.judge()


def test_a_commit_whose_answer_is_not_awaited_is_found_done(make: Make, proxy: FaultProxy) -> None:
    shard = make(SHORT)
    shard.start()
    proxy.inject(Fault("EndTxn", Action.HOLD_ANSWER, seconds=GIVE_UP_S))
    shard.deliver()
    assert shard.statistics.doubts >= 1
    shard.judge()


def test_a_failure_before_anything_is_written_is_no_doubt(
    make: Make, proxy: FaultProxy, topics: FaultTopics
) -> None:
    shard = make(SHORT)
    shard.start()
    late = proxy.inject(Fault("Metadata", Action.HOLD, topic=topics.orders, seconds=GIVE_UP_S))
    with capture_logs() as logs:
        shard.deliver_over(late)
    events = [each["event"] for each in logs]
    assert (events.count("transaction not begun"), events.count("publish in doubt")) == (1, 0)
    assert shard.statistics.doubts == 0
    shard.judge()


def test_a_partition_without_success_takes_the_others_with_it(
    make: Make, proxy: FaultProxy, topics: FaultTopics
) -> None:
    """As long as it is not known for sure that only this one has none: see test_parking.py."""
    shard = make(SHORT)
    shard.start()
    placed = proxy.inject(Fault("Produce", Action.REFUSE, 7, topic=topics.bills, times=ALWAYS))
    with in_a_while(2, proxy.clear):
        shard.deliver()
    assert placed.hits > 10
    assert shard.statistics.doubts >= 1
    shard.judge()


def test_nothing_is_committed_once_a_batch_has_expired(
    broker: SharedBroker, proxy: FaultProxy, topics: FaultTopics
) -> None:
    """kafka-python would commit the other batch: to it an expired one is over and done with."""
    proxy.inject(Fault("Produce", Action.REFUSE, 7, topic=topics.bills, times=ALWAYS))
    settings, deadline = (
        KafkaClients({"bootstrap_servers": proxy.bootstrap_servers}),
        Deadline(60),
    )
    places = [TopicPartition(topic, 0) for topic in (topics.orders, topics.bills)]
    batches = [(place, single(b"key", b"half of a transaction")) for place in places]

    def owner() -> KafkaProducer:
        limits = TransactionLimits(publish_deadline_s=1, transaction_timeout_ms=60_000)
        return open_producer(settings, topics.state, limits, deadline)

    with consumer(broker.bootstrap_servers) as stranger:
        starts = stranger.end_offsets(places)
    producer = owner()
    try:
        for topic in topics.targets:
            producer.partitions_for(topic)  # a batch for a topic without metadata is never sent
        outcomes = commit_all(producer, batches, CLOCK.now_ms(), deadline)
    finally:  # or its threads would fail the tests that count them, and its transaction the others
        internals.stop(producer, 5)
        internals.stop(owner(), 5)  # it ends the transaction
    assert outcomes[0].error is None
    # Of a batch that expires just when it is refused again, the refusal is the error.
    assert isinstance(outcomes[1].error, (KafkaTimeoutError, RequestTimedOutError))
    assert read_committed(broker.bootstrap_servers, starts) == []


def silent(proxy: FaultProxy) -> Callable[[], None]:
    """Every connection is half open, from within a transaction on."""
    proxy.inject(Fault("", Action.SWALLOW, skip=5, times=ALWAYS))
    return proxy.clear


def stalled(proxy: FaultProxy) -> Callable[[], None]:
    """From within a transaction on, whatever is asked for comes to the broker when all is over."""
    proxy.inject(Fault("", Action.HOLD, seconds=GIVE_UP_S, skip=5, times=ALWAYS))
    return proxy.clear


def gone(proxy: FaultProxy) -> Callable[[], None]:
    proxy.away()
    return proxy.back


@pytest.mark.slow
@pytest.mark.parametrize("trouble", [silent, stalled, gone])
def test_delivery_goes_on_once_the_broker_is_back(
    make: Make, proxy: FaultProxy, trouble: Callable[[FaultProxy], Callable[[], None]]
) -> None:
    """It is away for longer than a transaction may last: it has ended the open one itself."""
    before = own_threads()
    shard = make(SHORT)
    shard.start()
    shard.deliver()  # from here on the metadata is known: the next request is of a transaction
    with in_a_while(3, trouble(proxy)):
        shard.deliver()
    assert shard.statistics.doubts >= 1
    shard.judge()
    shard.stop()
    wait_until(lambda: own_threads() <= before, lambda: where_they_are(own_threads() - before))


def test_the_progress_is_never_a_group_offset(make: Make, proxy: FaultProxy) -> None:
    """Kafka forgets those after a week without a consumer."""
    shard = make()
    shard.start()
    shard.deliver()
    assert proxy.seen["EndTxn"] >= 1
    assert proxy.seen["TxnOffsetCommit"] == 0
    shard.judge()
