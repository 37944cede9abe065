"""Programs that write to the timer topic in transactions: one transactional id each.

Their records are those of the real client code: the real contract reads due time, target and id
from their headers, and the judges compare deliveries with what was written.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
from tests.harness.source_table import HEADERS, read_records
from tests.simulation.contract_check import contract
from tests.simulation.kafka_model import Kafka
from tests.simulation.timers import TARGETS, TOPIC, Content, Copy, Timer

from duewheel.schemas.columns import binary
from duewheel.schemas.hashing import key_hashes
from duewheel.schemas.header_names import RECURRENCE, REQUEST
from duewheel.schemas.request.parser import parse

CONSUMER, SEEDS = 3, 4  # producers
TIMEOUT_MS = 15_000

Header = tuple[str, bytes]


class TransactionalClient:
    """What Kafka has of a transactional id.

    Attributes:
        epoch: of the newest process; one of before is fenced.
    """

    def __init__(self, kafka: Kafka, producer: int) -> None:
        self.kafka, self.epoch = kafka, 0
        self._producer = producer
        self._offsets: dict[int, list[int]] = {}
        self._began_ms = 0

    @property
    def is_open(self) -> bool:
        """Whether a transaction is open that has written to the timer topic."""
        return bool(self._offsets)

    def begin(self) -> None:
        """A transaction begins."""
        assert not self.is_open
        self._began_ms = self.kafka.clock.true_ms

    def fence(self) -> int:
        """A process opens the id: an open transaction ends. Returns its epoch."""
        self.finish(commit=False)
        self.epoch += 1
        return self.epoch

    def end_forgotten(self) -> bool:
        """The coordinator ends a transaction that has run into its time-out."""
        late = self.kafka.clock.true_ms - self._began_ms > TIMEOUT_MS
        if self.is_open and late:
            self.fence()
            return True
        return False

    def write(
        self, number: int, key: bytes | None, value: bytes | None, headers: Sequence[Header]
    ) -> Timer:
        """A timer, in the open transaction."""
        partition, now_ms = self.kafka.partitions[number], self.kafka.clock.true_ms
        timer = _read(number, partition.end, now_ms, key, value, headers)
        self._append(timer)
        return timer

    def cancel(self, number: int, timer_id: bytes) -> Timer:
        """A cancel, outside of transactions."""
        partition, now_ms = self.kafka.partitions[number], self.kafka.clock.true_ms
        offset = partition.end
        self.kafka.write(number, now_ms, now_ms, rejected=False, named=timer_id, request="cancel")
        written = partition.records[offset]
        assert written is not None
        return written.timer

    def _append(self, timer: Timer) -> None:
        now_ms = self.kafka.clock.true_ms
        copy = Copy(timer, timer.origin, now_ms, 0)
        self.kafka.partitions[timer.partition].append(copy, now_ms, self._producer)
        self._offsets.setdefault(timer.partition, []).append(timer.origin)

    def finish(self, *, commit: bool) -> None:
        """End the transaction, if one is open."""
        ended, self._offsets = self._offsets, {}
        now_ms, partitions = self.kafka.clock.true_ms, self.kafka.partitions
        for number, offsets in ended.items():
            for copy in partitions[number].finish(offsets, now_ms, commit=commit):
                if commit:
                    self.kafka.history.written(copy)


def partition_of(key: bytes, count: int) -> int:
    """As Kafka's clients choose it."""
    return int(key_hashes(binary([key]))[0]) % count


def _read(
    number: int,
    offset: int,
    now_ms: int,
    key: bytes | None,
    value: bytes | None,
    headers: Sequence[Header],
) -> Timer:
    """A record by the real contract."""
    row = {
        "topic": pa.array([TOPIC]),
        "partition": pa.array([number], pa.int32()),
        "offset": pa.array([offset], pa.int64()),
        "timestamp": pa.array([now_ms * 1000], pa.timestamp("us", "UTC")),
        "key": pa.array([key], pa.binary()),
        "value": pa.array([value], pa.binary()),
        "headers": pa.array([headers], HEADERS),
    }
    found = parse(read_records(pa.table(row)), contract())
    assert not found.rejected.any(), f"{headers} are refused"
    own = tuple((name.encode(), text) for name, text in headers if name not in REQUEST)
    of = tuple((n.encode(), text) for n, text in headers if REQUEST.get(n) in RECURRENCE)
    target = TARGETS.index(found.targets[int(found.target[0])])
    content = Content(key, value, own, target, int(found.target_partition[0]), of)
    (timer_id,) = found.timer_id.to_pylist()
    due_ms = int(found.due_ms[0])
    request = "reschedule" if found.cancels[0] else ""
    return Timer(
        number, offset, due_ms, rejected=False, named=timer_id, request=request, content=content
    )
