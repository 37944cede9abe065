"""Retries as a source of timers: the real RetryLater in a consumer of the simulation's targets.

The consumer handles each message in a transaction (`RetryLater.in_transactions`); its handler fails
as the seed says, and sends an output whose future it does not read. The producer is Kafka's, but
for its sockets: it writes the retry into the simulated timer topic, and ends its transactions with
all fates. A record may expire: its future fails, the transaction does not. Whatever fails, the
consumer begins again at the committed offset. Judged, for each message:

    its attempts are counted 1, 2, …, and each is handled once
    the wait of each is within the policy's bounds, and ends before the deadline, which is that of
    the first failure
    it ends once: handled, with its one output, or in the dead-letter topic with the reason that
    holds

That no retry comes early, and each as it was written, is the shards' own judgement (history.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from random import Random
from typing import Any, ClassVar, NamedTuple

from kafka.errors import KafkaError, KafkaTimeoutError
from kafka.producer.future import FutureProduceResult, FutureRecordMetadata
from kafka.structs import TopicPartition
from tests.simulation.clients import CONSUMER, Header, TransactionalClient, partition_of
from tests.simulation.contract_check import decoded
from tests.simulation.host import Host
from tests.simulation.timers import TARGET_PARTITIONS, TARGETS, TOPIC, Timer

from duewheel.client import RetryLater, RetryPolicy
from duewheel.schemas.batches import NO_PARTITION
from duewheel.schemas.header_names import (
    RETRY_ATTEMPT,
    RETRY_DEADLINE_MS,
    RETRY_HISTORY,
    RETRY_REASON,
)

DEAD_LETTERS, OUTPUTS = "failed", "outputs"
_MESSAGES_MAX = 8
_FATES = ("lost", "doubt", "die before", "die open", "die after")


class Message(NamedTuple):
    """A record of a target topic, as a consumer has it."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[Header]


class HandlerError(Exception):
    """What the handler fails with."""


class Ended(BaseException):
    """The consumer's process has ended here."""


@dataclass
class Chain:
    """What has become of a message, by committed transactions.

    Attributes:
        fails: so many attempts fail.
        attempts: those that were handled, in their order.
        deadline_ms: which the first failure has fixed; None: there is none.
        end: "handled", or the reason of its dead letter; "": it goes on.
    """

    fails: int
    attempts: list[int] = field(default_factory=list)
    deadline_ms: int | None = None
    end: str = ""


@dataclass
class Written:
    """What one transaction of the consumer has written."""

    retries: list[Timer] = field(default_factory=list)
    letters: list[Sequence[Header]] = field(default_factory=list)
    outputs: list[bytes | None] = field(default_factory=list)
    offset: int | None = None
    now_ms: int = 0


class ConsumerGroup:
    """Of the consumer: what RetryLater asks it for."""

    config: ClassVar = {"enable_auto_commit": False, "isolation_level": "read_committed"}

    def group_metadata(self) -> str:
        return "group"

    def subscription(self) -> None:
        pass


class SimulatedProducer:
    """A transactional KafkaProducer's promises."""

    config: ClassVar = {
        "transactional_id": "consumer",
        "key_serializer": None,
        "value_serializer": None,
    }

    def __init__(self, retries: Retries) -> None:
        self._retries = retries
        self._epoch = retries.client.fence()

    def begin_transaction(self) -> None:
        self._require_epoch()
        self._retries.client.begin()
        self._retries.written = Written(now_ms=self._retries.now_ms)

    def send(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None = None,
        headers: Sequence[Header] = (),
    ) -> FutureRecordMetadata:
        self._require_epoch()
        sent = FutureProduceResult(TopicPartition(topic, 0))
        future = FutureRecordMetadata(sent, 0, 0, None, -1, -1, -1)
        if self._retries.expires():
            sent.failure(KafkaTimeoutError("expired"))
            return future
        written = self._retries.written
        if topic == TOPIC:
            written.retries.append(self._retries.write(key, value, headers))
        elif topic == OUTPUTS:
            written.outputs.append(value)
        else:
            assert topic == DEAD_LETTERS, topic
            written.letters.append(headers)
        sent.success((0, 0, None))
        return future

    def flush(self) -> None:
        """Nothing waits: each record has its result at once."""

    def send_offsets_to_transaction(self, offsets: Any, _group: Any) -> None:
        self._require_epoch()
        ((_, committed),) = offsets.items()
        self._retries.written.offset = committed.offset

    def abort_transaction(self) -> None:
        self._require_epoch()
        self._retries.client.finish(commit=False)

    def commit_transaction(self) -> None:
        self._require_epoch()
        self._retries.commit()

    def _require_epoch(self) -> None:
        if self._epoch != self._retries.client.epoch:
            raise KafkaError("fenced")


class Retries:
    """The messages of one run, and the consumer of them.

    Attributes:
        written: by the open transaction.
    """

    def __init__(self, seed: int, host: Host) -> None:
        self._chance = Random(f"retries {seed}")
        self._expiry = Random(f"expiry {seed}")
        self._kafka, self._clock, self._history = host.kafka, host.clock, host.history
        self.client = TransactionalClient(host.kafka, CONSUMER)
        self.written = Written()
        self.calm = False
        self.wrong: list[str] = []
        self._topic = self._chance.choice(TARGETS[:2])
        self._log: list[Message] = []
        self._committed = 0  # offset of the group
        self._chains: dict[bytes, Chain] = {}
        self._sources: set[bytes] = set()  # of retries that are in the timer topic
        precision = timedelta(milliseconds=host.setup.wheel.precision_ms)
        self._policy = RetryPolicy(
            attempts=self._chance.randint(1, 4),
            first=precision * self._chance.choice((1, 2)),
            longest=precision * self._chance.choice((2, 6)),
            deadline=self._chance.choice((None, precision, precision * 3)),  # within few waits
        )
        self._producer: SimulatedProducer | None = None
        self._handle: Callable[[Message], object] | None = None
        host.history.listeners.append(self._delivered)

    @property
    def now_ms(self) -> int:
        """By the clock of the consumer's host."""
        return self._clock.now_ms()

    # ---- between two steps of the shards -----------------------------------------------------

    def befall(self) -> None:
        """New messages come; the consumer handles some, is killed, or its transaction times out."""
        if len(self._chains) < _MESSAGES_MAX and self._happens(0.3):
            self._produce()
        if self._happens(0.03):
            self._handle = None  # killed between two messages
        if self._chance.random() < 0.7:
            self.turn()

    def turn(self) -> None:
        """The consumer handles some messages, if there are any."""
        if self.client.end_forgotten():
            self._history.counts["retries: timed out"] += 1
        for _ in range(3):
            if self._committed == len(self._log):
                return
            try:
                if self._handle is None:
                    self._handle = self._process()
                self._handle(self._log[self._committed])
            except (KafkaError, Ended):
                self._handle = None

    def quiet_down(self) -> None:
        """No more befalls them."""
        self.calm = True

    @property
    def is_idle(self) -> bool:
        """Whether each message has ended."""
        return all(chain.end for chain in self._chains.values()) and not self.client.is_open

    def _happens(self, probability: float) -> bool:
        return not self.calm and self._chance.random() < probability

    def _produce(self) -> None:
        value = b"message %d" % len(self._chains)
        self._chains[value] = Chain(self._chance.choice((0, 1, 2, 3, 9)))
        key = self._chance.choice((None, b"key", value))
        number = self._chance.randrange(TARGET_PARTITIONS)
        self._append(number, key, value, [("own", b"1"), ("own", b"\xff")])

    def _append(
        self, number: int, key: bytes | None, value: bytes | None, headers: Sequence[Header]
    ) -> None:
        self._log.append(Message(self._topic, number, len(self._log), key, value, headers))

    # ---- the consumer's process --------------------------------------------------------------

    def _process(self) -> Callable[[Message], object]:
        self._producer = SimulatedProducer(self)
        retry_later = RetryLater(
            self._producer,
            TOPIC,
            dead_letter_topic=DEAD_LETTERS,
            policy=self._policy,
            chance=self._chance,
            clock=self._clock,
        )
        return retry_later.in_transactions(ConsumerGroup())(self._handler)

    def _handler(self, message: Message) -> None:
        assert message.value is not None
        assert self._producer is not None
        self._producer.send(OUTPUTS, message.value)
        chain = self._chains[message.value]
        if len(chain.attempts) < chain.fails:
            raise HandlerError("password=secret, as often as the seed says")

    def expires(self) -> bool:
        """Whether Kafka never acknowledges what is sent now."""
        if self.calm or self._expiry.random() >= 0.25:
            return False
        self._history.counts["retries: expired"] += 1
        return True

    def write(self, key: bytes | None, value: bytes | None, headers: Sequence[Header]) -> Timer:
        """A retry, in the open transaction."""
        count = len(self._kafka.partitions)
        number = self._chance.randrange(count) if key is None else partition_of(key, count)
        return self.client.write(number, key, value, headers)

    def commit(self) -> None:
        """The open transaction ends."""
        fate = self._chance.choice(_FATES) if self._happens(0.25) else "commit"
        self._history.counts[f"retries: {fate}"] += 1
        if fate == "die before":
            self.client.finish(commit=False)
            raise Ended
        if fate == "die open":
            raise Ended  # the next process ends it, or the time-out
        self.client.finish(commit=fate != "lost")
        if fate != "lost":
            self._take(self.written)
        if fate == "die after":
            raise Ended
        if fate != "commit":
            raise KafkaError(fate)

    # ---- judging -----------------------------------------------------------------------------

    def _take(self, written: Written) -> None:
        """A transaction is committed: the message at the committed offset has been handled."""
        message = self._log[self._committed]
        if written.offset != message.offset + 1:
            self.wrong.append(f"{message.value!r}: its offset is committed as {written.offset}")
        self._committed = written.offset if written.offset is not None else self._committed
        assert message.value is not None
        chain, said = self._chains[message.value], dict(message.headers)
        chain.attempts.append(int(said.get(RETRY_ATTEMPT, b"1")))
        count = len(chain.attempts)
        if chain.end or chain.attempts != list(range(1, count + 1)):
            self.wrong.append(f"{message.value!r}: attempts {chain.attempts}, {chain.end}")
        self._history.counts["attempts handled"] += 1
        failed = count <= chain.fails
        outcomes = len(written.retries) + len(written.letters)
        if outcomes != failed:
            self.wrong.append(f"{message.value!r}: {outcomes} retries and letters of an attempt")
        if written.outputs != [message.value] * (not failed):
            self.wrong.append(f"{message.value!r}: outputs {written.outputs}")
        if count == 1 and self._policy.deadline is not None:
            chain.deadline_ms = written.now_ms + _ms(self._policy.deadline)
        for timer in written.retries:
            self._sources.add(timer.source)
            self._judge_wait(timer, chain, written.now_ms)
        for headers in written.letters:
            chain.end = self._judge_letter(headers, chain, written.now_ms)
        if not failed:
            chain.end = "handled"

    def _judge_wait(self, timer: Timer, chain: Chain, now_ms: int) -> None:
        content, count, deadline_ms = timer.content, len(chain.attempts), chain.deadline_ms
        assert content is not None
        said = {name.decode(): value for name, value in content.headers}
        wait_ms = timer.due_ms - self._clock.true_ms  # it was written in this very moment
        name = f"{content.value!r} after {count}"
        longest_ms = min(_ms(self._policy.first) * 2 ** (count - 1), _ms(self._policy.longest))
        if not 0 <= wait_ms <= longest_ms or count >= self._policy.attempts:
            self.wrong.append(f"{name}: waits {wait_ms} ms of {longest_ms}")
        if _deadline_ms(said) != deadline_ms:
            self.wrong.append(f"{name}: deadline {_deadline_ms(said)}, not {deadline_ms}")
        elif deadline_ms is not None and now_ms + wait_ms > deadline_ms:
            self.wrong.append(f"{name}: waits beyond its deadline")
        if content.headers[:2] != ((b"own", b"1"), (b"own", b"\xff")):
            self.wrong.append(f"{name}: headers {content.headers}")
        if said.get(RETRY_ATTEMPT) != b"%d" % (count + 1) or b"secret" in said[RETRY_HISTORY]:
            self.wrong.append(f"{name}: {said}")

    def _judge_letter(self, headers: Sequence[Header], chain: Chain, now_ms: int) -> str:
        said, count = dict(headers), len(chain.attempts)
        reason = said[RETRY_REASON].decode()
        is_last = count == self._policy.attempts
        if said[RETRY_ATTEMPT] != b"%d" % count or (reason == "attempts") != is_last:
            self.wrong.append(f"a letter after {count} of {self._policy.attempts}: {said}")
        if _deadline_ms(said) != chain.deadline_ms:
            self.wrong.append(f"a letter of another deadline than {chain.deadline_ms}: {said}")
        elif reason == "deadline":
            longest_ms = self._policy.longest_wait_ms(count)
            if chain.deadline_ms is None or now_ms + longest_ms <= chain.deadline_ms:
                self.wrong.append(f"a letter before its deadline: {said}")
        self._history.counts[f"retries end: {reason}"] += 1
        return reason

    def _delivered(self, timer: Timer, headers: bytes) -> None:
        """A retry has come to its target; or is the service's own dead letter."""
        content = timer.content
        if timer.source not in self._sources or content is None:
            return
        found = decoded(headers)
        own = [(name.decode(), value) for name, value in content.headers]
        if timer.rejected or found != own:  # a policy forbids it
            assert content.value is not None
            self._chains[content.value].end = "the service's dead letter"
            return
        number = content.target_partition
        if number == NO_PARTITION or TARGETS[content.target] != self._topic:
            self.wrong.append(f"{content.value!r} goes to {content.target}-{number}")
        self._append(number, content.key, content.value, found)

    def judge(self) -> list[str]:
        """What is wrong."""
        lost = [name for name, chain in self._chains.items() if not chain.end]
        return self.wrong + [f"{name!r} never ends: {self._chains[name]}" for name in lost]


def _deadline_ms(headers: Mapping[str, bytes]) -> int | None:
    return int(headers.get(RETRY_DEADLINE_MS, b"0")) or None


def _ms(span: timedelta | str) -> int:
    assert isinstance(span, timedelta)
    return span // timedelta(milliseconds=1)
