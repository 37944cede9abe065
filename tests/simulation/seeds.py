"""Recurring timers with headers: programs that write, replace and cancel them, in transactions.

chains.py judges what comes of them.
"""

from __future__ import annotations

from random import Random

from tests.simulation.clients import SEEDS, TransactionalClient, partition_of
from tests.simulation.host import Host
from tests.simulation.timers import TARGETS

_NAMES = (b"daily", b"hourly", b"tick")
_WRITTEN_MAX = 8
_CALM_TURNS = 6  # in which they go on, in the end
_MISSED = (b"all", b"all", b"one", b"skip")


class Seeds:
    """Of one run."""

    def __init__(self, seed: int, host: Host) -> None:
        self._host, self._chance = host, Random(f"seeds {seed}")
        self._client = TransactionalClient(host.kafka, SEEDS)
        self._client.fence()
        self._left = _WRITTEN_MAX
        self._calm_turns = 0
        self._places = set[tuple[int, bytes]]()

    def befall(self) -> None:
        """Between two steps of the shards."""
        chance, client = self._chance, self._client
        client.end_forgotten()
        if client.is_open:
            if chance.random() < 0.7:
                client.finish(commit=chance.random() < 0.8)
        elif self._left and chance.random() < 0.2:
            self._left -= 1
            client.begin()
            self._write()
        elif self._places and chance.random() < 0.04:
            self._cancel(chance.choice(sorted(self._places)))

    def _write(self) -> None:
        chance, now_ms = self._chance, self._host.clock.true_ms
        name, p = chance.choice(_NAMES), self._host.setup.wheel.precision_ms
        number = partition_of(name, len(self._host.kafka.partitions))
        interval_ms = max(1_000, chance.choice((1, 1, 2, 3, 30)) * p)
        missed = chance.choice(_MISSED)
        headers = [
            ("TIMER_EVERY", b"%d" % interval_ms),
            ("TIMER_MISSED", missed),
            ("of", name),
            ("REAL_TOPIC", TARGETS[chance.randrange(2)].encode()),
            ("UNIQ_KEY", name),
        ]
        replaces = (number, name) in self._places and chance.random() < 0.7
        if replaces:
            headers.append(("TIMER_RESCHEDULE", b"true"))
        elif missed == b"all" and chance.random() < 0.5:
            # One that replaces another may be taken after its end: it has no instant then.
            ends_ms = now_ms + chance.randint(1, 8) * interval_ms
            headers.insert(2, ("TIMER_ENDS_MS", b"%d" % ends_ms))
        self._client.write(number, chance.choice((None, name)), name, headers)
        self._places.add((number, name))
        self._host.history.counts["seeds"] += 1

    def _cancel(self, place: tuple[int, bytes]) -> None:
        self._client.cancel(*place)
        self._host.history.counts["seeds cancelled"] += 1

    def turn(self) -> None:
        """In the end: they go on for a while, then each is stopped."""
        self._calm_turns += 1
        if self._calm_turns == _CALM_TURNS:
            for place in sorted(self._places):
                self._cancel(place)

    def quiet_down(self) -> None:
        """No more befalls them."""
        self._client.finish(commit=True)

    @property
    def is_idle(self) -> bool:
        """Whether all are stopped: what becomes of the cancels is the history's."""
        return self._calm_turns >= _CALM_TURNS

    def judge(self) -> list[str]:
        """What is wrong."""
        return self._host.history.chains.judge()
