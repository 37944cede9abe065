"""What the reader does after errors; the brokers' answers are made up."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from kafka.errors import (
    NodeNotReadyError,
    NotLeaderForPartitionError,
    OffsetOutOfRangeError,
    UnknownTopicOrPartitionError,
)
from tests.harness.record_batches import NOW_MS, Record, batch, plain

from duewheel.checkpoints.commit_and_close_pages import Marks
from duewheel.config.range_ends import Bound
from duewheel.deadline import Deadline, DeadlineExceeded
from duewheel.errors import ConfigError, KafkaUnavailable
from duewheel.kafka.connect.clients import KafkaClients
from duewheel.kafka.log.leader_requests import Fetched, LeaderRequests
from duewheel.kafka.log.list_offsets_times import EARLIEST, LATEST
from duewheel.kafka.log.reader import LogReader
from duewheel.schemas.batches import TopicPartition

TIMERS = ("timers", 0)


class Answering(LogReader):
    """Answers without a network.

    Attributes:
        fetches: one answer after another.
        log_starts: of the log, each time that it is asked; the last stays.
        delays_ms: by which the client is throttled, each time that it is asked.
    """

    def __init__(
        self,
        fetches: list[Any],
        starts: list[int],
        offsets: Callable[[list[TopicPartition], int, bool], dict[Any, Any]] | None = None,
    ) -> None:
        self.fetches, self.log_starts = fetches, starts
        self.topics_set: list[list[str]] = []
        begin, sleep = simulated_time()
        super().__init__(KafkaClients({}), ["deleted", "timers"], begin, sleep=sleep)
        self._connected: Any = SimpleNamespace(
            fetch=self._answer,
            list_offsets=offsets or self._list_offsets,
            is_throttled=lambda: bool(self.delays_ms and self.delays_ms.pop(0)),
            request_metadata=lambda: None,
            set_topics=self.topics_set.append,
            refresh_metadata=lambda: None,
        )
        self.delays_ms: list[int] = []

    def partitions(self) -> list[TopicPartition]:
        return [TIMERS]

    def _run(self, _: Deadline, what: str, call: Callable[..., Any], *args: Any) -> Any:
        return call(*args)

    def _answer(self, positions: Marks, *_: Any) -> dict[TopicPartition, Any]:
        assert list(positions) == [TIMERS]
        return {TIMERS: self.fetches.pop(0)}

    def _list_offsets(
        self, wanted: list[TopicPartition], time: int, _: bool
    ) -> dict[TopicPartition, int]:
        assert time == EARLIEST
        starts = self.log_starts
        return {name: starts.pop(0) if starts[1:] else starts[0] for name in wanted}


def fetched(begin: int, count: int) -> Fetched:
    octets = memoryview(bytes(batch([plain(n) for n in range(count)], begin)))
    return Fetched(TIMERS, octets, [], begin, begin + count)


def simulated_time() -> tuple[Callable[[], Deadline], Callable[[float], None]]:
    """Only the reader's own waits take time: a loaded machine would miss a short deadline."""
    now_s = 0.0

    def sleep(seconds: float) -> None:
        nonlocal now_s
        now_s += seconds

    return (lambda: Deadline(1.0, now_s=lambda: now_s)), sleep


def read(reader: LogReader, first: int, until: int) -> list[int]:
    return [each.begin for part in reader.read({TIMERS: (first, until)}, 1) for each in part]


def test_reading_continues_where_retention_has_stopped() -> None:
    reader = Answering([OffsetOutOfRangeError(), fetched(7, 3)], starts=[7])
    assert read(reader, 2, 10) == [7]


def test_a_partition_that_a_broker_leaves_out_is_asked_for_after_a_pause() -> None:
    asked = iter(range(100))

    def none(*_: object) -> dict[object, object]:
        next(asked)
        return {}

    with pytest.raises(KafkaUnavailable):
        Answering([], [0], none).ends([TIMERS], committed=False)


def test_what_a_log_has_lost_at_its_end_is_not_skipped() -> None:
    """As long as nobody has decided on it, the marks must stay below it."""
    with pytest.raises(KafkaUnavailable, match="timers-0 at 7"):
        read(Answering([OffsetOutOfRangeError()] * 50, starts=[0]), 7, 10)


def test_a_new_leader_that_is_behind_with_the_retention_skips_nothing() -> None:
    """The old leader has refused the offset, and the new one would have it."""
    reader = Answering([OffsetOutOfRangeError(), fetched(2, 8)], starts=[1])
    assert read(reader, 2, 10) == [2]


@pytest.mark.parametrize("follows", [False, True])
def test_records_come_in_parts_that_fit_into_memory(*, follows: bool) -> None:
    """A megabyte of a producer's may decompress to records that take gigabytes in Python."""
    large: Record = NOW_MS, b"k", None, [("", None)] * 30_000
    octets = b"".join(bytes(batch([large] * 3, base, codec=1)) for base in (4, 7))
    assert len(octets) < 2_000
    reader = Answering([Fetched(TIMERS, memoryview(octets), [], 5, 10)], starts=[4])
    if follows:
        positions = {TIMERS: 5}
        parts = [[each.offset for each in part] for part in reader.poll(positions)]
        assert (parts, positions) == ([[5, 6], [7, 8], [9]], {TIMERS: 10})
        return
    found = [
        ([each.offset for each in part], reached[TIMERS])
        for part, reached in reader.records({TIMERS: (5, 10)})
    ]
    assert found == [([5, 6], 7), ([7, 8], 9), ([9], 10)]


def test_present_ends_wait_for_no_partition() -> None:
    """A leader that has moved is asked once more, by new metadata."""
    moved, gone = ("timers", 1), ("deleted", 0)
    unknown = UnknownTopicOrPartitionError()
    rounds: list[dict[TopicPartition, Any]] = [
        {TIMERS: 5, moved: NotLeaderForPartitionError(), gone: unknown},
        {moved: 7, gone: unknown},
    ]
    asked: list[Sequence[TopicPartition]] = []

    def answers(wanted: Sequence[TopicPartition], _: int, committed: bool) -> dict[Any, Any]:
        assert not committed
        asked.append(wanted)
        return rounds.pop(0)

    found = Answering([], [], answers).present_ends([TIMERS, moved, gone], committed=False)
    assert found == {TIMERS: 5, moved: 7}
    assert asked == [[TIMERS, moved, gone], [moved, gone]]


def test_topics_that_are_asked_for_once_are_not_kept() -> None:
    """kafka-python would read their metadata for ever, and of a deleted one ten times a second."""
    reader = Answering([], [], lambda wanted, *_: dict.fromkeys(wanted, 5))
    assert reader.present_ends([("others", 0)], committed=False) == {("others", 0): 5}
    assert reader.topics_set == [["deleted", "timers", "others"], ["deleted", "timers"]]
    reader.present_ends([TIMERS], committed=False)
    assert len(reader.topics_set) == 2


@pytest.mark.parametrize(
    ("since", "until", "bounds"),
    [
        (None, None, (3, 9)),
        (Bound(offset=1), Bound(offset=20), (3, 9)),
        (Bound(time_ms=5_000), Bound(time_ms=6_000), (5, 6)),
        (Bound(time_ms=8_000), None, (9, 9)),  # nothing is that new
    ],
)
def test_bounds_lie_within_the_log(
    since: Bound | None, until: Bound | None, bounds: tuple[int, int]
) -> None:
    at = {EARLIEST: 3, LATEST: 9, 5_000: 5, 6_000: 6, 8_000: -1}
    reader = Answering([], [], lambda _, time, __: {TIMERS: at[time]})
    assert reader.bounds(since, until, committed=True) == {TIMERS: bounds}


def test_bounds_begin_at_no_offset_above_all_ends() -> None:
    reader = Answering([], [], lambda _, time, __: {TIMERS: {EARLIEST: 3, LATEST: 9}[time]})
    with pytest.raises(ConfigError, match="offset 10 is above"):
        reader.bounds(Bound(offset=10), committed=True)


def test_a_call_that_fails_is_the_last_one_in_its_connections(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """After its deadline it may still run in them, and they serve one thread."""
    made = list[SimpleNamespace]()

    def connect(*_: object) -> Any:
        answers = [None, {TIMERS: 4} if made else DeadlineExceeded("no answer")]

        def run(*_: object) -> Any:
            answer = answers.pop(0)
            if isinstance(answer, Exception):
                raise answer
            return answer

        own = SimpleNamespace(run=run, refresh_metadata=None, list_offsets=None, closed=0)
        own.close = lambda: setattr(own, "closed", own.closed + 1)
        made.append(own)
        return own

    monkeypatch.setattr(LeaderRequests, "connect", connect)
    reader = LogReader(KafkaClients({}), ["timers"])
    assert not made, "it connects when it is used"
    with pytest.raises(KafkaUnavailable, match="no answer"):
        reader.ends([TIMERS], committed=True)
    assert [each.closed for each in made] == [1]
    assert reader.ends([TIMERS], committed=True) == {TIMERS: 4}
    assert [each.closed for each in made] == [1, 0]
    reader.close()
    reader.close()
    assert [each.closed for each in made] == [1, 1]


def test_a_throttled_client_is_not_taken_for_a_broker_that_is_away() -> None:
    """Each new start would read the same part again, and be throttled again."""
    paused = [NodeNotReadyError("Node paused: throttle") for _ in range(50)]
    reader = Answering([*paused[:20], fetched(2, 8)], starts=[1])
    reader.delays_ms = [1] * 20
    assert read(reader, 2, 10) == [2]
    with pytest.raises(KafkaUnavailable):
        read(Answering(paused, starts=[1]), 2, 10)


def test_a_call_has_one_deadline_whatever_it_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[Deadline] = []

    def begin() -> Deadline:
        begun.append(Deadline(60))
        return begun[-1]

    at = {EARLIEST: 3, LATEST: 9}
    reader = Answering([], [], lambda _, time, __: {TIMERS: at[time]})
    reader._begin = begin  # noqa: SLF001
    used: list[Deadline] = []
    attempt = reader._run  # noqa: SLF001

    def noted(deadline: Deadline, *given: Any) -> Any:
        used.append(deadline)
        return attempt(deadline, *given)

    monkeypatch.setattr(reader, "_run", noted)
    reader.bounds(committed=True)
    assert len(begun) == 1
    assert used == begun * 2
    own = Deadline(60)
    with reader.bounded_by(own):
        reader.bounds(committed=True)
        reader.ends([TIMERS], committed=True)
    assert len(begun) == 1
    assert used[2:] == [own] * 3
    reader.ends([TIMERS], committed=True)
    assert used[-1] is begun[-1] is not own
