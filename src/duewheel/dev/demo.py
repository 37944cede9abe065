"""`duewheel demo`: sends timers through a real Kafka and a real `duewheel run`, and judges them.

1. starts a broker (unless an address is given), creates topics, starts `duewheel run`
2. sends one timer that is due at once: its delivery shows that everything runs
3. sends the timers, in every header form, with due times over the requested span
4. records arrivals with the independent consumer of `prove`
5. judges each record as `prove` does (prove/verdict.py)
"""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from kafka import KafkaProducer
from kafka.errors import KafkaError
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from duewheel import factory
from duewheel.clock import SystemClock
from duewheel.config.settings import Settings, load
from duewheel.config.values import as_millis
from duewheel.dev.broker import DevBroker
from duewheel.dev.jars import broker_jars
from duewheel.errors import DuewheelError, Unacknowledged
from duewheel.java.find import find_java
from duewheel.kafka.connect.bootstrap import require_connection
from duewheel.kafka.connect.clients import KafkaClients
from duewheel.osutil.signals import interruptible
from duewheel.osutil.tempdir import ScratchFolder
from duewheel.prove.arrivals import ArrivalReader, committed_records
from duewheel.prove.cancel_judge import Source
from duewheel.prove.measures import Quantiles
from duewheel.prove.own_shard import OwnShard
from duewheel.prove.records import LEVELS_MS, ArrivedTimer, WrittenTopic
from duewheel.prove.verdict import ProofRules, ProofVerdict, verdict_of
from duewheel.prove.versions import versions
from duewheel.runtime.dequeue_process import init_progress

PARTITIONS = 4
_SHORTEST_DELAY_MS = 1_000
# The longest waits without progress. Spark's start takes minutes on a busy machine.
_NOT_READY_S, _READY_S = 300.0, 60.0
_DOUBLES_S = 2.0  # after the last delivery: a double would arrive within
_WAIT_S = 0.1
_READY_VALUE = b"-1 ready"  # begins with its number, as each value


@dataclass(frozen=True, slots=True)
class _DemoShard:
    """The shard, and the consumer of its deliveries."""

    shard: OwnShard
    arrivals: ArrivalReader
    client: KafkaClients


class Demo:
    """One run, by the steps of the module's head."""

    def __init__(
        self,
        timers: int,
        over_ms: int,
        seed: int,
        data_dir: Path | None = None,
        bootstrap_servers: str | None = None,
    ) -> None:
        """Starts nothing yet.

        Args:
            timers: how many.
            over_ms: the longest delay; the shortest is one second.
            seed: decides delays, keys and header forms.
            data_dir: is kept; None: a temporary one, which is removed.
            bootstrap_servers: an existing Kafka; the demo's topics are deleted afterwards.
        """
        self._name = f"duewheel-demo-{uuid.uuid4().hex[:8]}"
        self._timer_topic, self._target = f"{self._name}.timers", f"{self._name}.orders"
        self._timers = timers
        self._over_ms = max(over_ms, _SHORTEST_DELAY_MS)
        self._random = random.Random(seed)
        self._seed = seed
        self._data_dir = data_dir
        self._given_servers = bootstrap_servers
        self._console = Console(stderr=True)
        self._clock = SystemClock()
        self._started_s = time.monotonic()
        self._first_delivery_s = 0.0

    def run(self) -> dict[str, Any]:
        """Runs the demo; returns its result, ready for JSON."""
        with ExitStack() as stack:
            stack.enter_context(interruptible())
            work = self._folder(stack)
            servers = self._given_servers or self._start_broker(stack)
            settings = self._settings(work, servers)
            self._make_topics(stack, settings)
            running = self._start(stack, settings, work)
            try:
                self._await_ready(settings, running)
                acknowledged = self._schedule(settings)
                self._await_deliveries(running)
                verdict = self._verdict(settings, running, acknowledged)
            except DuewheelError as error:
                raise DuewheelError(f"{error}\n{running.shard.log_tail()}") from error
        result = self._result(settings, verdict, _without_first(running.arrivals.timers))
        self._say(result)
        return result

    # ---- 1. ----------------------------------------------------------------------------------

    def _folder(self, stack: ExitStack) -> Path:
        if self._data_dir is None:
            scratch = ScratchFolder("duewheel-demo-")
            stack.callback(scratch.remove)
            return scratch.path
        folder = self._data_dir.absolute()
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def _start_broker(self, stack: ExitStack) -> str:
        with self._console.status("starting a single-node Kafka"):
            return stack.enter_context(DevBroker()).bootstrap_servers

    def _settings(self, work: Path, servers: str) -> Settings:
        name = self._name
        path = work / "duewheel.toml"
        path.write_text(
            f'[app]\nid = "{name}"\n'
            f'[kafka]\nbootstrap_servers = "{servers}"\n'
            f'[timer]\ntopics = ["{self._timer_topic}"]\nreply_topic = "{name}.replies"\n'
            f'targets = ["{self._target}"]\n'
            f'[storage]\ndata_dir = "{work / "data"}"\n'
        )
        return load(path)

    def _make_topics(self, stack: ExitStack, settings: Settings) -> None:
        if self._given_servers:
            require_connection(settings)
        admin = stack.enter_context(factory.kafka_admin(settings))
        if self._given_servers:
            made = [self._timer_topic, self._target, *settings.service_topics.values()]
            stack.callback(admin.delete_topics, made)
        admin.init_topics(settings, partitions=PARTITIONS)
        admin.create_topic(self._target, PARTITIONS)
        init_progress(settings)

    def _start(self, stack: ExitStack, settings: Settings, work: Path) -> _DemoShard:
        shard = OwnShard(settings, work)
        stack.callback(shard.stop)
        shard.tend()
        client = KafkaClients(settings.kafka.client_options("consumer"))
        topics = (self._target, settings.dead_letter_topic)
        replies = settings.timer.reply_topic or ""
        arrivals = ArrivalReader(client, topics, replies, PARTITIONS, self._clock)
        stack.callback(arrivals.end)
        arrivals.start()
        return _DemoShard(shard, arrivals, client)

    # ---- 2. and 3. -----------------------------------------------------------------------------

    def _await_ready(self, settings: Settings, running: _DemoShard) -> None:
        begun_s, what = time.monotonic(), "starting Spark and the dequeue process"
        with self._console.status(what) as line:

            def arrived() -> bool:
                passed_s, why = time.monotonic() - begun_s, running.shard.not_ready()
                line.update(f"{what}, {passed_s:.0f} s{why and f': {why}'}")
                return bool(running.arrivals.timers)

            producer = KafkaProducer(**settings.kafka.client_options("producer"))
            try:
                headers = self._headers(("TIMER_DELAY_MS", b"0"))
                producer.send(self._timer_topic, _READY_VALUE, headers=headers).get(timeout=30)
            finally:
                producer.close(timeout=5)
            if not self._wait(arrived, running):
                raise DuewheelError(
                    "nothing was delivered, and the shard does not get on: "
                    f"{running.shard.not_ready() or 'it reports no reason'}"
                )
        self._first_delivery_s = time.monotonic() - self._started_s

    def _headers(self, when: tuple[str, bytes]) -> list[tuple[str, bytes]]:
        return [("REAL_TOPIC", self._target.encode()), when]

    def _schedule(self, settings: Settings) -> dict[int, Source]:
        """Sends every timer; returns its place in the timer topic by number."""
        producer = KafkaProducer(**{"linger_ms": 20, **settings.kafka.client_options("producer")})
        sent = []
        try:
            for number in range(self._timers):
                key = None if number % 10 == 0 else b"key-%d" % self._random.randrange(1000)
                value = b"%d is an order that has waited long enough" % number
                headers = self._headers(self._due())
                sent.append(producer.send(self._timer_topic, value, key=key, headers=headers))
            producer.flush(timeout=60)
            stored = [future.get(timeout=1) for future in sent]
            return {number: (each.partition, each.offset) for number, each in enumerate(stored)}
        except KafkaError as error:
            raise Unacknowledged(f"timers may or may not be written: {error}") from error
        finally:
            producer.close(timeout=5)

    def _due(self) -> tuple[str, bytes]:
        """Draws a request header."""
        delay_ms = self._random.randint(_SHORTEST_DELAY_MS, self._over_ms)
        form = self._random.randrange(4)
        if form == 0:
            return "TIMER_DELIVER_MS", b"%d" % (self._clock.now_ms() + delay_ms)
        if form == 1:
            return "TIMER_DELAY_SEC", b"%d" % (delay_ms // 1000)
        levels = [level for level, length_ms in LEVELS_MS.items() if length_ms <= self._over_ms]
        if form == 2 and levels:
            return "DELAY", b"%d" % self._random.choice(levels)
        return "TIMER_DELAY_MS", b"%d" % delay_ms

    # ---- 4. ----------------------------------------------------------------------------------

    def _await_deliveries(self, running: _DemoShard) -> None:
        """Shows the progress until every timer has arrived, or nothing moves any more."""
        columns = (
            TextColumn("[bold]delivered"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("pending {task.fields[pending]}  lateness {task.fields[late]}"),
        )
        with Progress(*columns, console=self._console) as progress:
            task = progress.add_task("", total=self._timers, pending=self._timers, late="-")

            def complete() -> bool:
                timers = _without_first(running.arrivals.timers)
                arrived, late = len({timer.number for timer in timers}), _lateness_ms(timers)
                shown = (
                    f"p50 {np.median(late):.0f} ms, max {late.max():.0f} ms" if len(late) else "-"
                )
                pending = self._timers - arrived
                progress.update(task, completed=arrived, pending=pending, late=shown)
                return pending <= 0

            self._wait(complete, running, self._over_ms / 1000)
        time.sleep(_DOUBLES_S)

    def _wait(self, done: Callable[[], bool], running: _DemoShard, at_least_s: float = 0.0) -> bool:
        """Waits as long as something moves; returns whether it is done.

        Raises:
            DuewheelError: the shard has ended, or a process of it does not come back.
        """
        shard, last = running.shard, None
        moved_s = time.monotonic() + at_least_s
        while not done():
            running.arrivals.require_alive()
            shard.tend()
            shard.require_returning()
            signs, now_s = (len(running.arrivals.timers), *shard.signs()), time.monotonic()
            if signs != last:
                last, moved_s = signs, max(now_s, moved_s)
            elif now_s - moved_s > (_NOT_READY_S if shard.not_ready() else _READY_S):
                return False
            time.sleep(_WAIT_S)
        return True

    # ---- 5. ----------------------------------------------------------------------------------

    def _verdict(
        self, settings: Settings, running: _DemoShard, acknowledged: dict[int, Source]
    ) -> ProofVerdict:
        written = WrittenTopic.of(committed_records(running.client, self._timer_topic))
        written.requests = {at: r for at, r in written.requests.items() if r.number >= 0}
        rules = ProofRules(
            self._target,
            settings.dead_letter_topic,
            as_millis(settings.timer.roll_window),
            settings.timer.precision_ms,
            as_millis(settings.dequeue.clock_skew_max),
        )
        arrived = _without_first(running.arrivals.timers)
        return verdict_of(written, arrived, [], acknowledged, rules)

    def _result(
        self, settings: Settings, verdict: ProofVerdict, arrived: Sequence[ArrivedTimer]
    ) -> dict[str, Any]:
        lateness = asdict(Quantiles.of(_lateness_ms(arrived)))
        return {
            "ok": not verdict.faults and verdict.delivered == self._timers,
            "scheduled": self._timers,
            "delivered": verdict.delivered,
            **{name: verdict.faults[name] for name in ("lost", "doubled", "early", "altered")},
            "dead_letters": sum(timer.topic != self._target for timer in arrived),
            "lateness_ms": {name: lateness[name] for name in ("p50", "p99", "p999", "max")},
            "first_delivery_s": round(self._first_delivery_s, 1),
            "config": {
                "timers": self._timers,
                "over_ms": self._over_ms,
                "seed": self._seed,
                "partitions": PARTITIONS,
                "precision_ms": settings.timer.precision_ms,
                "own_broker": self._given_servers is None,
            },
            "versions": {**versions(), "kafka": _broker_version()},
        }

    def _say(self, result: dict[str, Any]) -> None:
        late = result["lateness_ms"]
        self._console.print(
            f"{'[green]ok[/]' if result['ok'] else '[red]NOT ok[/]'}: "
            f"{result['scheduled']} scheduled, {result['delivered']} delivered, "
            f"{result['lost']} lost, {result['doubled']} doubled, {result['early']} early; "
            f"lateness p50 {late['p50']} ms, p99 {late['p99']} ms, max {late['max']} ms; "
            f"first delivery {result['first_delivery_s']} s after the start"
        )


def _without_first(arrived: Sequence[ArrivedTimer]) -> list[ArrivedTimer]:
    """Leaves out the timer of step 2."""
    return [timer for timer in arrived if timer.number >= 0]


def _lateness_ms(arrived: Sequence[ArrivedTimer]) -> npt.NDArray[np.int64]:
    """Time of receipt minus due time: includes transaction, fetch and consumer."""
    late = [each.received_ms - each.due_ms for each in arrived if each.due_ms is not None]
    return np.array(late, np.int64)


def _broker_version() -> str:
    jars = broker_jars(find_java())
    (kafka,) = {jar.stem.partition("-")[2] for jar in jars if jar.stem[:6] == "kafka_"}
    return kafka
