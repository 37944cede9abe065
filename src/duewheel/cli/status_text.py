"""`duewheel status` for people: what matters, in about ten lines. `--all` and `--output json` show
every field.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from duewheel.api.shard import (
    DequeueView,
    IngestView,
    ProcessView,
    QuotaView,
    ShardView,
    TimerTopicsView,
)
from duewheel.cli import times
from duewheel.config.durations import about

Line = tuple[str, str]

WITH_CANCELLED = "cancelled ones included"  # in a count of pending timers


def status_lines(shard: ShardView, now_ms: int, unreachable: str = "") -> Iterator[str]:
    """Describes the state of a shard.

    Args:
        shard: its state.
        now_ms: this host's clock.
        unreachable: why this host has no connection to Kafka; empty if that is not so.
    """
    yield from _aligned(_status(shard, now_ms, unreachable))


def _aligned(lines: Iterator[Line]) -> Iterator[str]:
    """Lines with a name each, or "" for one that continues the line above."""
    every = list(lines)
    width = max(len(name) for name, _ in every)
    for name, text in every:
        yield f"{name:<{width}}  {text}"


def _status(shard: ShardView, now_ms: int, unreachable: str) -> Iterator[Line]:
    yield "ready", "yes" if shard.ready else "no"
    for code, reason in shard.not_ready.items():
        yield "", f"{reason} ({code})"
    if unreachable:
        yield "", unreachable
    yield "shard", f"{shard.shard}, {shard.role}, in {shard.data_dir}"
    yield "pending", f"{shard.pending}, {WITH_CANCELLED}"
    yield "delivered", str(shard.delivered)
    answered = "ends_unknown" not in shard.not_ready
    yield "ingest", "; ".join(_ingest(shard.ingest, now_ms, answered=answered))
    yield "dequeue", "; ".join(_dequeue(shard.dequeue, now_ms))
    yield from _obstacles(shard.dequeue)
    yield from _topics(shard.timer_topics)
    yield from _quotas(shard.quotas)
    disk = shard.disk
    room = f"{_gib(disk.free_bytes)} free, {_gib(disk.min_free_bytes)} of them reserved"
    waiting = disk.rows_without_room
    yield "disk", room + (f"; {waiting} rows wait" if waiting else "")
    if shard.standby is not None:
        missing = shard.standby.missing
        lacks = f"; reads {_offsets(missing)} again" if missing else ""
        yield "standby", f"{about(shard.standby.behind_ms)} behind its owner{lacks}"
    if shard.copies_signed is False:
        remedy = "stop the shard, then `duewheel reconfigure --rotate-key`"
        yield "copies", f"have no MAC, so producers can forge them: {remedy}"


def _process(process: ProcessView) -> Iterator[str]:
    pid = process.pid
    yield process.state if pid is None else f"{process.state}, process {pid}"


def _ingest(process: IngestView, now_ms: int, *, answered: bool) -> Iterator[str]:
    yield from _process(process)
    if process.lag is None:
        yield "lag not known yet"
    elif not answered:
        since = about(now_ms - (process.lag_polled_ms or now_ms))
        yield f"lag not known, {process.lag} messages {since} ago"
    elif not process.lag:
        yield "no lag"
    else:
        yield f"lag {process.lag} messages, the oldest seen {about(process.lag_ms or 0)} ago"


def _dequeue(process: DequeueView, now_ms: int) -> Iterator[str]:
    yield from _process(process)
    if not process.is_alive:
        return
    if process.behind_ms:
        yield f"{about(process.behind_ms)} behind"
    letters = process.dead_letters
    yield f"since its start {process.delivered} delivered, {letters} dead letters"
    if process.dead_letters_wait:
        yield "dead letters wait for their topic"
    if process.copies_held:
        yield f"{process.copies_held} copies wait for their partition"
    if process.closing_blocked:
        yield f"closes no slot: this clock is {about(process.clock_skew_ms or 0)} ahead of Kafka's"
    elif process.floor_ahead_ms and process.floor_ms is not None:
        yield f"closed until {times.moment(process.floor_ms, now_ms)}"


def _obstacles(process: DequeueView) -> Iterator[Line]:
    if process.transaction_blocked:
        yield "blocked", process.transaction_blocked
    for row, (topic, text) in enumerate((process.targets_closed or {}).items()):
        yield "" if row else "parked for", f"{topic}: {text}"


def _topics(topics: TimerTopicsView | None) -> Iterator[Line]:
    if topics is None:
        return
    yield "timer topics", ", ".join(topics.read) or "none"
    for reasons in (topics.left_out, topics.faulty):
        for topic, reason in reasons.items():
            yield "", f"{topic}: {reason}"


def _quotas(quotas: Mapping[str, QuotaView]) -> Iterator[Line]:
    waiting = [(topic, quota) for topic, quota in quotas.items() if quota.waiting]
    for row, (topic, quota) in enumerate(waiting):
        count, rate = quota.waiting, quota.per_second
        text = (
            f"{topic}: {count} messages wait, {about(1_000 * count // rate)} at {rate} per second"
        )
        yield "" if row else "quotas", text


def _offsets(missing: Mapping[str, int]) -> str:
    return f"{sum(missing.values())} offsets"


def _gib(count: int) -> str:
    return f"{count / (1 << 30):.1f} GiB"
