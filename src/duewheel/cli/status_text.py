"""`duewheel status` for people: what matters, in about ten lines. `--all` and `--output json` show
every field.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from duewheel.cli import times
from duewheel.config.durations import about
from duewheel.runtime.readiness import ALIVE

Line = tuple[str, str]

_BEHIND_MS = 1_000  # less is a transaction under way


def status_lines(found: Mapping[str, Any], now_ms: int) -> Iterator[str]:
    """Describes the state of a shard.

    Args:
        found: the object of `ops.status.status`.
        now_ms: this host's clock.
    """
    yield from _aligned(_status(found, now_ms))


def _aligned(lines: Iterator[Line]) -> Iterator[str]:
    """Lines with a name each, or "" for one that continues the line above."""
    every = list(lines)
    width = max(len(name) for name, _ in every)
    for name, text in every:
        yield f"{name:<{width}}  {text}"


def _status(found: Mapping[str, Any], now_ms: int) -> Iterator[Line]:
    yield "ready", "yes" if found["ready"] else "no"
    for code, reason in found["not_ready"].items():
        yield "", f"{reason} ({code})"
    yield "shard", f"{found['shard']}, {found['role']}, in {found['data_dir']}"
    yield "pending", str(found["pending"])
    yield "delivered", str(found["delivered"])
    yield "ingest", "; ".join(_ingest(found["ingest"]))
    yield "dequeue", "; ".join(_dequeue(found["dequeue"], now_ms))
    yield from _topics(found["timer_topics"])
    disk = found["disk"]
    room = f"{_gib(disk['free_bytes'])} free, {_gib(disk['min_free_bytes'])} of them reserved"
    yield "disk", room + (f"; {disk['rows_held']} rows wait" if disk["rows_held"] else "")
    if found["standby"] is not None:
        missing = found["standby"]["missing"]
        lacks = f"; reads {_offsets(missing)} again" if missing else ""
        yield "standby", f"{about(found['standby']['behind_ms'])} behind its owner{lacks}"
    if found["recovering"] is not None:
        yield "recovering", f"reads {_offsets(found['recovering']['missing'])} again"


def _process(found: Mapping[str, Any]) -> Iterator[str]:
    pid = found["pid"]
    yield found["state"] if pid is None else f"{found['state']}, process {pid}"


def _ingest(found: Mapping[str, Any]) -> Iterator[str]:
    yield from _process(found)
    if found["lag"] is None:
        yield "lag not known yet"
    elif not found["lag"]:
        yield "no lag"
    else:
        yield f"lag {found['lag']} messages, the oldest of {about(found['lag_ms'])} ago"


def _dequeue(found: Mapping[str, Any], now_ms: int) -> Iterator[str]:
    yield from _process(found)
    if found["state"] not in ALIVE:
        return
    if (found["behind_ms"] or 0) >= _BEHIND_MS:
        yield f"{about(found['behind_ms'])} behind"
    yield f"since its start {found['delivered']} delivered, {found['dead_letters']} dead letters"
    if found["dead_letters_wait"]:
        yield "dead letters wait for their topic"
    if found["copies_held"]:
        yield f"{found['copies_held']} copies wait for their partition"
    if found["closing_held"]:
        yield f"closes no slot: this clock is {about(found['clock_skew_ms'])} ahead of Kafka's"
    elif found["floor_ahead_ms"]:
        yield f"closed until {times.moment(found['floor_ms'], now_ms)}"


def _topics(topics: Mapping[str, Any] | None) -> Iterator[Line]:
    if topics is None:
        return
    yield "timer topics", ", ".join(topics["read"]) or "none"
    for kind in ("left_out", "faulty"):
        for topic, reason in topics[kind].items():
            yield "", f"{topic}: {reason}"


def _offsets(missing: Mapping[str, int]) -> str:
    return f"{sum(missing.values())} offsets"


def _gib(count: int) -> str:
    return f"{count / (1 << 30):.1f} GiB"
