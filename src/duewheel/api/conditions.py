"""What is wrong with a shard, in sentences: the fact, and its consequence for timers.

The page of `duewheel serve` shows these: the first one, the others on request. Those that follow
from a field of a view are made there (shard.py); those of a shard that is not ready are here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

from pydantic import Field

from duewheel.api.model import Result

Kind = Literal["bad", "warn", "plain"]


class Condition(Result):
    """Something that is wrong, or unusual."""

    name: str
    kind: Kind = Field(description="plain: nothing is wrong")
    text: str = Field(description="the fact, and what it means for timers")
    detail: str = Field(description="may change each second, or be empty")


# By the reasons of `not_ready`, in the order in which they are shown.
_NOT_READY = {
    "no_data_directory": "The shard has no files yet: the first start of its processes makes them.",
    "unreadable": "The files of the shard cannot be read here: what is pending is unknown.",
    "recovering": "The files are being recovered or, at a first start, made; or messages are read "
    "from Kafka again: nothing is delivered until that ends.",
    "dequeue_failing": "Dequeue keeps ending: due timers wait.",
    "dequeue_not_running": "Dequeue does not run: due timers wait.",
    "dequeue_silent": "Dequeue is silent: due timers may wait. It waits for Kafka, or its disk.",
    "transaction_blocked": "Kafka cannot end the shard's last transaction: due timers wait.",
    "disk_full": "The disk is nearly full: new timers and cancels wait in Kafka until there is "
    "room.",
    "ingest_failing": "Ingest keeps ending: new timers and cancels wait in Kafka.",
    "ingest_not_running": "Ingest does not run: new timers and cancels wait in Kafka.",
    "ingest_silent": "Ingest is silent: new timers and cancels may wait in Kafka.",
    "no_planner": "Ingest lacks processor time: new timers and cancels wait in Kafka.",
}
# What follows from another fault, mostly: shown after all that may be the cause.
_SYMPTOMS = {
    "ends_unknown": "Kafka does not answer: how much waits there is unknown, and deliveries may "
    "wait.",
    "dequeue_behind": "Deliveries are late.",
    "batch_stuck": "Ingest is stuck in a batch: timers that were written are not listed here yet.",
    "ingest_lag": "Ingest is behind: timers that were written are not listed here yet.",
}


def of_reasons(reasons: Mapping[str, str]) -> list[Condition]:
    """Conditions by the reasons of a shard that is not ready: causes first."""
    texts = _NOT_READY | _SYMPTOMS
    known = [name for name in texts if name in reasons]
    others = [name for name in reasons if name not in texts]
    return [
        condition("bad", name, texts.get(name, "The shard is not ready."), reasons[name])
        for name in [*known, *others]
    ]


def ranked(conditions: Iterable[Condition]) -> list[Condition]:
    """Sorts conditions: the gravest first, and among these causes before symptoms."""
    kinds: tuple[Kind, ...] = ("bad", "warn", "plain")
    return sorted(conditions, key=lambda each: (kinds.index(each.kind), each.name in _SYMPTOMS))


def condition(kind: Kind, name: str, text: str, detail: str = "") -> Condition:
    """Makes a condition."""
    return Condition(name=name, kind=kind, text=text, detail=detail)


def counted(count: int, one: str, many: str) -> str:
    """A count with what is counted."""
    return f"{count:,} {one if count == 1 else many}"
