"""Timers of all kinds for end-to-end tests, and the expected outcome of each."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass

from duewheel.clock import SystemClock

Headers = list[tuple[str, bytes]]
PARTITIONS = 3
CLOCK = SystemClock()


@dataclass(frozen=True)
class Sent:
    """A timer, what is asked for, and what must come out.

    Attributes:
        request: request headers.
        users: the user's headers.
        due_ms: from the record's timestamp; None: rejected, with this `code`.
    """

    key: bytes | None
    request: Headers
    users: Headers
    due_ms: Callable[[int], int] | None
    code: bytes = b""
    partition: int | None = None


Asked = tuple[Headers, Callable[[int], int] | None, bytes]


def rejected(code: bytes, *request: tuple[str, bytes]) -> Callable[[int, int], Asked]:
    return lambda _now_ms, _delay_ms: (list(request), None, code)


def at_instant(now_ms: int, delay_ms: int) -> Asked:
    due_ms = now_ms + delay_ms
    return [("TIMER_DELIVER_MS", b"%d" % due_ms)], lambda _: due_ms, b""


def at_text(now_ms: int, delay_ms: int) -> Asked:
    due_s = (now_ms + delay_ms) // 1000
    text = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(due_s))
    return [("TIMER_DELIVER_MS", text.encode())], lambda _: due_s * 1000, b""


def past_due(now_ms: int, delay_ms: int) -> Asked:
    return at_instant(now_ms, -1 - 1000 * delay_ms)


def after_ms(now_ms: int, delay_ms: int) -> Asked:
    return [("TIMER_DELAY_MS", b"%d" % delay_ms)], lambda at_ms: at_ms + delay_ms, b""


def after_sec(now_ms: int, delay_ms: int) -> Asked:
    seconds = delay_ms // 1000
    return [("TIMER_DELAY_SEC", b"%d" % seconds)], lambda at_ms: at_ms + 1000 * seconds, b""


def at_level(now_ms: int, delay_ms: int) -> Asked:
    level, length_ms = [(1, 1_000), (2, 5_000), (3, 10_000)][delay_ms % 3]
    request = [("DELAY", b"%d" % level), ("TIMER_DELAY_SEC", b"of lower precedence")]
    return request, lambda at_ms: at_ms + length_ms, b""


ACCEPTED = [at_instant, at_text, past_due, after_ms, after_ms, after_sec, at_level]
REJECTED = [
    rejected(b"no_due_time"),
    rejected(b"bad_header", ("TIMER_DELAY_MS", b"soon")),
    rejected(b"delay_too_long", ("TIMER_DELAY_SEC", b"8640000")),
    rejected(b"forbidden_target", ("DELAY", b"1"), ("REAL_TOPIC", b"__consumer_offsets")),
]
USERS: list[Headers] = [
    [],
    [("trace", b"0123"), ("trace", b"again"), ("empty", b"")],
    [("binary", bytes(range(256)))],
]


def a_timer(dice: random.Random, target: str) -> Sent:
    """A random timer of 0 to 10 s: every header form, past due ones, rejected ones."""
    forms = REJECTED if dice.random() < 0.15 else ACCEPTED
    request, due_ms, code = dice.choice(forms)(CLOCK.now_ms(), dice.randrange(10_000))
    partition = None
    if due_ms is not None and dice.random() < 0.3:
        partition = dice.randrange(PARTITIONS)
        request = [*request, ("REAL_TOPIC", target.encode()), ("REAL_QID", b"%d" % partition)]
    key = None if dice.random() < 0.1 else b"key-%d" % dice.randrange(500)
    return Sent(key, request, dice.choice(USERS), due_ms, code, partition)
