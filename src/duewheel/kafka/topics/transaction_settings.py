"""The settings of a topic that no transaction survives.

A broker writes a marker into each partition of a transaction that ends. It checks the marker's
timestamp like a record's. If it refuses a marker, Kafka 4.3 does not try again: the transaction
stays in PrepareAbort or PrepareCommit, and its transactional id is blocked until another broker
becomes its coordinator, also after the setting is corrected. So one topic would stop a shard.
"""

from __future__ import annotations

from collections.abc import Mapping

# A marker gets its time a moment before the broker checks it: in this span that host may stall, or
# its clock may step.
SPAN_MIN_MS = 5_000
_TYPE = "message.timestamp.type"
_BOUNDS = (
    "message.timestamp.before.max.ms",
    "message.timestamp.after.max.ms",
    "message.timestamp.difference.max.ms",  # bounds both in Kafka before 4.0
)
NAMES = (_TYPE, *_BOUNDS)


def unsurvivable(config: Mapping[str, str]) -> tuple[str, str] | None:
    """The first setting, and its value, that a transaction may not survive. A setting that may not
    be read is taken to be harmless.
    """
    if config.get(_TYPE) == "LogAppendTime":
        return None
    return next(
        (
            (name, config[name])
            for name in _BOUNDS
            if config.get(name) is not None and int(config[name]) < SPAN_MIN_MS
        ),
        None,
    )
