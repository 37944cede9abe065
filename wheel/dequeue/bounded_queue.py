"""A queue between two threads, bounded in records and in bytes.

Without the bounds a stage that runs ahead would fill the memory with messages.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import Generic, TypeVar

T = TypeVar("T")


class QueueClosed(Exception):
    """Raised in the stages of a queue that was closed: its items are dropped, each stage ends."""


class BoundedQueue(Generic[T]):
    """A FIFO queue, bounded by the records and bytes of its items. Thread-safe.

    An empty queue takes an item of any size; otherwise one large item would block it for ever.

    Example:
        queue.put(chunk, len(chunk), chunk.stored_bytes)    # one thread, for each chunk
        queue.end()
        while (chunk := queue.get()) is not None: ...       # the other
    """

    def __init__(self, records_max: int, bytes_max: int) -> None:
        self._bounds = (records_max, bytes_max)
        self._items: deque[tuple[T, int, int]] = deque()
        self._ended = False
        self._error: BaseException | None = None
        self._closed = False
        self._changed = threading.Condition()

    def put(self, item: T, records: int, size: int) -> None:
        """Appends an item of `records` and `size` bytes, once it fits.

        Raises:
            QueueClosed: the queue was closed, before or meanwhile.
        """
        with self._changed:
            self._wait_for_room(records, size)
            self._items.append((item, records, size))
            self._changed.notify_all()

    def wait_for_room(self, records: int, size: int) -> None:
        """Waits until an item of that size fits; with a single putting thread it then stays so.

        For items that take their memory before they are complete.

        Raises:
            QueueClosed: the queue was closed, before or meanwhile.
        """
        with self._changed:
            self._wait_for_room(records, size)

    def end(self, error: BaseException | None = None) -> None:
        """Ends the queue after its last item, perhaps with an error."""
        with self._changed:
            self._ended, self._error = True, error
            self._changed.notify_all()

    def get(self) -> T | None:
        """Waits for the next item; returns None after the last one.

        Raises:
            QueueClosed: the queue was closed, before or meanwhile.
            BaseException: the error of the end, at each call after the last item.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._items or self._ended)
            if self._closed:
                raise QueueClosed
            if self._items:
                item, _, _ = self._items.popleft()
                self._changed.notify_all()
                return item
            if self._error is not None:
                raise self._error
            return None

    def close(self) -> None:
        """Drops all items, wakes the waiting stages, and closes the queue for good."""
        with self._changed:
            self._closed = True
            self._items.clear()
            self._changed.notify_all()

    def _wait_for_room(self, records: int, size: int) -> None:
        self._changed.wait_for(lambda: self._closed or self._fits(records, size))
        if self._closed:
            raise QueueClosed

    def _fits(self, records: int, size: int) -> bool:
        records_max, bytes_max = self._bounds
        return not self._items or (
            records + sum(count for _, count, _ in self._items) <= records_max
            and size + sum(count for _, _, count in self._items) <= bytes_max
        )
