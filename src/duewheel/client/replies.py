"""Reads the replies to cancels and reschedules from the reply topic.

One reader serves all requests of a producer, in a thread of its own and without a consumer group:

    expect    before a request is written: read from the topic's present end, or from before it
    written   the request's record is acknowledged: its reply names the record in TIMER_SOURCE
    failed    the request was not written

It reads only while requests are open. Memory is bounded:

- A request waits for its reply only while the caller holds its future.
- A reply may come before the acknowledgement of its request. Unclaimed replies are kept while a
  request is open that was expected before they came. Reading pauses at _EARLY_MAX of them. Replies
  for timer topics to which no request is open are others', and not kept.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from functools import partial
from itertools import count
from weakref import WeakValueDictionary

from duewheel.deadline import Deadline
from duewheel.errors import INIT_MAKES_IT, DuewheelError, KafkaUnavailable
from duewheel.kafka.connect.clients import KafkaClients
from duewheel.kafka.log.reader import LogReader
from duewheel.kafka.log.records import Record
from duewheel.schemas.header_names import ANSWER, SOURCE, Answer
from duewheel.threads import Worker

_STOP_S = 5.0
_EARLY_MAX = 10_000  # unclaimed replies at which reading pauses
_FETCH_BYTES = 256 << 10  # of one poll: about a thousand replies, above which it pauses late
_STALLED_S = 30.0  # to connect, and to find the end of the topic
_WORDS = {word.encode(): word for word in Answer}


class ReplyReader:
    """See the module's head. Thread-safe.

    Example:
        request = reader.expect("orders")
        …                                   # write the cancel; its record is "orders-0@17"
        reader.written(request, "orders-0@17").result(timeout=10)
    """

    def __init__(
        self,
        client: KafkaClients,
        topic: str,
        early_max: int = _EARLY_MAX,
        fetch_bytes: int = _FETCH_BYTES,
    ) -> None:
        """Connects nothing.

        Args:
            client: of the cluster.
            topic: the reply topic.
            early_max: unclaimed replies at which reading pauses.
            fetch_bytes: read at a time, unless a record batch is larger.
        """
        self._client = client
        self._topic = topic
        self._early_max, self._fetch_bytes = early_max, fetch_bytes
        self._thread: Worker | None = None
        self._changed = threading.Condition()  # guards what follows
        self._closed = False
        self._reading = False  # and from a position at which no open request's reply is missed
        self._joining: list[Future[None]] = []  # requests that wait for that
        self._numbers = count()
        # In the order of their numbers. A dict reaches its first one past all that were removed.
        self._unwritten = OrderedDict[int, str]()  # with their timer topics
        self._early: OrderedDict[str, tuple[int, Answer]] = (
            OrderedDict()
        )  # with the newest request then
        self._failure = DuewheelError("not reading")  # for requests that a failure has closed
        self._waiting: WeakValueDictionary[str, Future[Answer]] = WeakValueDictionary()

    def expect(self, timer_topic: str) -> int:
        """Be ready for the reply to a request that is about to be written to a timer topic.

        Blocks while the reader connects, or finds the end of the topic; that is the first time, and
        whenever no request was open.

        Returns:
            The request's number, for `written` or `failed`.

        Raises:
            KafkaUnavailable: the end of the topic was not found in time.
            ConfigError: there is no such topic, or no right to read it.
        """
        number, joined = self.expect_soon(timer_topic)
        try:
            if joined is not None:
                joined.result()
        except BaseException:
            self.failed(number)
            raise
        return number

    def expect_soon(self, timer_topic: str) -> tuple[int, Future[None] | None]:
        """As `expect`, without blocking: also returns a future that is done, or fails, once the
        request may be written; None if it may be now. The number is valid from now on.
        """
        with self._changed:
            number = self._numbered(timer_topic)
            if self._reading:
                return number, None
            joined: Future[None] = Future()
            joined.set_running_or_notify_cancel()  # a cancelled one could not be settled
            self._joining.append(joined)
            if self._thread is None:
                self._thread = Worker("replies", self._run)
                self._thread.start()
            self._changed.notify_all()
            return number, joined

    def written(self, number: int, source: str) -> Future[Answer]:
        """The request's record is `source`. Returns the future of its reply, awaited while
        the caller holds that future.
        """
        reply: Future[Answer] = Future()
        reply.set_running_or_notify_cancel()  # a cancelled one could not be set
        with self._changed:
            early = self._early.get(source)
            if early is not None:
                reply.set_result(early[1])
            elif number in self._unwritten:
                self._waiting[source] = reply
            else:
                reply.set_exception(self._failure)
            self._forget(number)
        return reply

    def failed(self, number: int) -> None:
        """The request was not written, or its offset is unknown."""
        with self._changed:
            self._forget(number)

    def close(self, timeout_s: float | None = None) -> None:
        """Stop reading. Open requests fail. Waits `timeout_s` for the thread, `_STOP_S` at most."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(_STOP_S if timeout_s is None else min(timeout_s, _STOP_S))
        self._fail(DuewheelError("the producer was closed before the reply came"))

    # ---- under the lock ------------------------------------------------------------------------

    def _numbered(self, timer_topic: str) -> int:
        """Opens a request."""
        if self._closed:
            raise DuewheelError("the producer is closed")
        number = next(self._numbers)
        self._unwritten[number] = timer_topic
        return number

    def _forget(self, number: int) -> None:
        """Close the request, and drop the replies that only it could claim."""
        self._unwritten.pop(number, None)
        first = next(iter(self._unwritten), None)
        while self._early and (first is None or next(iter(self._early.values()))[0] < first):
            self._early.popitem(last=False)
        self._changed.notify_all()

    def _open(self) -> bool:
        return bool(self._unwritten or self._waiting)

    # ---- the thread ----------------------------------------------------------------------------

    def _run(self) -> None:
        with LogReader(self._client, [self._topic], partial(Deadline, _STALLED_S)) as reader:
            while self._await_request():
                try:
                    positions = self._ends(reader)
                    self._begin()
                    while self._goes_on():
                        for records in reader.poll(positions, self._fetch_bytes):
                            self._take(records)
                except Exception as error:  # noqa: BLE001 - the futures must fail with it
                    self._fail(self._explained(error))
                    reader.close()

    def _await_request(self) -> bool:
        """Wait for the first open request; False: closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._joining)
            return not self._closed

    def _ends(self, reader: LogReader) -> dict[tuple[str, int], int]:
        return reader.ends(reader.existing("reply topic", INIT_MAKES_IT), committed=True)

    def _begin(self) -> None:
        with self._changed:
            self._reading = True
            self._settle(None)

    def _goes_on(self) -> bool:
        """Whether to poll again. Reading ends once no request is open: the next `expect` then waits
        for a new position at the end.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._closed or len(self._early) < self._early_max)
            if self._closed or not self._open():
                self._reading = False
            return self._reading

    def _take(self, records: Iterable[Record]) -> None:
        replies = list(replies_in(records))
        with self._changed:
            newest, topics = next(reversed(self._unwritten), 0), set(self._unwritten.values())
            for source, word in replies:
                waiting = self._waiting.pop(source, None)
                if waiting is not None:
                    waiting.set_result(word)
                elif source.rpartition("-")[0] in topics:  # before the partition
                    self._early.setdefault(source, (newest, word))

    def _explained(self, error: Exception) -> DuewheelError:
        if isinstance(error, DuewheelError):
            return error
        text = f"read {self._topic}: {self._client.explain(error)}"
        return KafkaUnavailable(f"Kafka at {self._client.address}: {text}")

    def _fail(self, error: DuewheelError) -> None:
        """Fail all requests: their replies may have been missed."""
        with self._changed:
            self._reading = False
            self._failure = error
            self._settle(error)
            self._unwritten.clear()
            self._early.clear()
            for waiting in list(self._waiting.values()):
                waiting.set_exception(error)
            self._waiting.clear()

    def _settle(self, error: DuewheelError | None) -> None:
        for joined in self._joining:
            if error is None:
                joined.set_result(None)
            else:
                joined.set_exception(error)
        self._joining.clear()


def replies_in(records: Iterable[Record]) -> Iterator[tuple[str, Answer]]:
    """Source and word of those records that are replies; others may lie there, too."""
    for record in records:
        headers = dict(record.headers)  # of several with a name the last one counts
        source, word = headers.get(SOURCE), headers.get(ANSWER)
        if source and word in _WORDS:
            yield source.decode(errors="replace"), _WORDS[word]
