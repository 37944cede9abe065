"""The HTTP API of a small shard on real files, called in this process; its Kafka is a double."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from kafka.errors import NotEnoughReplicasError
from tests.harness.local_world import NOW_MS, LocalWorld
from tests.harness.timer_rows import P0, P1, TimerRow

from duewheel import factory
from duewheel.client import Answer, Cancel, DelayProducer, Rescheduled, Timer
from duewheel.clock import Clock
from duewheel.config.settings import Settings, load
from duewheel.errors import DuewheelError, KafkaUnavailable
from duewheel.ops.changes.timer_writer import TimerWriter
from duewheel.ops.schedules import read_before_change
from duewheel.serve.access import Access, Caller
from duewheel.serve.app import make_app
from duewheel.serve.record_writer import RecordWriter
from duewheel.serve.service import Service
from duewheel.testing import ManualClock
from duewheel.testing.service import LocalService

TOKEN = "t" * 32
READ_TOKEN = "r" * 32
LOCAL = "http://localhost"
CHANGING, READING = {TOKEN.encode(): Caller()}, {READ_TOKEN.encode(): Caller()}
COUNT = 60


def settings_of(path: Path, quotas: Mapping[str, int] | None = None, **serve: Any) -> Settings:
    """Of a shard that allows every target, and recurring timers in `timers`; `quotas`: messages per
    second of timer topics.
    """
    timer: dict[str, Any] = {"topics": "timers", "targets": "*", "slots": 100_000}
    timer |= {"roll_window": "1h", "margin": "5m"}
    timer["topic"] = {"timers": {"recurring": True}}
    timer["topic"] |= {name: {"quota_per_second": rate} for name, rate in (quotas or {}).items()}
    given = {"timer": timer, "storage": {"data_dir": path / "data"}, "serve": serve}
    return load(None, given)


def shard_of(
    path: Path, shards: tuple[str, ...] = (), *, index: int = 0, count: int = 1, **serve: Any
) -> Settings:
    """Of one of several shards, whose servers are `shards`."""
    settings = settings_of(path, shards=shards, **serve)
    shard = settings.shard.model_copy(update={"index": index, "count": count})
    return settings.model_copy(update={"shard": shard})


def fill(settings: Settings) -> None:
    """One timer per second for a minute, in each of two partitions, in a shard that was stopped."""
    world = LocalWorld(settings.storage.data_dir, settings.wheel, starts={P0: 0, P1: 0})
    for partition in (0, 1):
        world.append(*(TimerRow(partition, n, NOW_MS + 1000 * n) for n in range(1, COUNT + 1)))
    world.stop()


class NoProgress:
    """The progress of a shard that has none in Kafka."""

    def newest(self) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing."""


def without_progress(patch: pytest.MonkeyPatch) -> None:
    """A server watches its shard's progress. Without a Kafka the client's threads would go on to
    look for one in the tests that follow.
    """
    patch.setattr(factory, "progress_reader", lambda *_: NoProgress())


def without_log_ends(patch: pytest.MonkeyPatch) -> None:
    """Changes of schedules in files that have no Kafka, and no settings of a shard."""
    patch.setattr(read_before_change, "log_ends", lambda *_: {})
    patch.setattr(read_before_change, "require_in_force", lambda *_: None)


@dataclass
class WrittenAtOnce:
    """A record that Kafka acknowledges at once, and its metadata."""

    topic: str
    partition: int = 0
    offset: int = 73
    timestamp: int = NOW_MS

    def get(self, timeout: float) -> WrittenAtOnce:
        return self


@dataclass
class RecordingProducer:
    """A DelayProducer that keeps the arguments of each call.

    Attributes:
        calls: name, positional and named arguments of each.
        answer: the reply to each cancel; None: there is none.
        reply_error: why no reply can be read.
        is_down: whether Kafka answers nothing.
        refused: numbers of the calls, from 0, whose records Kafka does not acknowledge.
        sent: topic and value of each record that is no timer or cancel.
        closed: topics that take none of these.
    """

    calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = field(default_factory=list)
    answer: Answer | None = Answer.CANCELLED
    is_down: bool = False
    refused: set[int] = field(default_factory=set)
    reply_error: DuewheelError | None = None
    sent: list[tuple[str, bytes | None]] = field(default_factory=list)
    closed: set[str] = field(default_factory=set)

    def schedule(self, *args: Any, **named: Any) -> Future[Timer]:
        return self._acknowledged(
            "schedule", args, named, Timer("timers-0@70", "timers", 0, 70, NOW_MS)
        )

    def cancel(self, *args: Any, **named: Any) -> Future[Cancel]:
        reply = self._reply() if named["reply"] else None
        cancel = Cancel("7", "timers", 0, 71, reply)
        return self._acknowledged("cancel", args, named, cancel)

    def reschedule(self, *args: Any, **named: Any) -> Future[Rescheduled]:
        reply = self._reply() if named["reply"] else None
        new = Rescheduled("7", "timers", 0, 72, NOW_MS, reply)
        return self._acknowledged("reschedule", args, named, new)

    def partition_of(self, _: object) -> int:
        return 0

    def send(self, topic: str, value: bytes | None = None, *_: Any) -> WrittenAtOnce:
        if topic in self.closed:
            raise NotEnoughReplicasError("too few replicas")
        self.sent.append((topic, value))
        return WrittenAtOnce(topic)

    def close(self, _: float | None = None) -> None:
        pass

    def _reply(self) -> Future[Answer] | None:
        reply: Future[Answer] = Future()
        if self.reply_error is not None:
            reply.set_exception(self.reply_error)
        elif self.answer is not None:
            reply.set_result(self.answer)
        return reply

    def _acknowledged(self, name: str, args: Any, named: Any, result: Any) -> Future[Any]:
        if self.is_down:
            raise KafkaUnavailable("Kafka answers no client")
        self.calls.append((name, args, named))
        future: Future[Any] = Future()
        if len(self.calls) - 1 in self.refused:
            future.set_exception(NotEnoughReplicasError("too few replicas"))
        else:
            future.set_result(result)
        return future


def recording_writer(settings: Settings, producer: Any, clock: Clock) -> TimerWriter:
    """Writes to all topics with one recording producer."""
    return TimerWriter(settings, clock, lambda *_: producer)


@contextmanager
def served(
    settings: Settings, access: Access | None = None, producer: RecordingProducer | None = None
) -> Iterator[TestClient]:
    """Starts the app for the length of a with block."""
    app = make_app(settings, ManualClock(NOW_MS), access or Access())
    if producer is not None:
        service: Service = app.state.service
        writer = recording_writer(settings, producer, service.clock)
        recorder = RecordWriter(settings, lambda *_: producer)
        app.state.service = Service(
            settings, service.clock, service.view, writer, recorder, service.metrics
        )
    with TestClient(app, base_url=LOCAL, raise_server_exceptions=False) as client:
        yield client


def bearer(token: str) -> dict[str, str]:
    """The header of a token."""
    return {"Authorization": f"Bearer {token}"}


class KitWriter(TimerWriter):
    """Writes with the producers of the service in this process."""

    def __init__(self, settings: Settings, service: LocalService) -> None:
        super().__init__(settings, service.clock)
        self._service = service

    @contextmanager
    def producer(self, timer_topic: str) -> Iterator[DelayProducer]:
        yield self._service.producer(timer_topic)
        self._service.pending()  # ingest takes it
