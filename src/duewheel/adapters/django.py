"""Functions of a Django project that are called later, if the transaction commits.

    deferred = DeferredCalls(producer, target="shop.calls")   # producer() returns a DelayProducer

    @deferred
    def expire(order_id):
        Order.objects.filter(pk=order_id, paid=False).update(state="expired")

    with transaction.atomic():
        order.save()
        expire.after("24h", order.pk, id=f"expire-{order.pk}")
    expire.cancel(f"expire-{order.pk}")          # paid meanwhile

    for record in KafkaConsumer("shop.calls", ...):     # in a management command
        deferred.handle(record)
        consumer.commit()

A call is a timer: the function's name and its arguments as JSON, written once the transaction has
committed; after a rollback nothing is written. A process that is killed between the commit and the
acknowledgement loses the call: where that counts, give `on_commit=False`, which writes it before
the commit, and let the function check the state that it finds.

`handle` calls the function in a transaction of its own, at least once: a consumer that is killed
before its commit calls it again. A record can name no other function than the decorated ones, whose
modules the consumer has imported. Thread-safe.
"""

from __future__ import annotations

import functools
import inspect
import json
import uuid
from collections.abc import Callable
from concurrent.futures import Future
from datetime import datetime, timedelta
from typing import Any, Generic, ParamSpec, TypeVar

from django.core.serializers.json import DjangoJSONEncoder
from django.db import close_old_connections, transaction

from duewheel.client import DelayProducer
from duewheel.errors import ConfigError

_BY_KEYWORD = {inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY}

P = ParamSpec("P")
T = TypeVar("T")


class UnknownCall(LookupError):
    """The record is no call, or no function of its name is decorated in this process."""


class DeferredCalls:
    """The functions that are called later through one target topic; see the module's head."""

    def __init__(
        self,
        producer: Callable[[], DelayProducer],
        target: str,
        *,
        using: str | None = None,
        on_commit: bool = True,
        timeout_s: float = 30.0,
    ) -> None:
        """
        Args:
            producer: returns this process's producer of the timer topic, the same each time. It is
                called where a call is written: a producer does not survive the fork of a server.
            target: the topic of due calls, which `handle` is given.
            using: the database of the transactions; None: the default one.
            on_commit: whether calls are written after the commit, or at once.
            timeout_s: for the acknowledgement of a call.
        """
        self._producer = producer
        self.target = target
        self._using = using
        self._on_commit = on_commit
        self._timeout_s = timeout_s
        self._functions: dict[str, Callable[..., Any]] = {}

    def __call__(self, function: Callable[P, T]) -> DeferredFunction[P, T]:
        """Decorates a function of a module: it can then be called later, and at once as before.

        Raises:
            ConfigError: it has a keyword argument `id`, which `after` would take as the timer's; or
                another function of the same module and name is decorated, which calls would reach.
        """
        name = f"{function.__module__}.{function.__qualname__}"
        parameter = inspect.signature(function).parameters.get("id")
        if parameter is not None and parameter.kind in _BY_KEYWORD:
            raise ConfigError(f"{name} has an argument `id`, which is the timer's: rename it")
        if name in self._functions:
            raise ConfigError(f"another function {name} is decorated: give this one its own name")
        self._functions[name] = function
        return DeferredFunction(self, name, function)

    def write(self, request: Callable[[DelayProducer], Future[Any]]) -> None:
        """Makes a request of the producer once the transaction has committed, and waits for Kafka.

        Args:
            request: returns the future of its acknowledgement.
        """

        def send() -> None:
            request(self._producer()).result(self._timeout_s)

        if self._on_commit:
            transaction.on_commit(send, using=self._using)
        else:
            send()

    def handle(self, record: Any) -> None:
        """Makes a due call, in a transaction.

        Args:
            record: of the target topic, as a consumer without deserializers returns it.

        Raises:
            UnknownCall: nothing was called.
            Exception: the function's own; its transaction is rolled back.
        """
        name, args, kwargs = _call_in(record)
        if name not in self._functions:
            raise UnknownCall(f"{name} is no deferred function of this process")
        close_old_connections()
        with transaction.atomic(using=self._using):
            self._functions[name](*args, **kwargs)


def _call_in(record: Any) -> tuple[str, list[Any], dict[str, Any]]:
    """Reads the call of a record; another writer of the topic can write anything.

    Raises:
        UnknownCall: it has none.
    """
    try:
        call = json.loads(record.value or b"")
    except (ValueError, RecursionError):
        call = None
    match call:
        case {"function": str(name), "args": list(args), "kwargs": dict(kwargs)}:
            return name, args, kwargs
    raise UnknownCall("the record is no deferred call")


class DeferredFunction(Generic[P, T]):
    """A function, and how it is called later."""

    def __init__(self, calls: DeferredCalls, name: str, function: Callable[P, T]) -> None:
        self._calls, self._name, self._function = calls, name, function
        functools.update_wrapper(self, function)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> T:
        """Calls it at once."""
        return self._function(*args, **kwargs)

    def after(
        self, delay: timedelta | str, /, *args: Any, id: str | None = None, **kwargs: Any
    ) -> str:
        """Calls it later: `delay` is a timedelta, or text such as "24h".

        Args:
            delay: counts from the write.
            args, kwargs: values for DjangoJSONEncoder. Dates and decimals arrive as text.
            id: for `cancel`; by default a random one.

        Returns:
            The id.
        """
        return self._schedule(id, args, kwargs, delay=delay)

    def at(self, instant: datetime, /, *args: Any, id: str | None = None, **kwargs: Any) -> str:
        """Calls it at an instant, as `after`: a datetime with a zone."""
        return self._schedule(id, args, kwargs, deliver_at=instant)

    def cancel(self, id: str) -> None:
        """Cancels the pending calls with this id, once the transaction has committed."""
        self._calls.write(lambda producer: producer.cancel(id, key=id.encode(), reply=False))

    def _schedule(
        self, id: str | None, args: tuple[Any, ...], kwargs: dict[str, Any], **when: Any
    ) -> str:
        name = id or uuid.uuid4().hex
        call = {"function": self._name, "args": args, "kwargs": kwargs}
        value = json.dumps(call, cls=DjangoJSONEncoder).encode()
        target, key = self._calls.target, name.encode()
        self._calls.write(lambda made: made.schedule(target, value, key=key, id=name, **when))
        return name
