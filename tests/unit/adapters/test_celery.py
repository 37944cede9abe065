"""Celery's tasks through the timer topic: a real app and a real worker, on a broker in memory."""

from __future__ import annotations

import logging
import runpy
import time
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery, Task, chain
from celery.contrib.testing.worker import start_worker
from celery.exceptions import NotRegistered, OperationalError, SecurityError

from duewheel.adapters.celery import SIGNATURE, DelayedTask, Delays
from duewheel.errors import ConfigError, InvalidTimer
from duewheel.testing.service import LocalService
from duewheel.testing.service_start import START

EXAMPLE = Path(__file__).resolve().parents[3] / "docs/clients/python/celery_forwarder.py"
TARGET = "celery.due"
KEY = b"a secret of 16 B"


class CeleryShop:
    """An app with three tasks, and the forwarder beside it.

    Attributes:
        done: name and arguments of each task that a worker has run.
    """

    def __init__(self, service: LocalService) -> None:
        self.app = Celery(
            "shop", broker="memory://", backend="cache+memory://", task_cls=DelayedTask
        )
        self.service, self.done = service, list[tuple[str, Any]]()
        producer = service.producer()
        self.delays = Delays(self.app, lambda: producer, TARGET, keys=[KEY])
        self.forwarded: list[tuple[str, datetime]] = []
        service.consumer(TARGET)(self._forward)

        @self.app.task(name="remind", shared=False)  # type: ignore[untyped-decorator]
        def remind(order: str) -> str:
            self.done.append(("remind", order))
            return order

        @self.app.task(name="add", shared=False)  # type: ignore[untyped-decorator]
        def add(left: int, right: int) -> int:
            self.done.append(("add", (left, right)))
            return left + right

        @self.app.task(name="stubborn", bind=True, max_retries=2, shared=False)  # type: ignore[untyped-decorator]
        def stubborn(task: Any) -> None:
            self.done.append(("stubborn", task.request.retries))
            raise task.retry(countdown=3_600)

        self.remind, self.add, self.stubborn = remind, add, stubborn

    def _forward(self, record: Any) -> None:
        self.forwarded.append((self.delays.forward(record).id, self.service.now()))

    def work(self, result: Any) -> Any:
        """Runs a worker until a task has its result; returns that."""
        with start_worker(self.app, pool="solo", perform_ping_check=False, loglevel="ERROR"):
            return result.get(timeout=20, propagate=False)


@pytest.fixture(autouse=True)
def _root_level() -> Iterator[None]:
    """A worker gives the root logger its level: later tests would see no log of an error."""
    root = logging.getLogger()
    before = root.level
    yield
    root.setLevel(before)


@pytest.fixture
def shop(duewheel: LocalService) -> Iterator[CeleryShop]:
    made = CeleryShop(duewheel)
    yield made
    made.app.control.purge()
    made.app.close()


def test_a_task_with_a_countdown_reaches_the_broker_when_it_is_due(shop: CeleryShop) -> None:
    result = shop.remind.apply_async(["order-42"], countdown=86_400)
    shop.service.advance("23h 59m")
    assert shop.forwarded == []
    (timer,) = shop.service.pending(TARGET)
    assert timer.id.decode() == result.id
    shop.service.advance("1m")
    assert shop.forwarded == [(result.id, START + timedelta(days=1))]
    assert shop.work(result) == "order-42"
    assert shop.done == [("remind", "order-42")]


def test_an_eta_is_an_instant_with_or_without_a_zone(shop: CeleryShop) -> None:
    eta = START + timedelta(hours=3)
    shop.remind.apply_async(["a"], eta=eta)
    shop.remind.apply_async(["b"], eta=eta.replace(tzinfo=None))  # UTC, the app's zone
    shop.service.advance("1d")
    assert [at for _, at in shop.forwarded] == [eta, eta]


def test_a_task_without_either_is_celery_s_alone(shop: CeleryShop) -> None:
    result = shop.remind.delay("order-42")
    assert shop.work(result) == "order-42"
    shop.service.advance("1d")
    assert shop.forwarded == []


def test_options_links_and_expiry_survive_the_wait(shop: CeleryShop) -> None:
    message: dict[str, Any] = {}
    shop.remind.apply_async(
        kwargs={"order": "42"},
        countdown=3_600,
        link=shop.add.si(1, 2),
        expires=7_200,
        priority=3,
        queue="reminders",
    )
    (timer,) = shop.service.pending(TARGET)
    assert timer.value is not None
    shop.app.amqp.send_task_message = lambda _, name, sent, **options: message.update(
        name=name, headers=sent.headers, **options
    )
    shop.service.advance("1h")
    assert (message["name"], message["priority"]) == ("remind", 3)
    assert message["queue"].name == "reminders"
    assert message["headers"]["eta"] is None
    expires = datetime.fromisoformat(message["headers"]["expires"])
    assert abs(expires - datetime.now(expires.tzinfo) - timedelta(hours=2)) < timedelta(minutes=1)


def test_a_chain_passes_its_result_on(shop: CeleryShop) -> None:
    result = chain(shop.add.s(1, 2), shop.add.s(4)).apply_async(countdown=3_600)
    shop.service.advance("1h")
    assert shop.work(result) == 7
    assert shop.done == [("add", (1, 2)), ("add", (3, 4))]


def test_retries_with_a_countdown_wait_there_too(shop: CeleryShop) -> None:
    result = shop.stubborn.delay()
    for hour in range(3):
        with start_worker(shop.app, pool="solo", perform_ping_check=False, loglevel="CRITICAL"):
            while len(shop.done) == hour:
                time.sleep(0.01)
        shop.service.advance("1h")
    assert shop.done == [("stubborn", retries) for retries in range(3)]
    assert {task_id for task_id, _ in shop.forwarded} == {result.id}
    assert len(shop.forwarded) == 2


def test_a_revoked_task_is_never_forwarded(shop: CeleryShop) -> None:
    result = shop.remind.apply_async(["order-42"], countdown=3_600)
    assert shop.delays.revoke(result.id).result(timeout=10).answer(10) == "cancelled"
    shop.service.advance("1d")
    assert shop.forwarded == []


def test_eager_tasks_wait_for_nothing(shop: CeleryShop) -> None:
    shop.app.conf.task_always_eager = True
    assert shop.remind.apply_async(["order-42"], countdown=3_600).get() == "order-42"
    assert shop.service.pending() == []


def test_what_cannot_be_scheduled_is_refused_by_the_caller(shop: CeleryShop) -> None:
    with pytest.raises(InvalidTimer, match="longest delay"):
        shop.remind.apply_async(["order-42"], countdown=41 * 86_400)


def test_arguments_that_are_not_the_task_s_are_refused_by_the_caller(shop: CeleryShop) -> None:
    """The forwarder would raise the error again and again, and forward no other task."""
    for args, kwargs in (([], {}), (["a", "b"], {}), ([], {"other": 1})):
        with pytest.raises(TypeError):
            shop.remind.apply_async(args, kwargs, countdown=60)
    shop.remind.apply_async(countdown=60, kwargs={"order": "a"})
    shop.add.s(1).apply_async((2,), countdown=60)
    assert len(shop.service.pending(TARGET)) == 2


def test_a_countdown_below_zero_is_due_now_and_one_replaces_an_eta(shop: CeleryShop) -> None:
    shop.remind.apply_async(["a"], countdown=-5)
    shop.service.advance("1s")
    assert len(shop.forwarded) == 1
    shop.remind.apply_async(["b"], countdown=3_600, eta=START + timedelta(days=3))
    shop.service.advance("2h")
    assert len(shop.forwarded) == 2


def test_a_task_that_the_forwarder_lacks_is_refused(shop: CeleryShop) -> None:
    shop.remind.apply_async(["order-42"], countdown=3_600)
    shop.app.tasks.unregister("remind")
    with pytest.raises(NotRegistered):
        shop.service.advance("1h")


def stranger_s(written: Any, value: bytes, headers: list[tuple[str, bytes]]) -> Any:
    """A record at the same place, as a consumer returns it."""
    place = {name: getattr(written, name) for name in ("topic", "partition", "offset")}
    return SimpleNamespace(**place, value=value, headers=headers)


def test_only_tasks_that_the_app_has_written_are_forwarded(shop: CeleryShop) -> None:
    """Another writer of the topic can name any task, also in a link of a harmless one."""
    shop.remind.apply_async(["order-42"], countdown=3_600)
    shop.service.advance("1h")
    (written,) = shop.service.records(TARGET)
    signature = written.header(SIGNATURE)
    assert written.value is not None and signature is not None
    forged = written.value.replace(b"order-42", b"order-43")
    for headers in ([], [(SIGNATURE, b"")], [(SIGNATURE, signature)]):
        record = stranger_s(written, forged, headers)
        with pytest.raises(SecurityError, match=r"celery.due-\d@\d is not signed"):
            shop.delays.forward(record)
    assert len(shop.forwarded) == 1


def test_a_key_is_changed_while_tasks_wait(shop: CeleryShop) -> None:
    producer = shop.service.producer()
    shop.remind.apply_async(["order-42"], countdown=3_600)
    other = b"another one of 22 bytes"
    shop.delays = Delays(shop.app, lambda: producer, TARGET, keys=[other, KEY])
    shop.remind.apply_async(["order-43"], countdown=3_600)
    shop.service.advance("1h")
    assert len(shop.forwarded) == 2
    for wrong in ([], [b"short"], [KEY, b""]):
        with pytest.raises(ConfigError, match="16 bytes"):
            Delays(shop.app, lambda: producer, TARGET, keys=wrong)


class Example:
    """The program of docs/clients/python, with a service and with a Celery whose broker is down."""

    def __init__(self, service: LocalService, monkeypatch: pytest.MonkeyPatch) -> None:
        self.service, self.is_down, self.forwarded = service, True, list[datetime]()
        monkeypatch.setattr("kafka.KafkaConsumer", lambda *_, **__: [])
        monkeypatch.setattr(
            "duewheel.client.DelayProducer", lambda topic, **_: service.producer(topic)
        )
        monkeypatch.setattr(Task, "apply_async", self._to_broker)
        self.program = runpy.run_path(str(EXAMPLE))
        service.consumer("orders")(self.program["forward"])

        @self.program["app"].task(name="shop.remind")  # type: ignore[untyped-decorator]
        def remind(order: str) -> str:
            return order

        self.remind = remind

    def _to_broker(self, *_: Any, **__: Any) -> None:
        if self.is_down:
            raise OperationalError("no connection")
        self.forwarded.append(self.service.now())


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Iterator[Example]:
    settings = {"timer": {"topics": ["orders.delayed"], "targets": ["*"]}}
    with LocalService.started(settings) as service:
        made = Example(service, monkeypatch)
        yield made
        made.program["app"].close()


def test_the_example_outlasts_an_outage_of_celery_s_broker(example: Example) -> None:
    example.remind.apply_async(["order-42"], countdown=60)
    example.service.advance("12h")
    assert example.service.records("orders.failed") == []
    example.is_down = False
    example.service.advance("61m")
    assert len(example.forwarded) == 1


def test_the_example_tries_an_unsigned_task_once(example: Example) -> None:
    """Else a stranger's tasks would be tried for as long as the broker may be down."""
    example.service.producer().send("orders", b"{}", key=b"order-42")
    example.service.advance("1m")
    (letter,) = example.service.records("orders.failed")
    assert letter.header("RETRY_REASON") == b"refused"
    assert letter.header("RETRY_ERROR") == b"celery.exceptions.SecurityError"
