"""`duewheel status` for people: the main facts, in about ten lines. `--all` and `--output json`
have every field.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from duewheel.api.fact import phrases
from duewheel.api.shard import IngestView, ProcessView, ShardView
from duewheel.config.durations import about

Line = tuple[str, str]

WITH_CANCELLED = "cancelled ones included"  # in a count of pending timers


def status_lines(shard: ShardView, now_ms: int, unreachable: str = "") -> Iterator[str]:
    """Describes the state of a shard.

    Args:
        now_ms: this host's clock.
        unreachable: why this host has no connection to Kafka; empty if that is not so.
    """
    lines = list(_status(shard, now_ms, unreachable))
    width = max(len(name) for name, _ in lines)
    return (f"{name:<{width}}  {text}" for name, text in lines)


def _status(shard: ShardView, now_ms: int, unreachable: str) -> Iterator[Line]:
    """Lines with a name each, or "" for one that continues the line above."""
    yield "ready", "yes" if shard.ready else "no"
    for code, reason in shard.not_ready.items():
        yield "", f"{reason} ({code})"
    if unreachable:
        yield "", unreachable
    yield "shard", f"{shard.shard}, {shard.role}, in {shard.data_dir}"
    is_known = shard.pending is not None
    yield "pending", f"{shard.pending}, {WITH_CANCELLED}" if is_known else "unknown"
    yield "delivered", str(shard.delivered)
    answered = "ends_unknown" not in shard.not_ready
    lag = _lag(shard.ingest, now_ms, answered=answered)
    yield "ingest", "; ".join([_process(shard.ingest), lag, *phrases(shard.ingest)])
    more = phrases(shard.dequeue) if shard.dequeue.is_alive else ()
    yield "dequeue", "; ".join([_process(shard.dequeue), *more])
    yield from _table("parked for", shard.dequeue.targets_closed or {})
    yield from _table("parked from", shard.dequeue.timer_topics_resting or {})
    yield from _table("paused", shard.dequeue.paused_timers or {})
    if shard.timer_topics is not None:
        yield "timer topics", ", ".join(shard.timer_topics.read) or "none"
        yield from _table("", shard.timer_topics.left_out)
        yield from _table("", shard.timer_topics.faulty)
        yield from (("", text) for text in phrases(shard.timer_topics))
    yield from _table("quotas", {t: text for t, q in shard.quotas.items() for text in phrases(q)})
    yield from _table("rates", {t: text for t, r in shard.rates.items() for text in phrases(r)})
    free, least = shard.disk.free_bytes, shard.disk.min_free_bytes
    room = f"{_gib(free)} free, {_gib(least)} of them reserved"
    yield "disk", "; ".join([room, *phrases(shard.disk)])
    if shard.standby is not None:
        yield "standby", "; ".join(phrases(shard.standby))
    if shard.copies_signed is False:
        remedy = "stop the shard, then `duewheel reconfigure --rotate-key`"
        yield "copies", f"have no MAC, so producers can forge them: {remedy}"


def _process(process: ProcessView) -> str:
    return process.state if process.pid is None else f"{process.state}, process {process.pid}"


def _lag(ingest: IngestView, now_ms: int, *, answered: bool) -> str:
    if ingest.lag is None:
        return "lag not known yet"
    if not answered:
        since = about(now_ms - (ingest.lag_polled_ms or now_ms))
        return f"lag not known, {ingest.lag} messages {since} ago"
    if not ingest.lag:
        return "no lag"
    return f"lag {ingest.lag} messages, the oldest seen {about(ingest.lag_ms or 0)} ago"


def _table(name: str, texts: Mapping[str, str]) -> Iterator[Line]:
    for row, (key, text) in enumerate(texts.items()):
        yield "" if row else name, f"{key}: {text}"


def _gib(count: int) -> str:
    return f"{count / (1 << 30):.1f} GiB"
