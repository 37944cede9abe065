"""Two processes take a shard whose first id is blocked, and freed, in every order: one can commit.

Each call to Kafka is a step. A process is run anew up to each of its steps, with the answers that
it has had: so any two may be interleaved.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
from kafka import KafkaAdminClient

from duewheel.deadline import STOP_GRACE_S, Deadline
from duewheel.errors import KafkaUnavailable
from duewheel.kafka.connect.clients import KafkaClients
from duewheel.kafka.log.reader import LogReader
from duewheel.kafka.publish.transactional_ids import Ending, TransactionalIds, settle_ids
from duewheel.kafka.targets.unavailable_partitions import UnavailablePartitions
from duewheel.kafka.transaction_limits import TransactionLimits
from duewheel.schemas.batches import TopicPartition

FIRST = (0,)
DEADLINE = Deadline(math.inf)


@dataclass(frozen=True)
class Kafka:
    """What Kafka has of a shard."""

    blocked: frozenset[int] = frozenset({0})
    freed: bool = False  # whether it was repaired
    owners: tuple[tuple[int, int], ...] = ()  # ids, and the processes that have taken them last
    progress: int = 0
    named: tuple[int, ...] = FIRST

    def owner(self, number: int) -> int | None:
        return dict(self.owners).get(number)


class Pause(BaseException):
    """A process has come to its next step."""


@dataclass(frozen=True)
class Taker:
    """A process: the answers that it has had; or once it has the shard, what it has read."""

    number: int
    answers: tuple[Any, ...] = ()
    uses: int | None = None  # the id
    base: int = 0  # the progress that it has read
    starts_left: int = 0

    def can_commit(self, kafka: Kafka) -> bool:
        """Whether it has an id, and Kafka takes it."""
        of = self.uses
        return of is not None and kafka.owner(of) == self.number and of not in kafka.blocked

    def ended(self) -> Taker:
        """It begins again, if it may."""
        return Taker(self.number, starts_left=self.starts_left - 1)


Act = Callable[[Kafka], tuple[Kafka, Any]]


class TakerRun:
    """One run of a process, which ends after one more step."""

    def __init__(self, kafka: Kafka, process: Taker) -> None:
        self.kafka, self.process = kafka, process
        self.answers = list(process.answers)
        self.left = list(process.answers)

    def step(self, act: Act) -> Any:
        if self.left:
            return self.left.pop(0)
        self.kafka, answer = act(self.kafka)
        self.answers.append(answer)
        raise Pause

    def take(self, number: int) -> bool:
        """InitProducerId: whether this process owns the id now."""

        def act(kafka: Kafka) -> tuple[Kafka, bool]:
            if number in kafka.blocked:
                return kafka, False
            owners = dict(kafka.owners) | {number: self.process.number}
            return replace(kafka, owners=tuple(sorted(owners.items()))), True

        return bool(self.step(act))

    def endings(self, numbers: Iterable[int]) -> frozenset[int]:
        return frozenset(self.step(lambda kafka: (kafka, kafka.blocked.intersection(numbers))))

    def read(self) -> tuple[int, tuple[int, ...]]:
        found: tuple[int, tuple[int, ...]]
        found = self.step(lambda kafka: (kafka, (kafka.progress, kafka.named)))
        return found

    def claim(self, number: int, ids: tuple[int, ...]) -> None:
        """The progress again, in a transaction of this id."""

        def act(kafka: Kafka) -> tuple[Kafka, bool]:
            if kafka.owner(number) != self.process.number or number in kafka.blocked:
                return kafka, False
            return replace(kafka, named=ids), True

        if not self.step(act):
            raise KafkaUnavailable("fenced")


class Ids(TransactionalIds):
    """With the requests of a run."""

    def __init__(self, run: TakerRun) -> None:
        clients, limits = KafkaClients({}), TransactionLimits(ending_s=600)
        unavailable = UnavailablePartitions()
        super().__init__(clients, "shard", limits, None, LogReader(clients), unavailable)
        self._run = run

    def _open(self, number: int, topics: Iterable[str], deadline: Deadline) -> None:
        if not self._run.take(number):
            raise KafkaUnavailable("no answer")

    def _unmarked(self, ending: Ending) -> frozenset[TopicPartition]:
        return frozenset([("refuses its marker", 0)])

    def _endings(
        self, admin: KafkaAdminClient, numbers: Sequence[int], deadline: Deadline
    ) -> dict[int, Ending]:
        found = self._run.endings(numbers) if numbers else frozenset[int]()
        return {n: Ending(str(n), "PrepareAbort", frozenset(), 0) for n in found}


class SilentIds(TransactionalIds):
    """With a Kafka that gives no producer an id; keeps the deadlines of its questions about ids."""

    def __init__(self, stopping: threading.Event) -> None:
        clients, unavailable = KafkaClients({}), UnavailablePartitions()
        reader = LogReader(clients)
        super().__init__(clients, "shard", TransactionLimits(), stopping, reader, unavailable)
        self.asked: list[Deadline] = []

    def _open(self, number: int, topics: Iterable[str], deadline: Deadline) -> None:
        raise KafkaUnavailable("no answer")

    def _endings(
        self, admin: KafkaAdminClient, numbers: Sequence[int], deadline: Deadline
    ) -> dict[int, Ending]:
        if numbers:
            self.asked.append(deadline)
        return {}


class LateIds(SilentIds):
    """With a Kafka that is ending the transaction of each id below `free`; at each look so many
    partitions lack its marker, and the last look repeats.
    """

    def __init__(self, free: int, looks: Sequence[int]) -> None:
        super().__init__(threading.Event())
        self.free, self.looks = free, list(looks)

    def _open(self, number: int, topics: Iterable[str], deadline: Deadline) -> None:
        if number < self.free:
            raise KafkaUnavailable("no answer")

    def _unmarked(self, ending: Ending) -> frozenset[TopicPartition]:
        count = self.looks.pop(0) if len(self.looks) > 1 else self.looks[0]
        return frozenset(("orders", number) for number in range(count))

    def _endings(
        self, admin: KafkaAdminClient, numbers: Sequence[int], deadline: Deadline
    ) -> dict[int, Ending]:
        return {n: Ending(str(n), "PrepareCommit", frozenset(), 0) for n in numbers}


class SlowlyEndedIds(LateIds):
    """Kafka ends the transaction at the last look."""

    def _unmarked(self, ending: Ending) -> frozenset[TopicPartition]:
        late = super()._unmarked(ending)
        if len(self.looks) == 1:
            self.free = 0
        return late


def test_an_id_stays_while_its_partitions_get_their_markers() -> None:
    looks = range(100, 0, -1)  # more than the doubled waits allow
    assert SlowlyEndedIds(1, looks).take(None, FIRST, [], DEADLINE) == FIRST


@pytest.mark.parametrize("looks", [[3], [9, 5, 3]])
def test_an_id_is_blocked_once_no_partition_gets_its_marker(looks: list[int]) -> None:
    assert LateIds(1, looks).take(None, FIRST, [], DEADLINE) == (0, 1)


def test_an_id_is_blocked_if_kafka_does_not_end_its_transaction_for_long() -> None:
    """Its partitions have no leader: none can be looked at."""
    assert LateIds(1, [0]).take(None, FIRST, [], DEADLINE) == (0, 1)


def test_a_stop_shortens_the_questions_about_ids() -> None:
    stopping = threading.Event()
    stopping.set()
    ids = SilentIds(stopping)
    with pytest.raises(KafkaUnavailable):
        ids.take(None, FIRST, [], Deadline(0))
    assert not ids.are_blocked(None, FIRST)
    assert len(ids.asked) == 2
    assert all(each.remaining_s() <= STOP_GRACE_S for each in ids.asked)


Settled = Callable[..., tuple[int, ...]]


def advanced(kafka: Kafka, process: Taker, settle: Settled) -> tuple[Kafka, Taker]:
    """After the next step of a process."""
    if process.starts_left < 0:
        return kafka, process
    if process.uses is not None:
        if not process.can_commit(kafka):
            return kafka, process.ended()
        assert kafka.progress == process.base, "delivers again what another process has delivered"
        after = replace(kafka, progress=kafka.progress + 1)
        return after, replace(process, base=after.progress)
    run = TakerRun(kafka, process)
    ids, last = Ids(run), 0
    base = 0

    def take(numbers: tuple[int, ...]) -> tuple[int, ...]:
        nonlocal last
        taken = ids.take(None, numbers, [], DEADLINE)
        last = taken[-1]
        return taken

    def read() -> tuple[int, ...]:
        nonlocal base
        base, named = run.read()
        return named

    try:
        settle(read(), take, read, lambda named: run.claim(last, named))
    except Pause:
        return run.kafka, replace(process, answers=tuple(run.answers))
    except KafkaUnavailable:
        return run.kafka, process.ended()
    return run.kafka, replace(process, answers=(), uses=last, base=base)


def explore(settle: Settled, count: int, starts: int, commits: int) -> int:
    """How many states so many processes reach that start so often, and commit so often together;
    AssertionError if two of them can commit in one.
    """
    start = Kafka(), tuple(Taker(n, starts_left=starts - 1) for n in range(count))
    seen, todo = {start}, deque([start])
    while todo:
        kafka, processes = todo.popleft()
        following = []
        for process in processes:
            after, changed = advanced(kafka, process, settle)
            others = (changed if each.number == process.number else each for each in processes)
            following.append((after, tuple(others)))
        if not kafka.freed:
            following.append((replace(kafka, blocked=frozenset(), freed=True), processes))
        new = {state for state in following if state[0].progress <= commits}.difference(seen)
        for state in new:
            assert sum(each.can_commit(state[0]) for each in state[1]) < 2, "two can commit"
        seen |= new
        todo.extend(new)
    return len(seen)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("count", "starts", "commits"),
    [
        (2, 2, 1),
        pytest.param(*(3, 1, 0), marks=[pytest.mark.crash_matrix, pytest.mark.timeout(1_800)]),
    ],
)
def test_one_process_can_commit(count: int, starts: int, commits: int) -> None:
    assert explore(settle_ids, count, starts, commits) > 10_000


def unnamed(
    named: tuple[int, ...],
    take: Callable[[tuple[int, ...]], tuple[int, ...]],
    read: Callable[[], tuple[int, ...]],
    claim: Callable[[tuple[int, ...]], None],
) -> tuple[int, ...]:
    """Without a trial of the blocked ids after the new one is named."""
    taken = take(named)
    if read() != taken:
        claim(taken)
        read()
    return taken


def not_tried_again(
    named: tuple[int, ...],
    take: Callable[[tuple[int, ...]], tuple[int, ...]],
    read: Callable[[], tuple[int, ...]],
    claim: Callable[[tuple[int, ...]], None],
) -> tuple[int, ...]:
    """Without one if another process has named the new id meanwhile."""
    given, tried = named, set[int]()
    while True:
        tried.update(given)
        taken = take(given)
        named = read()
        if taken == named:
            return taken
        given = taken if tried.issuperset(named) else tuple(sorted({*taken, *named}))
        if given == taken:
            claim(taken)


@pytest.mark.parametrize("wrong", [unnamed, not_tried_again])
def test_the_order_is_needed(wrong: Settled) -> None:
    with pytest.raises(AssertionError, match="two can commit"):
        explore(wrong, 3, 1, 0)
