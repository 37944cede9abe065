"""Why a shard may not be ready: the table of the reasons, which runtime/readiness.py finds.

No import of this module is heavy: the health probe has it, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

_LAG = frozenset({"ingest_lag", "batch_stuck"})


class Unready(NamedTuple):
    """One reason."""

    sentence: str  # the fact, and its consequence for timers
    effects: frozenset[str] = frozenset()  # reasons and conditions that are not shown beside it
    is_symptom: bool = False  # mostly of another fault: shown after all that may be the cause
    is_without_kafka: bool = False  # also of Kafka that does not answer


WITHOUT_FILES: Mapping[str, Unready] = {
    "no_data_directory": Unready(
        "The shard has no files yet: the first start of its processes makes them."
    ),
    "unreadable": Unready(
        "The files of the shard cannot be read here: what is pending is unknown."
    ),
    "resharded": Unready("A reshard has removed this shard: its timers are in the other shards."),
}
# Both in the order in which they are shown. These names, `unreadable` and `resharded` are label
# values of the metric `not_ready`.
REASONS: Mapping[str, Unready] = {
    "recovering": Unready(
        "The files are being recovered or, at a first start, made; or messages are read from "
        "Kafka again: nothing is delivered until that ends."
    ),
    "dequeue_failing": Unready("Dequeue keeps ending: due timers wait."),
    "dequeue_not_running": Unready("Dequeue does not run: due timers wait."),
    "dequeue_silent": Unready(
        "Dequeue is silent: due timers may wait. It waits for Kafka, or its disk.",
        is_without_kafka=True,
    ),
    "disk_full": Unready(
        "The disk is nearly full: new timers and cancels wait in Kafka until there is room.",
        _LAG | {"disk"},
    ),
    "ingest_failing": Unready("Ingest keeps ending: new timers and cancels wait in Kafka.", _LAG),
    "ingest_not_running": Unready(
        "Ingest does not run: new timers and cancels wait in Kafka.", _LAG
    ),
    "ingest_silent": Unready(
        "Ingest is silent: new timers and cancels may wait in Kafka.", is_without_kafka=True
    ),
    "no_planner": Unready(
        "Ingest lacks processor time: new timers and cancels wait in Kafka.",
        _LAG,
        is_without_kafka=True,
    ),
    "ends_unknown": Unready(
        "Kafka does not answer: how much waits there is unknown, and deliveries may wait.",
        is_symptom=True,
        is_without_kafka=True,
    ),
    "dequeue_behind": Unready("Deliveries are late.", is_symptom=True, is_without_kafka=True),
    "batch_stuck": Unready(
        "Ingest is stuck in a batch: timers that were written are not listed here yet.",
        is_symptom=True,
        is_without_kafka=True,
    ),
    "ingest_lag": Unready(
        "Ingest is behind: timers that were written are not listed here yet.",
        is_symptom=True,
        is_without_kafka=True,
    ),
}


def effects(reasons: Iterable[str]) -> frozenset[str]:
    """The reasons and conditions that are not shown beside these."""
    return frozenset().union(*(REASONS[each].effects for each in reasons if each in REASONS))
