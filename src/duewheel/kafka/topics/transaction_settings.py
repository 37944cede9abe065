"""The settings of a topic that no transaction survives.

A broker writes a marker into each partition of a transaction that ends. It checks the marker's
timestamp like a record's, and appends it like one. If it refuses a marker, Kafka does not try
again: the transaction stays in PrepareAbort or PrepareCommit, and its transactional id is blocked
until another broker becomes its coordinator, also after the setting is corrected. So one topic
would stop a shard.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

# A marker gets its time a moment before the broker checks it: in this span that host may stall, or
# its clock may step.
SPAN_MIN_MS = 5_000
_TYPE = "message.timestamp.type"
_TIMESTAMP_BOUNDS = (
    "message.timestamp.before.max.ms",
    "message.timestamp.after.max.ms",
    "message.timestamp.difference.max.ms",  # bounds both in Kafka before 4.0
)
# An index without room for an entry, of 12 bytes at most, takes no append, and so no marker.
_LEAST = dict.fromkeys(_TIMESTAMP_BOUNDS, SPAN_MIN_MS) | {"segment.index.bytes": 64}
USUAL = 3_600_000  # harmless for each of them
NAMES = (_TYPE, *_LEAST)


class Unsurvivable(NamedTuple):
    """A setting, its value, and the least value that is harmless."""

    name: str
    value: str
    least: int


def unsurvivable(config: Mapping[str, str]) -> Unsurvivable | None:
    """The first setting that a transaction may not survive. A setting that may not be read is taken
    to be harmless.
    """
    exempt = _TIMESTAMP_BOUNDS if config.get(_TYPE) == "LogAppendTime" else ()
    for name, least in _LEAST.items():
        value = config.get(name)
        if value is not None and name not in exempt and int(value) < least:
            return Unsurvivable(name, value, least)
    return None
