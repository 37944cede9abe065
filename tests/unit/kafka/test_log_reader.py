"""What the reader does after errors; the brokers' answers are made up."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from kafka.errors import NodeNotReadyError, OffsetOutOfRangeError
from tests.harness.record_batches import batch, plain

from duewheel.checkpoints.commit_and_close_pages import Marks
from duewheel.errors import KafkaUnavailable
from duewheel.kafka.clients import ClientSettings
from duewheel.kafka.log.ends import EARLIEST
from duewheel.kafka.log.leader_requests import Fetched
from duewheel.kafka.log.reader import LogReader, Waits
from duewheel.schemas.batches import TopicPartition

TIMERS = ("timers", 0)


class Answering(LogReader):
    """Answers without a network.

    Attributes:
        fetches: one answer after another.
        starts: of the log, each time that it is asked; the last stays.
        delays_ms: by which the client is throttled, each time that it is asked.
    """

    def __init__(self, fetches: list[Any], starts: list[int]) -> None:
        self.fetches, self.starts = fetches, starts
        self._stopping, self._waits, self._committed = None, simulated_waits(), True
        self._topics, self.deadline = ["timers"], None
        self._connected: Any = SimpleNamespace(
            fetch=self._answer,
            list_offsets=self._list_offsets,
            is_throttled=lambda: bool(self.delays_ms and self.delays_ms.pop(0)),
            request_metadata=lambda: None,
        )
        self._settings = ClientSettings({})
        self.delays_ms: list[int] = []

    def _run(self, what: str, call: Callable[..., Any], *args: Any) -> Any:
        return call(*args)

    def _answer(self, positions: Marks, _: int, __: bool) -> dict[TopicPartition, Any]:
        assert list(positions) == [TIMERS]
        return {TIMERS: self.fetches.pop(0)}

    def _list_offsets(
        self, wanted: list[TopicPartition], time: int, _: bool
    ) -> dict[TopicPartition, int]:
        assert time == EARLIEST
        return {name: self.starts.pop(0) if self.starts[1:] else self.starts[0] for name in wanted}


def fetched(begin: int, count: int) -> Fetched:
    octets = memoryview(bytes(batch([plain(n) for n in range(count)], begin)))
    return Fetched(TIMERS, octets, [], begin, begin + count)


def simulated_waits() -> Waits:
    """Only the reader's own waits take time: a loaded machine would miss a short deadline."""
    now_s = 0.0

    def sleep(seconds: float) -> None:
        nonlocal now_s
        now_s += seconds

    return Waits(stalled_s=1.0, retry_s=0.1, sleep=sleep, now_s=lambda: now_s)


def read(reader: LogReader, first: int, until: int) -> list[int]:
    return [each.begin for part in reader.read({TIMERS: (first, until)}, 1) for each in part]


def test_reading_continues_where_retention_has_stopped() -> None:
    reader = Answering([OffsetOutOfRangeError(), fetched(7, 3)], starts=[7])
    assert read(reader, 2, 10) == [7]


def test_what_a_log_has_lost_at_its_end_is_not_skipped() -> None:
    """As long as nobody has decided on it, the marks must stay below it."""
    with pytest.raises(KafkaUnavailable, match="timers-0 at 7"):
        read(Answering([OffsetOutOfRangeError()] * 50, starts=[0]), 7, 10)


def test_a_new_leader_that_is_behind_with_the_retention_skips_nothing() -> None:
    """The old leader has refused the offset, and the new one would have it."""
    reader = Answering([OffsetOutOfRangeError(), fetched(2, 8)], starts=[1])
    assert read(reader, 2, 10) == [2]


def test_a_throttled_client_is_not_taken_for_a_broker_that_is_away() -> None:
    """Each new start would read the same part again, and be throttled again."""
    paused = [NodeNotReadyError("Node paused: throttle") for _ in range(50)]
    reader = Answering([*paused[:20], fetched(2, 8)], starts=[1])
    reader.delays_ms = [1] * 20
    assert read(reader, 2, 10) == [2]
    with pytest.raises(KafkaUnavailable):
        read(Answering(paused, starts=[1]), 2, 10)
