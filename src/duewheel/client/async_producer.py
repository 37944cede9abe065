"""`AsyncDelayProducer`: the methods of `DelayProducer`, to be awaited.

    async with AsyncDelayProducer("orders.delayed", bootstrap_servers="localhost:9092") as producer:
        timer = await producer.schedule("orders", b"pay your order", key=b"order-42", delay="15m")
        await producer.cancel(timer.handle)

It contains a DelayProducer, so arguments, checks, headers, results and errors are the same. Nothing
that may block runs in the loop:

- One thread of the producer's own makes the calls, in the order in which the loop begins them. It
  hands a record to kafka-python and takes the next one: it waits for no acknowledgement, so
  thousands of calls can be open. kafka-python's thread completes them.
- A direct `send` may be the first to its topic. The loop's executor then waits for the topic's
  metadata: a topic that is missing delays only the sends to it.
- A cancel or reschedule whose reply is awaited may be the first. It then waits in the loop for the
  reader of the replies: a reply topic that cannot be read delays only such calls. A later call with
  the same id waits for it, and no other: a timer must not be cancelled by an earlier cancel.
- `flush` waits in the loop's executor, and so does `close` in the producer's thread.

A cancelled task loses its result only: a record that was handed over stays written. One that still
waits for the thread is not written. What it has begun in the executor continues, and the next task
waits for that: tasks with a time-out, however many, leave the executor to others.
"""

from __future__ import annotations

import asyncio
import functools
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any, Concatenate, ParamSpec, Self, TypeVar
from weakref import WeakValueDictionary

from kafka.errors import IllegalStateError

from duewheel.api.due_time import NonNullHeader
from duewheel.client.producer import DelayProducer, future_of
from duewheel.client.replies import ReplyReader

P = ParamSpec("P")
T = TypeVar("T")


def _awaited(
    method: Callable[Concatenate[DelayProducer, P], Future[T]],
) -> Callable[Concatenate[AsyncDelayProducer, P], Coroutine[Any, Any, T]]:
    """Makes a method that returns a future one that is awaited."""

    @functools.wraps(method)
    async def call(self: AsyncDelayProducer, /, *args: P.args, **kwargs: P.kwargs) -> T:
        self._opened()
        async with self._turn(kwargs.get("id") or kwargs.get("key")):
            producer = self._opened()  # it may have been closed meanwhile
            handed = self._hand_over(lambda: method(producer, *args, **kwargs))
        return await asyncio.wrap_future(await handed)

    return call


def _requested(
    method: Callable[Concatenate[DelayProducer, P], Future[T]],
) -> Callable[Concatenate[AsyncDelayProducer, P], Coroutine[Any, Any, T]]:
    """As `_awaited`, for requests with a reply: the reader of replies connects beforehand."""

    @functools.wraps(method)
    async def call(self: AsyncDelayProducer, /, *args: P.args, **kwargs: P.kwargs) -> T:
        replies = self._opened().replies if kwargs.get("reply", True) else None
        timer = args[0] if args else kwargs.get("timer")
        timer_topic = str(kwargs.get("timer_topic") or self.timer_topic)
        async with self._turn(timer), _expecting(replies, timer_topic):
            producer = self._opened()  # it may have been closed meanwhile
            sent = await self._hand_over(lambda: method(producer, *args, **kwargs))
        return await asyncio.wrap_future(sent)

    return call


@asynccontextmanager
async def _expecting(replies: ReplyReader | None, timer_topic: str) -> AsyncIterator[None]:
    """Has the replies read meanwhile, so that the call itself does not wait for their reader.

    Raises:
        KafkaUnavailable, ConfigError: as `ReplyReader.expect`.
    """
    if replies is None:
        yield
        return
    number, joined = replies.expect_soon(timer_topic)
    try:
        if joined is not None:
            await asyncio.wrap_future(joined)
        yield
    finally:
        replies.failed(number)  # the call itself has expected the reply, too


class AsyncDelayProducer:
    """See the module's head. Belongs to the loop that has started it; not thread-safe.

    `await start()` and `await close()`, or `async with`. Each `schedule`, `cancel`, `reschedule`
    and `send` ends once Kafka has acknowledged the record; `asyncio.gather` or a task group sends
    many at once. The replies to cancels are `await cancel.answer_async()`.

    Errors are those of DelayProducer. A producer that is not started, or is closed, raises
    `kafka.errors.IllegalStateError`, as kafka-python's does.
    """

    def __init__(self, timer_topic: str, **options: Any) -> None:
        """Connects nothing.

        Args:
            timer_topic: one of the topics in duewheel's `timer.topics`.
            options: as those of DelayProducer: `levels_ms`, `max_delay`, `reply_topic`, and those
                of `kafka.KafkaProducer`.
        """
        self.timer_topic = timer_topic
        self._open = functools.partial(DelayProducer, timer_topic, **options)
        self._calls = ThreadPoolExecutor(1, f"duewheel {timer_topic}")
        self._started = False
        self._producer: DelayProducer | None = None
        self._metadata: dict[str, asyncio.Future[Any]] = {}  # for topics' metadata, by topic
        self._order: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)  # of direct sends
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()  # by id

    schedule = _awaited(DelayProducer.schedule)
    cancel = _requested(DelayProducer.cancel)
    reschedule = _requested(DelayProducer.reschedule)

    async def start(self) -> Self:
        """Connects, as the constructor of DelayProducer. May be called once.

        Raises:
            ConfigError, KafkaUnavailable: as the constructor of DelayProducer.
        """
        if self._started:
            raise IllegalStateError("the producer was started before: make another one")
        self._started = True
        opening = self._calls.submit(self._open)
        try:
            self._producer = await asyncio.wrap_future(opening)
        except BaseException:
            opening.add_done_callback(_close_opened)  # it may still connect
            self._calls.shutdown(wait=False)
            raise
        return self

    async def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        headers: Iterable[NonNullHeader] | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> Any:
        """Sends as `DelayProducer.send`.

        Returns:
            kafka-python's RecordMetadata, once Kafka has acknowledged the record.
        """
        producer, given = self._opened(), list(headers or ())
        where = self.timer_topic if producer.delays(topic, given) else topic

        def write() -> Future[Any]:
            sent = producer.send(topic, value, key, given, partition, timestamp_ms)
            return future_of(f'record for "{topic}"', sent, lambda at: at)

        async with self._order[where]:  # fair, so that no send overtakes one that waits
            await asyncio.shield(self._described(producer, where))
            self._opened()  # it may have been closed meanwhile
            handed = self._hand_over(write)
        return await asyncio.wrap_future(await handed)

    async def flush(self, timeout_s: float | None = None) -> None:
        """Waits until the record of every call so far is acknowledged or has failed."""
        producer = self._opened()
        await self._hand_over(lambda: None)  # the calls before it have handed theirs over
        await asyncio.to_thread(producer.flush, timeout_s)

    async def close(self, timeout_s: float | None = None) -> None:
        """Flushes, and disconnects. Goes to its end even if the task that awaits it is cancelled.

        Calls whose record was handed over get their results.
        """
        producer, self._producer = self._producer, None
        if producer is not None:
            closing = self._hand_over(functools.partial(producer.close, timeout_s))
            self._calls.shutdown(wait=False)  # after what was submitted
            await asyncio.shield(closing)

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _opened(self) -> DelayProducer:
        if self._producer is None:
            raise IllegalStateError("the producer is not started, or is closed")
        return self._producer

    def _turn(self, name: Any) -> asyncio.Lock:
        """Returns the lock of the calls with an id: fair, so that they keep their order. A timer
        without an id may have its key as its id.
        """
        text = name.decode(errors="replace") if isinstance(name, bytes) else str(name)
        return self._turns.setdefault(text, asyncio.Lock())

    def _described(self, producer: DelayProducer, topic: str) -> asyncio.Future[Any]:
        """Returns what is done once kafka-python has the metadata of a topic, or fails."""
        described = self._metadata.get(topic)
        if described is None or (described.done() and _has_failed(described)):
            loop = asyncio.get_running_loop()
            described = loop.run_in_executor(None, producer.partitions_for, topic)
            described.add_done_callback(_has_failed)
            self._metadata[topic] = described
        return described

    def _hand_over(self, call: Callable[[], T]) -> asyncio.Future[T]:
        """Makes a call in the producer's thread, after those that were made before."""
        return asyncio.get_running_loop().run_in_executor(self._calls, call)


def _has_failed(ended: asyncio.Future[Any]) -> bool:
    """Whether it has no result; its error may then be lost without a log line."""
    return ended.cancelled() or ended.exception() is not None


def _close_opened(opening: Future[DelayProducer]) -> None:
    """Closes a producer that nobody will use."""
    if not opening.cancelled() and opening.exception() is None:
        opening.result().close()
