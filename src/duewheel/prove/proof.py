"""`duewheel prove`: shows duewheel's guarantees on the user's cluster, and judges them.

    1. creates topics under a name of its own, examines the cluster (own_topics.py)
    2. starts `duewheel run` in a temporary folder, an independent producer and a consumer
    3. when deliveries flow: kills processes at the moments of the plan, and waits each time until
       they flow again
    4. waits until everything must have arrived, and checks the files
    5. reads the timer topic, and judges each record (verdict.py)

However it ends, processes, folder and topics are removed. A failure in 3 or 4 ends the load and is
in the result; the messages that have arrived until then are judged.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from rich.progress import Progress, TaskID

from duewheel.clock import SystemClock
from duewheel.config.differences import differing
from duewheel.config.settings import Settings
from duewheel.config.values import as_millis
from duewheel.errors import DuewheelError
from duewheel.kafka.connect.clients import KafkaClients
from duewheel.ops.topics.creation import begin_shard
from duewheel.osutil.signals import interruptible
from duewheel.osutil.tempdir import ScratchFolder
from duewheel.osutil.terminal import progress_bar
from duewheel.prove.arrivals import ArrivalReader, committed_records
from duewheel.prove.load import FAR_WINDOWS, ProofLoad
from duewheel.prove.measures import START, Interruption, measure
from duewheel.prove.own_settings import own_settings
from duewheel.prove.own_shard import OwnShard
from duewheel.prove.own_topics import TIMER_PARTITIONS, OwnTopics
from duewheel.prove.plan import ProofPlan
from duewheel.prove.records import WrittenTopic
from duewheel.prove.result import ProofResult
from duewheel.prove.verdict import ProofRules, verdict_of
from duewheel.prove.versions import versions

_START_S = 300.0  # Spark's start on a busy machine
_START_FACTOR, _RESTART_S_MIN = 4.0, 60.0  # a later start may take so many times the first
_STUCK_S = 300.0
_DOUBLES_S = 2.0  # after the last delivery: a double would arrive within
_FLUSH_S = 5.0  # at a proof's early end
_TEND_S = 0.05
_ARRIVED_S = 0.5


@dataclass(frozen=True)
class _Running:
    """The parts of a running proof."""

    shard: OwnShard
    load: ProofLoad
    reader: ArrivalReader

    def tend(self, seconds: float) -> None:
        """Keeps the shard alive for so long."""
        until_s = time.monotonic() + seconds
        while time.monotonic() < until_s:
            self.shard.tend()
            self.reader.require_alive()
            self.load.require_alive()
            time.sleep(_TEND_S)

    def wait_for(
        self,
        condition: Callable[[], bool],
        otherwise: str,
        *,
        timeout_s: float = _STUCK_S,
        every_s: float = _TEND_S,
    ) -> None:
        """Waits for a condition.

        Raises:
            DuewheelError: it is not true in time; has the end of the shard's log.
        """
        end_s = time.monotonic() + timeout_s
        while not condition():
            if time.monotonic() > end_s:
                raise DuewheelError(f"{otherwise} after {timeout_s:g} s\n{self.shard.log_tail()}")
            self.tend(every_s)


class Proof:
    """One proof. Not thread-safe."""

    def __init__(self, user: Settings, plan: ProofPlan, prefix: str) -> None:
        """Starts nothing yet. All names in Kafka begin with the prefix and a random part."""
        self._user, self._plan = user, plan
        self._name = f"{prefix}-{secrets.token_hex(4)}"
        self._clock = SystemClock()
        self._interruptions: list[Interruption] = []
        self._stuck = ""
        self._start_s = _START_S

    def run(self) -> ProofResult:
        """Runs it, with progress on stderr.

        Raises:
            DuewheelError: the proof could not begin, or its records could not be read.
            KeyboardInterrupt: a signal has come.
        """
        started_ms, started_s = self._clock.now_ms(), time.monotonic()
        with interruptible(), progress_bar() as bar, ExitStack() as stack:
            task = bar.add_task("creating topics", total=None)

            def examining(part: str, parts: int) -> None:
                bar.update(task, description=f"examining: {part}", total=parts, advance=1)

            folder = ScratchFolder("duewheel-prove-")
            stack.callback(folder.remove)
            settings = own_settings(self._user, self._name, folder.path, self._plan.window_ms)
            topics = OwnTopics(settings)
            stack.enter_context(topics.made())
            cluster = topics.examine(self._clock, examining)
            begin_shard(settings, self._clock)
            client = KafkaClients(settings.kafka.client_options("producer"))
            running = self._start(stack, settings, client, folder.path)
            self._interrupt(running, bar, task)
            bar.update(task, description="reading and judging", total=None)
            running.shard.stop()
            running.reader.end()
            findings = running.shard.findings()
            rules = _rules(settings)
            written = WrittenTopic.of(committed_records(client, settings.timer.topics[0]))
            arrived, load = running.reader.timers, running.load
            replies = running.reader.replies
            verdict = verdict_of(written, arrived, replies, load.acknowledged, rules)
            own_ends = running.shard.own_ends()
        return ProofResult(
            name=self._name,
            plan=self._plan,
            started_ms=started_ms,
            took_s=time.monotonic() - started_s,
            verdict=verdict,
            doubtful=load.doubtful,
            measures=measure(written, arrived, self._interruptions, rules),
            interruptions=self._interruptions,
            stuck=self._stuck,
            findings=findings,
            own_ends=own_ends,
            cluster=cluster,
            settings=_differences(settings),
            versions=versions(),
            left=topics.left,
        )

    def _start(
        self, stack: ExitStack, settings: Settings, client: KafkaClients, folder: Path
    ) -> _Running:
        """Step 2."""
        shard, rules, plan = OwnShard(settings, folder), _rules(settings), self._plan
        stack.callback(shard.stop)
        reader = ArrivalReader(
            client,
            [rules.target, rules.dead_letters],
            settings.timer.reply_topic or "",
            TIMER_PARTITIONS,
            self._clock,
        )
        load = ProofLoad(
            client,
            settings.timer.topics[0],
            TIMER_PARTITIONS,
            plan.rate,
            plan.window_ms,
            plan.seed,
            self._clock,
        )
        stack.callback(reader.end)
        stack.callback(load.stop, _FLUSH_S)
        reader.start()
        load.start()
        return _Running(shard, load, reader)

    def _interrupt(self, running: _Running, bar: Progress, task: TaskID) -> None:
        """Steps 3 and 4."""
        kills, plan = self._plan.planned_kills(), self._plan
        bar.reset(task, description="starting Spark and dequeue", total=len(kills))
        try:
            self._note(running, START, bar)
            flowing_s = time.monotonic()
            for at_s, kind in kills:
                bar.update(task, description="load, kills")
                running.tend(flowing_s + at_s - time.monotonic())
                running.wait_for(partial(running.shard.is_up, kind), f"{kind} is not up")
                bar.update(task, description=f"killed: {kind}")
                running.shard.kill(kind)
                self._note(running, kind, bar)
                bar.advance(task)
            bar.update(task, description="load")
            running.tend(flowing_s + plan.length_s - time.monotonic())
            bar.update(task, description="awaiting the last deliveries", total=None)
            running.load.stop()
            running.tend(FAR_WINDOWS * plan.window_ms / 1_000)
            running.wait_for(
                lambda: running.reader.has_all(running.load),
                "timers or replies are missing",
                every_s=_ARRIVED_S,
            )
            running.tend(_DOUBLES_S)
        except DuewheelError as error:
            self._stuck = str(error)
            running.load.stop(_FLUSH_S)  # the topics must not grow while they are read

    def _note(self, running: _Running, kind: str, bar: Progress) -> None:
        """Notes an interruption that begins now, and waits for its end.

        Raises:
            DuewheelError: the processes do not come back, or deliver nothing.
        """
        number, begun = running.load.number, Interruption(kind, self._clock.now_ms())
        self._interruptions.append(begun)
        begun_s = time.monotonic()
        cause = "the first start" if kind == START else f"the kill of {kind}"

        def is_up() -> bool:
            running.shard.require_returning()
            return running.shard.is_up(kind)

        def delivers() -> bool:
            running.shard.require_returning()
            return min(running.reader.delivered.values()) >= number

        late = f"the processes are not back from {cause}"
        running.wait_for(is_up, late, timeout_s=self._start_s)
        if kind == START:
            longest_s = max(_RESTART_S_MIN, _START_FACTOR * (time.monotonic() - begun_s))
            self._start_s = min(_START_S, longest_s)
        running.wait_for(delivers, f"no deliveries since {cause}")
        ended = Interruption(kind, begun.at_ms, self._clock.now_ms())
        self._interruptions[-1] = ended
        bar.console.print(f"{kind}: deliveries flow after {ended.took_s:.1f} s")


def _rules(settings: Settings) -> ProofRules:
    return ProofRules(
        target=settings.timer.mapping[settings.timer.topics[0]],
        dead_letters=settings.dead_letter_topic,
        window_ms=as_millis(settings.timer.roll_window),
        precision_ms=settings.timer.precision_ms,
        skew_ms=as_millis(settings.dequeue.clock_skew_max),
    )


def _differences(settings: Settings) -> dict[str, object]:
    """The settings that differ from the defaults; a table counts key by key."""
    shown: dict[str, object] = {}
    for key, row in differing(settings).items():
        value = row["value"]
        table = value if isinstance(value, dict) else {"": value}
        for name, each in table.items():
            text = ", ".join(map(str, each)) if isinstance(each, list) else each
            shown[f"{key}.{name}".rstrip(".")] = text
    return shown
