"""A shard whose ingest is a Kafka consumer in the test; its dequeue may go through a proxy.

Without Spark, and in one process: a parked or rolled copy is taken again within milliseconds.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from tests.harness.fault_judge import GIVE_UP_S, FaultTopics
from tests.harness.kafka_shard import CLOCK, KafkaShard
from tests.harness.launcher import wait_until
from tests.harness.reader import consumer, poll, read_topic
from tests.harness.shared_broker import AnyBroker
from tests.harness.source_table import as_table, read_records
from tests.harness.timer_rows import suite_parameters

from duewheel.checkpoints.process_role import Role
from duewheel.kafka.log.compression import Compression
from duewheel.kafka.topics.admin import KafkaAdmin
from duewheel.kafka.transaction_limits import TransactionLimits
from duewheel.schemas.request.acceptance_rules import compile_suite, load_suite
from duewheel.schemas.request.parser import Contract, parse
from duewheel.wheel.admin import accept_loss as accepting
from duewheel.wheel.dequeue_config import DequeueConfig
from duewheel.wheel.policies.policy import Policy
from duewheel.wheel.recovery.survey import survey
from duewheel.wheel.slots import WheelConfig
from duewheel.wheel.storage.data_directory import DataDirectory

WHEEL = WheelConfig(precision_ms=50, slots=10_000, window_ms=400_000, margin_ms=100_000)
DUE_IN_MS = 1_000  # longer than writing and reading the timers takes
QUICKLY = TransactionLimits(quiet_s=0.5, unavailable_target_age_s=0.5)


class ProxiedShard(KafkaShard):
    """A shard whose ingest is a consumer here, and whose dequeue reaches the broker by a proxy."""

    def __init__(
        self,
        path: Path,
        broker: AnyBroker,
        servers: str,
        topics: FaultTopics,
        policies: Sequence[Policy] = (),
        wheel: WheelConfig = WHEEL,
        limits: TransactionLimits = QUICKLY,
        more_timers: Sequence[str] = (),
        compression: Compression | None = None,
    ) -> None:
        """
        Args:
            more_timers: timer topics beside the one of `topics`, with as many partitions.
        """
        self._config = DequeueConfig(0, 1, {}, policies=policies)
        super().__init__(path, servers, topics, wheel, self._config, limits, compression)
        self._servers = broker.bootstrap_servers
        self._timers = [topics.timers, *more_timers]
        self._homes = [TopicPartition(t, number) for t in self._timers for number in range(2)]
        self._wheel = wheel
        forbidden = [*self._timers, topics.dead_letters, topics.state]
        parameters = suite_parameters(max_delay_ms=3_600_000, forbidden_targets=forbidden)
        rules = compile_suite(load_suite(), parameters)
        self._contract = Contract((1_000,), {}, topics.dead_letters, rules)
        self._stack = ExitStack()
        self._reader: KafkaConsumer = self._stack.enter_context(consumer(self._servers))
        self._reader.assign(self._homes)
        self._reader.seek_to_beginning()

    def start(self) -> None:
        self.local.start_dequeue({(p.topic, p.partition): 0 for p in self._homes})
        self.local.start_ingest(self._topic_ids())

    def _topic_ids(self) -> dict[str, str]:
        with KafkaAdmin({"bootstrap_servers": self._servers}) as admin:
            return admin.topic_ids(self._timers)

    def make_timers_anew(self) -> None:
        """Delete the timer topic, and create another one of that name."""
        admin, timers = KafkaAdminClient(bootstrap_servers=self._servers), self.topics.timers
        before = self._topic_ids()
        admin.delete_topics([timers])
        wait_until(lambda: timers not in admin.list_topics(), "the topic is still there")
        configs = {"message.timestamp.type": "LogAppendTime", "retention.ms": "-1"}
        new = {timers: {"num_partitions": 2, "configs": configs}}
        admin.create_topics(new, wait_for_metadata=True)
        admin.close()
        assert self._topic_ids() != before

    def accept_loss(self) -> None:
        """`reconfigure --accept-loss`, then a start."""
        for role in Role:
            self.local.kill(role)
        places = [(p.topic, p.partition) for p in self._homes]
        starts, ids = dict.fromkeys(places, 0), self._topic_ids()
        found = self.publisher.start()
        now = accepting.KafkaTopics(ids, starts, self.publisher.log_ends(places))
        with closing(DataDirectory.start(self.local.path, self._wheel, Role.DEQUEUE)) as directory:
            local = survey(self.local.path, self._wheel)
            progress, told = accepting.losses(places, found, local, self._config, now)
            accepting.accept(directory, self.publisher, progress, told, ids)
        self._reader.seek_to_beginning()
        self.local.start_dequeue()
        self.local.start_ingest(ids)

    def restart_dequeue(self) -> None:
        """As after a kill -9."""
        self.local.kill(Role.DEQUEUE)
        self.local.start_dequeue()

    def stop(self) -> None:
        self._stack.close()
        super().stop()

    def write(
        self,
        timers: Sequence[tuple[str, int]],
        after_ms: int = DUE_IN_MS,
        keys: int | None = None,
        home: int = 0,
        padding: int = 0,
        more: Sequence[tuple[str, bytes]] = (),
        timer_topic: str = "",
    ) -> int:
        """Timers, numbered on, by target topic and partition, all due in one slot: when.

        Args:
            timers: where they go.
            after_ms: from now until they are due.
            keys: how many keys they share in turn; None: they have none.
            home: the timer partition that they are written to.
            padding: bytes of an own header of each.
            more: headers of each.
            timer_topic: the one of `topics` by default.
        """
        due_ms = (CLOCK.now_ms() + after_ms) // WHEEL.precision_ms * WHEEL.precision_ms
        producer = KafkaProducer(bootstrap_servers=self._servers)
        for number, (topic, partition) in enumerate(timers):
            headers = [
                ("TIMER_DELIVER_MS", b"%d" % due_ms),
                ("REAL_TOPIC", topic.encode()),
                ("REAL_QID", b"%d" % partition),
                ("own", b"%d" % number + bytes(padding)),
                *more,
            ]
            key = None if keys is None else b"%d" % (number % keys)
            producer.send(
                timer_topic or self.topics.timers,
                *(b"%d" % number, key, headers, home),
            )
        producer.close()
        return due_ms

    def turn(self) -> None:
        """Ingest takes what has come, dequeue delivers what is due."""
        found = poll(self._reader, 10)
        if found:
            marks = {(p.topic, p.partition): self._reader.position(p) for p in self._homes}
            batch = parse(read_records(as_table(found)), self._contract)
            self.engine.append(batch, {**self.engine.marks, **marks})
        while self.dequeue.tick():
            pass

    def has_read(self, count: int) -> bool:
        """Whether ingest has that many messages of the first timer partition."""
        return self.engine.marks.get((self.topics.timers, 0), 0) == count

    def turn_until(self, condition: Callable[[], bool], what: str) -> None:
        give_up = time.monotonic() + GIVE_UP_S
        while not condition():
            assert time.monotonic() < give_up, f"{what}: {self.statistics}"
            self.turn()

    def arrived(self, topic: str) -> dict[int, list[Any]]:
        """Committed records by partition, in their order."""
        found: dict[int, list[Any]] = {}
        for record in read_topic(self._servers, topic):
            found.setdefault(record.partition, []).append(record)
        return found

    def values(self, topic: str) -> dict[int, list[int]]:
        """What the records of each partition are numbered."""
        return {p: [int(r.value) for r in some] for p, some in self.arrived(topic).items()}

    def await_rest(self, timer_topic: str) -> None:
        """Waits until a timer topic rests: its timers for a sound target, of which two have come,
        are parked, those of other timer topics leave, and all arrive once.
        """
        orders = self.topics.orders
        self.write([(orders, 2)], after_ms=0, timer_topic=timer_topic)
        self.write([(orders, 3)], after_ms=0)
        self.turn_until(lambda: self.statistics.parked.get(orders, 0) > 0, "it does not wait")
        self.turn_until(lambda: self.values(orders).keys() == {0, 1, 2, 3}, "they never come")
        assert all(values == [values[0]] for values in self.values(orders).values()), "once"


@contextmanager
def shard_of_two_teams(path: Path, broker: AnyBroker) -> Iterator[ProxiedShard]:
    """A shard with the timer topics of two teams; the other one's name ends with `.other`."""
    topics = FaultTopics.named(f"teams-{uuid.uuid4().hex[:8]}")
    topics.create(broker.bootstrap_servers)
    other = f"{topics.timers}.other"
    with closing(KafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)) as admin:
        timers = {"num_partitions": 2, "configs": {"message.timestamp.type": "LogAppendTime"}}
        admin.create_topics({other: timers})
    shard = ProxiedShard(*(path, broker, broker.bootstrap_servers, topics), more_timers=[other])
    yield shard
    shard.stop()
