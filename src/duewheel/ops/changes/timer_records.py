"""Records of timer topics that a command writes exactly once, and the partition of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from duewheel.kafka.ledger.new_records import NewRecord
from duewheel.schemas.columns import binary
from duewheel.schemas.hashing import key_hashes
from duewheel.schemas.wire.single_record import Header
from duewheel.wheel.target_rules import Target


@dataclass(frozen=True, slots=True)
class TimerRecord:
    """A record of a timer topic."""

    timer_topic: str
    key: bytes | None
    value: bytes | None
    headers: Sequence[Header]
    partition: int | None  # modulo the partitions of the timer topic; None: by `route`
    partitions: int | None  # `partition` counts only if the timer topic has as many; None: always
    route: bytes  # their hash chooses the partition

    def partition_of(self, target: Target, route_hash: int) -> int:
        """Its partition of the timer topic."""
        count = target.partitions
        if not count or self.partition is None or self.partitions not in {None, count}:
            return target.partition_of(route_hash, 0)
        return self.partition % count


def new_records(
    named: Sequence[tuple[bytes, TimerRecord]], targets: Mapping[str, Target]
) -> list[NewRecord]:
    """Chooses the partition of each record; its name is that of its source."""
    hashes = key_hashes(binary(record.route for _, record in named)).tolist()
    written = []
    for (name, record), route_hash in zip(named, hashes, strict=True):
        topic = record.timer_topic
        partition = record.partition_of(targets[topic], route_hash)
        content = record.key, record.value, record.headers
        written.append(NewRecord(name, topic, partition, *content))
    return written
