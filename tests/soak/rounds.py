"""The rounds of a soak: faults of the real processes under load, one after another.

A round is over when a timer has been delivered, and a cancel or reschedule answered, from every
partition of the timer topic that was written after its misfortune.

    dequeue, ingest, both   kill -9; started again after half a second
    broker                  kill -9 and a restart on its files; of three, the restart comes only
                            when deliveries and answers flow again
    coordinator             of three: the same for the one that keeps the shard's transactions
    data                    all processes stopped or killed, the data directory deleted
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn
from tests.soak.cluster import Cluster
from tests.soak.shard import (
    PRECISION_MS,
    PROCESSES,
    REPLIES,
    TIMER_PARTITIONS,
    TIMERS,
    WINDOW_MS,
    SoakShard,
)

from duewheel.clock import SystemClock
from duewheel.errors import DuewheelError
from duewheel.kafka.connect.clients import KafkaClients
from duewheel.prove.arrivals import ArrivalReader, committed_records
from duewheel.prove.load import FAR_WINDOWS, ProofLoad
from duewheel.prove.plan import drawn
from duewheel.prove.records import WrittenTopic
from duewheel.prove.verdict import FAULTS, ProofVerdict, verdict_of

# How often each kind comes, about: a start of Spark takes the longest.
WEIGHTS = {"dequeue": 40, "broker": 25, "ingest": 10, "both": 6, "data": 6, "coordinator": 40}
BETWEEN_S = (0.5, 3.0)
STUCK_S = 300.0
START_S = 300.0  # of everything, on a busy machine
AFTERGLOW_S = 2.0  # in which a double would still arrive


@dataclass(frozen=True)
class Plan:
    """What a soak is to be.

    Attributes:
        rounds: how many misfortunes.
        seed: of everything random.
        rate: timers a second.
        brokers: 1 or 3.
        kinds: of misfortunes, each at least once if there are rounds enough.
    """

    rounds: int
    seed: int = 1
    rate: int = 100
    brokers: int = 1
    kinds: tuple[str, ...] = ("dequeue", "broker", "ingest", "both", "data")

    def drawn(self, dice: random.Random) -> list[str]:
        """The kind of every round."""
        return drawn({kind: WEIGHTS[kind] for kind in self.kinds}, self.rounds, dice)


class Soak:
    """One run, in a folder of its own. Not thread-safe."""

    def __init__(self, plan: Plan, folder: Path, progress: Progress) -> None:
        self._plan, self._folder, self._progress = plan, folder, progress
        self._dice = random.Random(plan.seed)
        self._cluster = Cluster(plan.brokers, folder)
        self._recovery_s: defaultdict[str, list[float]] = defaultdict(list)
        self._answers_s: list[float] = []

    def run(self) -> Outcome:
        """All rounds, and the verdict."""
        kinds = self._plan.drawn(self._dice)
        task = self._progress.add_task("starting Kafka, Spark and dequeue", total=len(kinds))
        with ExitStack() as stack:
            stack.enter_context(self._cluster)
            servers = self._cluster.bootstrap_servers
            client = KafkaClients({"bootstrap_servers": servers, "reconnect_backoff_max_ms": 500})
            self._shard = shard = SoakShard(self._folder, servers)
            shard.create_topics()
            stack.callback(shard.end, PROCESSES, signal.SIGKILL)
            rate, seed, clock = self._plan.rate, self._plan.seed, SystemClock()
            self._load = load = ProofLoad(
                client, TIMERS, TIMER_PARTITIONS, rate, WINDOW_MS, seed, clock
            )
            topics = (shard.rules.target, shard.rules.dead_letters)
            self._arrivals = ArrivalReader(client, topics, REPLIES, TIMER_PARTITIONS, clock)
            for each in (self._arrivals, load):
                each.start()
                stack.callback(each.end)
            stuck = self._all_rounds(kinds, task)
            load.stop()  # also if it is stuck: what is judged must not grow
            shard.end(PROCESSES, signal.SIGTERM)
            findings = [str(finding) for finding in shard.check().findings]
            arrivals = self._arrivals
            arrivals.end()
            written = WrittenTopic.of(committed_records(client, TIMERS))
            verdict = verdict_of(
                written, arrivals.timers, arrivals.replies, load.acknowledged, shard.rules
            )
        return Outcome(
            self._plan,
            dict(self._recovery_s),
            self._answers_s,
            verdict,
            load.doubtful,
            Counter(f"{name} ended with {code}" for name, code in shard.deaths),
            findings,
            stuck,
        )

    def _all_rounds(self, kinds: list[str], task: TaskID) -> str:
        """Returns why it is stuck, "" if it is not."""
        try:
            self._await_flow(START_S)
            for kind in kinds:
                self._progress.update(task, description=kind)
                self._pause(self._dice.uniform(*BETWEEN_S))
                self._round(kind)
                self._progress.advance(task)
            self._progress.update(task, description="awaiting the last deliveries")
            self._drain()
        except (AssertionError, DuewheelError) as error:
            return str(error)
        return ""

    def _round(self, kind: str) -> None:
        begun_s = time.monotonic()
        with self._befallen(kind):
            number = self._await_flow(STUCK_S)
            took_s = time.monotonic() - begun_s
            self._await("answers", self._arrivals.replied, number, STUCK_S)
            answers_s = time.monotonic() - begun_s
        self._recovery_s[kind].append(took_s)
        self._answers_s.append(answers_s)
        self._progress.console.print(
            f"{kind}: deliveries flow again after {took_s:.1f} s, answers after {answers_s:.1f} s"
        )

    @contextmanager
    def _befallen(self, kind: str) -> Iterator[None]:
        """It happens at the beginning; within, nobody helps."""
        if kind in {"broker", "coordinator"}:
            number = self._dice.choice(self._cluster.numbers)
            if kind == "coordinator":
                number = self._cluster.coordinator_of(self._shard.transactional_id)
            self._cluster.kill(number)
            if self._plan.brokers > 1:
                yield
            self._cluster.restart(number)
            self._cluster.await_in_sync()
            if self._plan.brokers == 1:
                yield
        elif kind == "data":
            self._shard.end(PROCESSES, self._dice.choice((signal.SIGTERM, signal.SIGKILL)))
            self._shard.lose_data()
            yield
        else:
            self._shard.end(PROCESSES if kind == "both" else (kind,), signal.SIGKILL)
            yield

    def _await_flow(self, timeout_s: float) -> int:
        """Until something that is written from now on has come from every partition; returns the
        number from which on.
        """
        number = self._load.number
        self._await("deliveries", self._arrivals.delivered, number, timeout_s)
        return number

    def _await(self, what: str, highest: Mapping[int, int], number: int, timeout_s: float) -> None:
        give_up = time.monotonic() + timeout_s
        while min(highest.values()) < number:
            said = "\n".join(self._shard.said(name) for name in PROCESSES)
            assert time.monotonic() < give_up, f"no {what} in {timeout_s} s\n{said}"
            self._look_after()

    def _pause(self, seconds: float) -> None:
        end_s = time.monotonic() + seconds
        while time.monotonic() < end_s:
            self._look_after()

    def _look_after(self) -> None:
        self._arrivals.require_alive()
        self._load.require_alive()
        self._shard.tend()
        time.sleep(0.02)

    def _drain(self) -> None:
        """Until all that was written must have arrived."""
        self._load.stop()
        self._pause(FAR_WINDOWS * WINDOW_MS / 1000)
        give_up = time.monotonic() + STUCK_S
        while not self._arrivals.has_all(self._load) and time.monotonic() < give_up:
            self._look_after()
        self._pause(AFTERGLOW_S)


@dataclass(frozen=True)
class Outcome:
    """What a soak has shown.

    Attributes:
        recovery_s: of every round, by kind.
        answers_s: of every round, until answers came again, too.
        doubtful: how many timers Kafka may never have had.
        ends: processes that ended without being killed.
        findings: of `duewheel check`.
        stuck: why deliveries did not flow again.
    """

    plan: Plan
    recovery_s: dict[str, list[float]]
    answers_s: list[float]
    verdict: ProofVerdict
    doubtful: int
    ends: Counter[str]
    findings: list[str]
    stuck: str

    @property
    def ok(self) -> bool:
        return not (self.verdict.faults or self.findings or self.stuck)

    def as_json(self) -> dict[str, Any]:
        """The line that is printed."""
        verdict = self.verdict
        return {
            "rounds": sum(len(taken) for taken in self.recovery_s.values()),
            **{fault.replace(" ", "_"): verdict.faults[fault] for fault in FAULTS},
            "recovery_s": {kind: figures(taken) for kind, taken in self.recovery_s.items()},
            "answers_s": figures(self.answers_s) if self.answers_s else {},
            "delivered": verdict.delivered,
            "cancelled": verdict.cancelled,
            "answers": dict(verdict.replies),
            "rejected": verdict.rejected,
            "expired": verdict.expired,
            "rolled": verdict.rolled,
            "doubtful": self.doubtful,
            "ends": dict(self.ends),
            "findings": self.findings,
            "stuck": bool(self.stuck),
            "chases": verdict.chases,
            **{name: value for name, value in asdict(self.plan).items() if name != "rounds"},
            "window_ms": WINDOW_MS,
            "precision_ms": PRECISION_MS,
            "partitions": TIMER_PARTITIONS,
            "cpus": os.cpu_count(),
        }


def figures(taken_s: list[float]) -> dict[str, float]:
    """How often, and how long it took."""
    median, p95, worst = np.quantile(taken_s, (0.5, 0.95, 1)).round(2).tolist()
    return {"count": len(taken_s), "median": median, "p95": p95, "max": worst}


def soak(plan: Plan, folder: Path) -> Outcome:
    """Run it, with progress on stderr."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        return Soak(plan, folder, progress).run()
