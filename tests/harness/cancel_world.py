"""A shard on real files whose timers are cancelled, and the outcomes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from tests.harness.local_world import NOW_MS, PRECISION_MS, LocalWorld, ring
from tests.harness.timer_rows import P0, TimerRow, answer_value, chases_in

from duewheel.checkpoints.process_role import Role
from duewheel.schemas.batches import ANY_OFFSET, TopicPartition
from duewheel.wheel.append.cancel_lookup import CancelLimits
from duewheel.wheel.storage.message_store import MessageStore
from duewheel.wheel.storage.timer_log import Records

REPLIES = "replies"


class CancelWorld(LocalWorld):
    """A started shard that replies to cancels, and what its publisher has kept."""

    def __init__(self, path: Path, slots: int = 64, **settings: Any) -> None:
        super().__init__(path, ring(slots), **{"reply_topic": REPLIES, **settings})
        self.drain()  # Kafka says where the partitions end

    def lose_files(self, path: Path, reads_from: Mapping[TopicPartition, int]) -> None:
        """Both are killed, and others take over in an empty directory.

        Args:
            path: the directory.
            reads_from: offsets by the time from which timers are read again.
        """
        self.kill()
        self.shard = self.beside(path)
        self.shard.offsets_at = lambda _: dict(reads_from)
        self.shard.start_dequeue(take_over=True)
        self.shard.start_ingest()

    def limit_lookups(self, **limits: int) -> None:
        """Restarts ingest, with other fields of CancelLimits."""
        self.shard.kill(Role.INGEST)
        self.shard.cancel_limits = CancelLimits(**limits)
        self.shard.start_ingest()

    def answers(self) -> list[tuple[str, str]]:
        """Source and word of each, in the order in which they have left."""
        return [(value["source"], value["answer"]) for value in self.values()]

    def values(self) -> list[dict[str, str]]:
        found = []
        for deliveries, _ in self.publisher.committed:
            if deliveries is None:
                continue
            replies = np.flatnonzero(deliveries.answer & ~deliveries.is_copy).tolist()
            found += [answer_value(deliveries.key_value[row].as_py()) for row in replies]
        return found

    def chases(self) -> list[TimerRow]:
        """All that have left so far."""
        committed = [d for d, _ in self.publisher.committed if d is not None]
        return [chase for deliveries in committed for chase in chases_in(deliveries)]

    def answered(self, partition: TopicPartition = P0) -> int:
        """`a`, as committed last."""
        return self.publisher.committed[-1][1].partitions[partition].replied_below


def timer(offset: int, slot: int, *, partition: int = 0, **more: Any) -> TimerRow:
    return TimerRow(partition, offset, NOW_MS + slot * PRECISION_MS, timer_id=b"a", **more)


def cancel(
    offset: int, *, partition: int = 0, timer_id: bytes = b"a", named: int = ANY_OFFSET
) -> TimerRow:
    return TimerRow(partition, offset, 0, timer_id=timer_id, request="cancel", named=named)


def count_messages_read(
    monkeypatch: pytest.MonkeyPatch, method: Literal["read", "read_ids"] = "read_ids"
) -> list[int]:
    """Returns a list that gets the number of messages of each such read, from now on."""
    read: list[int] = []
    original: Callable[..., Any] = getattr(MessageStore, method)

    def counted(self: MessageStore, hour: int, records: Records) -> Any:
        read.append(len(records))
        return original(self, hour, records)

    monkeypatch.setattr(MessageStore, method, counted)
    return read
