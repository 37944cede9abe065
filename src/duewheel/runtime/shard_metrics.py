"""The metrics of a shard's facts (api/shard.py). Some are exported by both of its processes, so
that an alarm still sees one while the other is down.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from types import SimpleNamespace
from typing import Literal

from prometheus_client.core import Metric

from duewheel.api.fact import Exported, exported
from duewheel.api.shard import ShardView
from duewheel.checkpoints.fs import READING_FS
from duewheel.checkpoints.state_file import State
from duewheel.clock import Clock
from duewheel.config.settings import Settings
from duewheel.errors import CorruptFile, RecoveryRefused
from duewheel.osutil.metrics_server import counters, gauge, gauges
from duewheel.runtime.configured_facts import ConfiguredFacts

_OF_SHARD = tuple(exported(ShardView))


def families_of(
    facts: object, by: Literal["shard", "ingest", "dequeue"], table: Iterable[Exported] = _OF_SHARD
) -> Iterator[Metric]:
    """The families of a table that `by` exports; without facts that are unknown."""
    for each in table:
        made = each.gauge
        if made.by != by:
            continue
        value = None
        # The process whose file it is reads it, too, and raises the error.
        with suppress(CorruptFile, RecoveryRefused):
            value = each.value(facts)
        if value is None:
            continue
        if made.label:
            make = counters if made.is_counter else gauges
            yield make(made.name, each.help, made.label, {str(k): v for k, v in value.items()})
        else:
            yield gauge(made.name, each.help, len(value) if isinstance(value, Mapping) else value)


def of_reasons(reasons: Iterable[str]) -> Iterator[Metric]:
    """The families of a shard that is not ready, and whose files say nothing."""
    facts = SimpleNamespace(ready=False, by_reason=dict.fromkeys(reasons, True))
    names = {"ready", "not_ready"}
    return families_of(facts, "shard", (each for each in _OF_SHARD if each.gauge.name in names))


class ShardMetrics:
    """The families that are not of one process alone."""

    def __init__(self, settings: Settings, clock: Clock) -> None:
        self._settings, self._clock = settings, clock

    def families(self) -> Iterator[Metric]:
        """See metrics_server.Source."""
        with State.open(self._settings.storage.data_dir, READING_FS) as state:
            facts = ConfiguredFacts(state, self._clock.now_ms(), self._settings)
            yield from families_of(facts, "shard")
