"""Celery tasks that wait in a timer topic, not in a worker.

    app = Celery("shop", broker=..., task_cls=DelayedTask)
    delays = Delays(app, producer, target="celery.due", keys=[key])
                                            # producer() returns a DelayProducer; key: 32 bytes

    remind.apply_async([42], countdown=86_400, task_id="remind-42")     # as ever
    delays.revoke("remind-42")                                          # paid meanwhile

    for record in KafkaConsumer("celery.due", ...):                     # beside the workers
        delays.forward(record)
        consumer.commit()

A worker fetches a task with an `eta` or a `countdown` at once and keeps it, unacknowledged, until
it is due: many of them fill its memory, and a broker with a visibility time-out hands them out
again and again. Here such a task is a timer, also a retry with a countdown, or the first of a
chain. When it is due, `forward` gives it to Celery's broker. Tasks without eta and countdown are
Celery's alone.

The bodies are JSON, as Celery writes it. A body can name any task of the app, also in its links, so
each is signed (HMAC-SHA256, in the header SIGNATURE) with a key that only the programs of the app
have: who may write to the timer topic or the target can repeat a task, and run no other one.

Forwarding is at least once: a forwarder that is killed
between the two lines forwards the task once more, under the same task id. Not thread-safe beyond
its producer and its app.
"""

from __future__ import annotations

import hmac
import numbers
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from datetime import timedelta
from typing import Any

from celery import Celery, Task, uuid
from celery.exceptions import SecurityError
from celery.result import AsyncResult
from celery.utils.time import maybe_iso8601, maybe_make_aware
from kombu.utils.json import dumps, loads

from duewheel.client import Cancel, DelayProducer
from duewheel.errors import ConfigError

SIGNATURE = "CELERY_SIGNATURE"  # a header
_KEY_BYTES_MIN = 16
_ATTRIBUTE = "duewheel_delays"  # of the app


class Delays:
    """The timer topic of an app's delayed tasks; see the module's head."""

    def __init__(
        self,
        app: Celery,
        producer: Callable[[], DelayProducer],
        target: str,
        *,
        keys: Sequence[bytes],
        timeout_s: float = 30.0,
    ) -> None:
        """
        Args:
            app: its tasks are DelayedTasks, all or some of them.
            producer: returns this process's producer of the timer topic, the same each time. It is
                called where a task is written: a producer does not survive the fork of a worker.
            target: the topic of due tasks, which `forward` is given.
            keys: random secrets of the app, 16 bytes or more each. The first one signs new tasks,
                and tasks signed with any of them are forwarded: to change the key, give the new
                one first, and drop the old one when no task of before waits any more.
            timeout_s: for the acknowledgement of a task.

        Raises:
            ConfigError: there is no key, or a key is too short.
        """
        if not keys or min(map(len, keys)) < _KEY_BYTES_MIN:
            raise ConfigError(f"keys: give one or more of {_KEY_BYTES_MIN} bytes or longer")
        self._keys = tuple(keys)
        self._app = app
        self._producer = producer
        self._target = target
        self._timeout_s = timeout_s
        setattr(app, _ATTRIBUTE, self)

    def schedule(self, task: Task, task_id: str, body: dict[str, Any]) -> None:
        """Writes a task with an eta or a countdown, and waits until Kafka has acknowledged it.

        Args:
            task: one of the app's.
            task_id: the timer's id and key, too.
            body: "args", "kwargs", and "options" of `apply_async`.

        Raises:
            InvalidTimer: it is due too late for the service.
            KafkaError: Kafka has not acknowledged it.
        """
        options = dict(body["options"])
        eta, countdown = options.pop("eta", None), options.pop("countdown", None)
        when: dict[str, Any] = {"delay": timedelta(seconds=max(0, countdown or 0))}
        if eta is not None and not countdown:  # as in Celery, where a countdown replaces an eta
            when = {"deliver_at": maybe_make_aware(maybe_iso8601(eta), self._app.timezone)}
        if isinstance(
            options.get("expires"), numbers.Real
        ):  # counts from now, not from the due time
            options["expires"] = self._app.now() + timedelta(seconds=float(options["expires"]))
        text = dumps({**body, "task": task.name, "options": {**options, "task_id": task_id}})
        value = text.encode()
        headers = [(SIGNATURE, _signature(self._keys[0], value))]
        sent = self._producer().schedule(
            self._target, value, key=task_id.encode(), headers=headers, id=task_id, **when
        )
        sent.result(self._timeout_s)

    def forward(self, record: Any) -> AsyncResult:
        """Gives a due task to Celery's broker.

        Args:
            record: of the target topic, as a consumer without deserializers returns it.

        Raises:
            SecurityError: the record is not signed with one of the keys.
            NotRegistered: this app has no such task.
            TypeError: the task has other arguments than when it was written.
            OperationalError: Celery's broker does not take it: forward the record again.
        """
        given = dict(record.headers).get(SIGNATURE) or b""
        value = record.value or b""
        if not any(hmac.compare_digest(given, _signature(key, value)) for key in self._keys):
            raise SecurityError(
                f"the task at {record.topic}-{record.partition}@{record.offset} is not signed "
                "with one of the keys"
            )
        body = loads(value)
        task = self._app.tasks[body["task"]]
        return Task.apply_async(task, body["args"], body["kwargs"], **body["options"])

    def revoke(self, task_id: str) -> Future[Cancel]:
        """Cancels a task that is not due yet. Celery's own `revoke` is for one that is forwarded.

        Returns:
            As `DelayProducer.cancel`: the answer is `already_delivered` if it was too late.
        """
        return self._producer().cancel(task_id, key=task_id.encode())


def _signature(key: bytes, value: bytes) -> bytes:
    return hmac.digest(key, value, "sha256")


class DelayedTask(Task):  # type: ignore[misc]  # Celery brings no types
    """A task whose eta or countdown goes through the timer topic of its app's Delays."""

    abstract = True

    def apply_async(
        self,
        args: Any = None,
        kwargs: Any = None,
        task_id: str | None = None,
        producer: Any = None,
        link: Any = None,
        link_error: Any = None,
        shadow: str | None = None,
        **options: Any,
    ) -> AsyncResult:
        """As Celery's. Without Delays, in eager mode, or with neither eta nor countdown it is
        Celery's.

        Raises:
            TypeError: the arguments are not the task's. The forwarder, which serves every task,
                would raise it when the task is due.
        """
        delays = getattr(self.app, _ATTRIBUTE, None)
        waits = options.get("eta") is not None or options.get("countdown")
        if delays is None or not waits or self.app.conf.task_always_eager:
            return super().apply_async(
                args, kwargs, task_id, producer, link, link_error, shadow, **options
            )
        if self.typing:
            self.__header__(*(args or ()), **(kwargs or {}))  # Celery's check
        task_id = task_id or uuid()
        given = {"link": link, "link_error": link_error, "shadow": shadow, **options}
        kept = {name: value for name, value in given.items() if value is not None}
        delays.schedule(
            self, task_id, {"args": args or [], "kwargs": kwargs or {}, "options": kept}
        )
        return self.AsyncResult(task_id)
