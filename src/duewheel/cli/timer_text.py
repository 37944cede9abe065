"""Pending timers for people; `--output json` has every field, with times in milliseconds."""

from __future__ import annotations

from collections.abc import Iterator

from duewheel.api.timers import TimerSummary
from duewheel.cli import times
from duewheel.cli.printable import printable
from duewheel.config.instants import utc_text


def timer_line(row: TimerSummary, now_ms: int) -> str:
    """One pending timer: when it leaves, for which target, and what is special about it.

    Args:
        row: the timer.
        now_ms: this host's clock.
    """
    return printable("  ".join(_parts(row, now_ms)))


def _parts(row: TimerSummary, now_ms: int) -> Iterator[str]:
    leaves_ms, due_ms = row.leaves_ms, row.due_ms
    yield utc_text(leaves_ms)
    yield times.distance(leaves_ms, now_ms)
    yield row.topic
    if row.key is not None:
        yield f"key {row.key}"
    if row.key_base64 is not None:
        yield f"key (base64) {row.key_base64}"
    yield f"id {row.id}"
    yield "no value" if row.value_bytes is None else f"{row.value_bytes} bytes"
    if row.level is not None:
        yield f"level {row.level}"
    if due_ms is None:
        yield "dead letter"
    elif row.rolled:
        yield f"rolls; due {times.moment(due_ms, now_ms)}"
    if row.cancelled:
        yield "CANCELLED: will not be delivered"
