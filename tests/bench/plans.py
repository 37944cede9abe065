"""Which workloads `make bench` and `make bench-full` do, in sessions, and how large.

The full bench of both systems takes an hour with nothing beside it, and 20 GB of disk for
the 30 million timers that duewheel alone has pending. Three numbers make most of the time: RocketMQ
takes 10 million timers in 4 minutes; each of the 23 sessions needs 45 s for its start, warm-up and
end; and what is due in an instant is sent at 20,000 a second before it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from tests.bench import full_workloads as full
from tests.bench import workloads as work
from tests.bench.session import Session

Workload = Callable[[Session], None]
TARGET_PARTITIONS = (1, 10, 160, 1_000)
SLOTS_MS = (10, 20, 50, 100)
TRIGGERS_MS = ((100, 50), (250, 50), (1_000, 50), (1_000, 500))  # of ingest; length of a slot
STEADY_ALONE = "rocketmq-100"
PENDING = (100_000, 1_000_000, 10_000_000)
SMALL_PER_S = 300  # a slot, and so a transaction, has 15 timers
MOST_PENDING = 30_000_000  # for duewheel alone: RocketMQ takes 12 minutes to enqueue them
ROLL_WINDOW, ROLL_DELAY_MS = "10s", (25_000, 30_000)


@dataclass(frozen=True)
class SessionPlan:
    """A session: workloads by name, and the options of a duewheel that alone has it."""

    workloads: Mapping[str, Workload]
    ours: Mapping[str, Any] | None = None

    def only(self, chosen: Callable[[str], bool]) -> SessionPlan:
        """The workloads of these names."""
        found = {name: each for name, each in self.workloads.items() if chosen(name)}
        return SessionPlan(found, self.ours)

    def is_for(self, system: str) -> bool:
        """Whether there is something for this system to do."""
        return bool(self.workloads) and (self.ours is None or system == "duewheel")

    def of(self, system: str) -> SessionPlan:
        """What this system has to do of it."""
        if system != STEADY_ALONE:
            return self
        return self.only(lambda name: name.startswith("steady"))


def is_chosen(name: str, only: Sequence[str] | None) -> bool:
    """Whether the name begins with the words of one of them; without any, all names are."""
    return not only or f"{name} ".startswith(tuple(f"{words} " for words in only))


class Sizes:
    """All sizes, scaled."""

    def __init__(self, scale: float) -> None:
        self._scale = scale

    def timers(self, count: int) -> int:
        return max(1_000, int(count * self._scale))

    def seconds(self, count: int) -> int:
        return max(3, int(count * self._scale))


def short_plans(sizes: Sizes) -> list[SessionPlan]:
    """`make bench`."""
    timers, length = sizes.timers, sizes.seconds(20)
    enqueue = {
        "enqueue": partial(work.enqueue, count=timers(2_000_000), warm_up=timers(300_000)),
        "backlog": partial(work.backlog, count=timers(1_000_000)),
    }
    delivery = {
        "steady 1000": partial(work.steady, per_s=1_000, seconds=length),
        "steady 5000": partial(work.steady, per_s=5_000, seconds=length),
        "spike 1": partial(work.spike, count=timers(100_000)),
        "spike 2": partial(work.spike, count=timers(100_000)),
        "idle": partial(work.idle, seconds=length),
        "overdue": partial(work.overdue, count=timers(200_000)),
    }
    return [SessionPlan(delivery), SessionPlan(enqueue)]


def full_plans(sizes: Sizes) -> list[SessionPlan]:
    """`make bench-full`."""
    timers, length = sizes.timers, sizes.seconds(30)
    rates = (SMALL_PER_S, 1_000, 5_000, 10_000, 20_000)
    delivery = {
        **{f"steady {r}": partial(work.steady, per_s=r, seconds=length) for r in rates},
        **{f"spike {n}": partial(work.spike, count=timers(100_000)) for n in (1, 2, 3)},
        "idle": partial(work.idle, seconds=sizes.seconds(20)),
        "beside": partial(
            work.steady, per_s=5_000, seconds=sizes.seconds(120), beside=timers(200_000)
        ),
    }
    enqueue = {
        "enqueue": partial(work.enqueue, count=timers(2_000_000), warm_up=timers(500_000)),
        "backlog": partial(work.backlog, count=timers(3_000_000)),
    }
    large = {
        "large spike": partial(work.spike, count=timers(1_000_000)),
        "overdue": partial(work.overdue, count=timers(500_000)),
    }
    growth = partial(full.growth, count=timers(200_000), delivered=timers(50_000))
    levels = {f"pending {n}": partial(growth, pending=timers(n)) for n in PENDING}
    most = {
        f"pending {MOST_PENDING}": partial(growth, pending=timers(MOST_PENDING)),
        "most restart": partial(full.restart, name="restart beside the most"),
    }
    ours = {
        "half cancelled": partial(full.half_cancelled, count=timers(200_000)),
        "lost files": partial(full.lost_files, count=timers(2_000_000)),
    }
    alone = partial(partial, full.stream_alone, per_s=1_000, seconds=length)
    rolls = partial(full.rolls, per_s=1_000, seconds=length, delay_ms=ROLL_DELAY_MS)
    return [
        SessionPlan(delivery),
        SessionPlan(enqueue),
        SessionPlan(large),
        SessionPlan({**levels, "restart": full.restart}),
        SessionPlan(most, {}),
        *(
            SessionPlan(
                {f"partitions {number}": partial(full.partitions, count=timers(50_000))},
                {"target_partitions": number},
            )
            for number in TARGET_PARTITIONS
        ),
        *(
            SessionPlan(
                {f"slots {length_ms}": alone(name=f"slots, ms: {length_ms}")},
                {"precision_ms": length_ms},
            )
            for length_ms in SLOTS_MS
        ),
        *(
            SessionPlan(
                {
                    f"triggers {trigger_ms} {length_ms}": alone(
                        name=f"triggers, ms: {trigger_ms}, slots of {length_ms}"
                    )
                },
                {"trigger_ms": trigger_ms, "precision_ms": length_ms},
            )
            for trigger_ms, length_ms in TRIGGERS_MS
        ),
        SessionPlan({"rolls": rolls}, {"roll_window": ROLL_WINDOW}),
        SessionPlan(ours, {}),
    ]


def second_driver_plans(sizes: Sizes) -> list[SessionPlan]:
    """`--second-driver`: where a load in Python is not the bound."""
    length = sizes.seconds(30)
    delivery = {
        **{f"steady {r}": partial(work.steady, per_s=r, seconds=length) for r in (1_000, 5_000)},
        "spike": partial(work.spike, count=sizes.timers(100_000)),
    }
    backlog = {"backlog": partial(work.backlog, count=sizes.timers(2_000_000))}
    return [SessionPlan(delivery), SessionPlan(backlog)]
