"""Records of timer topics that a command writes exactly once: the name of their source, and the
partition of each.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from duewheel.errors import ConfigError
from duewheel.kafka.ledger.new_records import NewRecord
from duewheel.schemas.columns import binary
from duewheel.schemas.hashing import key_hashes
from duewheel.schemas.wire.single_record import Header
from duewheel.wheel.target_rules import Target

_NAME = re.compile(r"[A-Za-z0-9._-]{1,200}")


def require_source_name(name: str) -> None:
    """Refuses a name of a source that cannot be a part of a key and of a transactional id.

    Raises:
        ConfigError: names it.
    """
    if not _NAME.fullmatch(name):
        raise ConfigError(f"{name!r} is no name: 1 to 200 of a-z A-Z 0-9 . _ -")


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
