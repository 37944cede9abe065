"""Deferred calls of a Django project, with real transactions on SQLite."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from types import SimpleNamespace
from typing import Any

import django
import pytest
from django.conf import settings
from django.db import connection, transaction

if not settings.configured:
    memory = {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}
    settings.configure(DATABASES={"default": memory}, USE_TZ=True)
    django.setup()

from duewheel.adapters.django import DeferredCalls, UnknownCall
from duewheel.errors import ConfigError, InvalidTimer
from duewheel.testing.service import LocalService
from duewheel.testing.service_start import START

TARGET = "shop.calls"


class DjangoShop:
    """A project with a deferred function, and the consumer of due calls.

    Attributes:
        calls: arguments of each call, and whether it was made in a transaction.
    """

    def __init__(self, service: LocalService, **options: Any) -> None:
        self.service, self.calls = service, list[tuple[Any, ...]]()
        producer = service.producer()
        self.deferred = DeferredCalls(lambda: producer, TARGET, **options)
        service.consumer(TARGET)(self.deferred.handle)

        @self.deferred
        def expire(*order: Any, **more: Any) -> str:
            """Ends an order."""
            self.calls.append((*order, more, connection.in_atomic_block))
            return "expired"

        self.expire = expire


@pytest.fixture
def shop(duewheel: LocalService) -> Iterator[DjangoShop]:
    yield DjangoShop(duewheel)
    connection.close()


def test_a_committed_call_is_made_when_it_is_due(shop: DjangoShop) -> None:
    with transaction.atomic():
        shop.expire.after("24h", 42, reason="unpaid")
        assert shop.service.pending() == []
    (timer,) = shop.service.pending(TARGET)
    assert timer.due_ms == shop.service.now_ms() + 86_400_000
    shop.service.advance("23h")
    assert shop.calls == []
    shop.service.advance("1h")
    assert shop.calls == [(42, {"reason": "unpaid"}, True)]


def test_after_a_rollback_nothing_is_written(shop: DjangoShop) -> None:
    with transaction.atomic():
        shop.expire.after("24h", 42)
        transaction.set_rollback(True)
    shop.service.advance("2d")
    assert shop.calls == []


def test_outside_of_a_transaction_it_is_written_at_once(shop: DjangoShop) -> None:
    shop.expire.at(START + timedelta(hours=2), 42)
    assert len(shop.service.pending()) == 1
    shop.service.advance("2h")
    assert shop.calls == [(42, {}, True)]


def test_without_on_commit_it_is_written_before(duewheel: LocalService) -> None:
    shop = DjangoShop(duewheel, on_commit=False)
    with transaction.atomic():
        shop.expire.after("24h", 42)
        transaction.set_rollback(True)
    assert len(duewheel.pending()) == 1
    connection.close()


def test_a_call_is_cancelled_by_its_id(shop: DjangoShop) -> None:
    shop.expire.after("24h", 42, id="expire 42")
    shop.expire.after("24h", 43, id="expire 43")
    with transaction.atomic():
        shop.expire.cancel("expire 42")
        assert len(shop.service.pending()) == 2
    shop.service.advance("2d")
    assert shop.calls == [(43, {}, True)]


def test_a_function_that_fails_is_rolled_back_and_called_again(shop: DjangoShop) -> None:
    with connection.cursor() as cursor:
        cursor.execute("CREATE TABLE paid (number integer)")
    attempts = []

    @shop.deferred
    def pay() -> None:
        with connection.cursor() as cursor:
            cursor.execute("INSERT INTO paid VALUES (42)")
        attempts.append(shop.service.now())
        if len(attempts) == 1:
            raise OSError("the bank does not answer")

    pay.after("1h")
    with pytest.raises(OSError, match="bank"):
        shop.service.advance("1h")
    shop.service.advance("1h")
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM paid")
        assert cursor.fetchone() == (1,)


def test_arguments_are_json_as_django_writes_it(shop: DjangoShop) -> None:
    shop.expire.after("1h", Decimal("9.90"), datetime(2027, 1, 15, 8, tzinfo=UTC))
    shop.service.advance("1h")
    assert shop.calls == [("9.90", "2027-01-15T08:00:00Z", {}, True)]
    with pytest.raises(TypeError):
        shop.expire.after("1h", object())
    with pytest.raises(InvalidTimer):
        shop.expire.after("41d", 42)


def test_a_decorated_function_can_be_called_as_before(shop: DjangoShop) -> None:
    assert shop.expire(42) == "expired"
    assert shop.expire.__doc__ == "Ends an order."
    assert shop.calls == [(42, {}, False)]


def test_an_own_argument_may_be_named_like_those_of_after(shop: DjangoShop) -> None:
    shop.expire.after("1h", 42, delay="one", instant="two", self="three")
    shop.service.advance("1h")
    assert shop.calls == [(42, {"delay": "one", "instant": "two", "self": "three"}, True)]


def test_a_function_whose_argument_would_be_taken_as_the_timer_s_id_is_refused(
    shop: DjangoShop,
) -> None:
    def expire_one(id: int) -> None: ...
    def expire_other(*, id: int) -> None: ...
    def expire_by_position(id: int, /) -> None: ...

    for refused in (expire_one, expire_other):
        with pytest.raises(ConfigError, match="argument `id`, which is the timer's"):
            shop.deferred(refused)
    shop.deferred(expire_by_position)


def test_two_functions_of_one_name_are_refused(shop: DjangoShop) -> None:
    """Calls of the first one would reach the second."""

    def made(number: int) -> Any:
        def expire() -> int:
            return number

        return expire

    assert shop.deferred(made(1))() == 1
    with pytest.raises(ConfigError, match=r"made\.<locals>\.expire is decorated"):
        shop.deferred(made(2))


def test_no_other_function_can_be_named(shop: DjangoShop) -> None:
    call = {"function": "os.system", "args": ["true"], "kwargs": {}}
    with pytest.raises(UnknownCall, match=r"os\.system is no deferred function"):
        shop.deferred.handle(SimpleNamespace(value=json.dumps(call).encode()))


@pytest.mark.parametrize(
    "value",
    [
        *(None, b"", b"\xff", b"null", b"[]", b"{}", b"[" * 100_000),
        b'{"function": ["expire"], "args": [], "kwargs": {}}',
        b'{"function": "expire", "args": {}, "kwargs": {}}',
        b'{"function": "expire", "args": [], "kwargs": []}',
    ],
)
def test_what_is_no_call_is_told_from_a_function_that_fails(
    shop: DjangoShop, value: bytes | None
) -> None:
    with pytest.raises(UnknownCall, match="no deferred call"):
        shop.deferred.handle(SimpleNamespace(value=value))
