"""Logs: one line per event on stderr, JSON or key=value text, the same for every library.

    {"ts": "2027-01-15T08:00:00.123456Z", "level": "warning", "role": "ingest", "pid": 4711,
     "event": "paused: ingest takes no row", "rows_paused": 1200}

Lines are short: long values are cut, an exception is one line with its innermost frames. Repeats by
a Kafka client without a broker are dropped, mostly (`FewRepeats`). Results of commands are not
logs: they go to stdout.
"""

from __future__ import annotations

import logging
import os
import re
import sys
import traceback
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal, TextIO

import structlog
from structlog.types import EventDict, Processor, WrappedLogger

from duewheel.config.values import is_secret

Role = Literal["run", "ingest", "dequeue", "audit", "serve", "relay", "cli"]
Format = Literal["auto", "json", "text"]

VALUE_CHARACTERS_MAX = 600  # a JVM stack trace as a message has tens of thousands
VALUE_ITEMS_MAX = 20
REPEAT_S = 10.0
REPEAT_MAX_S = 600.0
_KINDS_MAX = 1_000
_FRAMES = 3
_QUIET = ("kafka", "py4j")  # their info level logs every request
# kafka-python's warning about a step of 0.1 s or more; its text differs each time.
_SLOW_STEP = "It is blocking the event loop"
_SECRET_TEXT = re.compile(
    r"((?:pass(?:word|phrase)|secret|token)\s*[=:]\s*)(\"[^\"]*\"|'[^']*'|[^\s;,]+)", re.IGNORECASE
)


def configure(
    role: Role, level: str = "info", format: Format = "auto", stream: TextIO | None = None
) -> None:
    """Sets up logging for this process; a second call replaces the first.

    Every line has the role. `level` is for duewheel's own events; libraries log from warning on.
    "auto" is text on a terminal and JSON elsewhere. The stream is stderr by default.
    """
    stream = stream or sys.stderr
    who = {"role": role, "pid": os.getpid()}

    def add_who(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
        return {**event, **who}

    # For events of structlog and of the standard library.
    shared: list[Processor] = [
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True, key="ts"),
        add_who,
        _exception_in_one_line,
        _clean,
    ]
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared[:3], _logger_name, *shared[3:]],
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                _renderer(resolve(format, stream)),
            ],
        )
    )
    handler.addFilter(FewRepeats())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("duewheel").setLevel(level.upper())
    for name in _QUIET:
        logging.getLogger(name).setLevel(logging.WARNING)
    logging.captureWarnings(True)
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            structlog.contextvars.merge_contextvars,
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,
    )


class FewRepeats(logging.Filter):
    """Drops most records of a Kafka client, or of OpenTelemetry without its collector, that repeat
    logger and unformatted message; `repeated` of the next passed one counts them.

    A client without a broker logs the same nine messages five times a second, and duewheel's own
    events report the failure. The interval between passed records of a kind begins at `REPEAT_S`
    and doubles up to `REPEAT_MAX_S`; after an interval without any it begins again. Warnings about
    slow steps, which any busy machine causes, are always dropped. Thread-safe: its handler holds a
    lock.
    """

    def __init__(self, kinds_max: int = _KINDS_MAX) -> None:
        super().__init__()
        self._kinds_max = kinds_max
        self._seen: dict[tuple[str, str], _Repeats] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        if record.name.partition(".")[0] not in {"kafka", "opentelemetry"}:
            return True
        if _SLOW_STEP in str(record.msg):
            return False
        kind = (record.name, str(record.msg))
        before = self._seen.get(kind)
        if before is not None and abs(record.created - before.shown_s) < before.interval_s:
            before.left_out += 1
            before.newest_s = record.created
            return False
        if before is None and len(self._seen) >= self._kinds_max:
            self._seen.clear()
        interval_s = REPEAT_S
        if before is not None and abs(record.created - before.newest_s) < before.interval_s:
            interval_s = min(2 * before.interval_s, REPEAT_MAX_S)
        self._seen[kind] = _Repeats(record.created, record.created, interval_s)
        record.repeated = 0 if before is None else before.left_out
        return True


@dataclass(slots=True)
class _Repeats:
    """A kind of record; `left_out` counts those dropped since `shown_s`."""

    shown_s: float
    newest_s: float
    interval_s: float
    left_out: int = 0


def resolve(format: Format, stream: TextIO | None = None) -> Literal["json", "text"]:
    """The format that "auto" stands for on this stream (stderr by default)."""
    if format != "auto":
        return format
    return "text" if (stream or sys.stderr).isatty() else "json"


def jvm_pattern(role: Role, format: Literal["json", "text"]) -> str:
    """The same line as a log4j2 pattern, for Spark's JVM."""
    message = f"%maxLen{{%m}}{{{VALUE_CHARACTERS_MAX}}}"
    time = "%d{yyyy-MM-dd'T'HH:mm:ss.SSS'Z'}{UTC}"
    level = "%p{WARN=warning, ERROR=error, FATAL=critical, INFO=info, DEBUG=debug, TRACE=debug}"
    if format == "text":
        return f"ts={time} level={level} role={role} logger=%c{{1}} event={message}%n"
    return (
        f'{{"ts": "{time}", "level": "{level}", "role": "{role}", '
        f'"logger": "%c{{1}}", "event": "%enc{{{message}}}{{JSON}}"}}%n'
    )


def _renderer(format: Literal["json", "text"]) -> Processor:
    first = ["ts", "level", "role", "pid", "event"]
    if format == "text":
        return structlog.processors.KeyValueRenderer(key_order=first, drop_missing=True)
    as_json = structlog.processors.JSONRenderer(default=str)  # ASCII, as repr of text: safe to show

    def render(logger: WrappedLogger, name: str, event: EventDict) -> str | bytes:
        head = {key: event[key] for key in first if key in event}
        return as_json(logger, name, {**head, **event})

    return render


def _logger_name(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    record = event.get("_record")
    if isinstance(record, logging.LogRecord):
        event["logger"] = record.name
        if left_out := getattr(record, "repeated", 0):
            event["repeated"] = left_out
    return event


def _exception_in_one_line(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    """Replaces `exc_info` by `error`, the exception, and `at`, the innermost frames."""
    given = event.pop("exc_info", None)
    error = given[1] if isinstance(given, tuple) else given
    if given is True:
        error = sys.exc_info()[1]
    if isinstance(error, BaseException):
        event["error"] = describe(error)
        frames = traceback.extract_tb(error.__traceback__)[-_FRAMES:]
        if frames:
            event["at"] = " > ".join(f"{Path(f.filename).name}:{f.lineno}" for f in frames)
    return event


def describe(error: BaseException) -> str:
    """The class of an exception, and the first line of its message."""
    text = str(error).strip()
    return f"{type(error).__name__}: {text.splitlines()[0]}" if text else type(error).__name__


def _clean(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    """Hides secrets and cuts long values: users choose names of topics, and their number."""
    for key, value in event.items():
        if key.startswith("_"):
            continue
        if isinstance(value, str):
            hidden = "***" if is_secret(key) else _SECRET_TEXT.sub(r"\1***", value)
            event[key] = shortened(hidden)
        elif isinstance(value, list | tuple | dict) and len(value) > VALUE_ITEMS_MAX:
            event[key] = _first_items(value)
    return event


def _first_items(value: list[Any] | tuple[Any, ...] | dict[Any, Any]) -> list[Any] | dict[Any, Any]:
    more = f"and {len(value) - VALUE_ITEMS_MAX} more"
    if isinstance(value, dict):
        return {**dict(islice(value.items(), VALUE_ITEMS_MAX)), more: ""}
    return [*value[:VALUE_ITEMS_MAX], more]


def shortened(text: str) -> str:
    """A text of VALUE_CHARACTERS_MAX at most, and how many it had."""
    if len(text) <= VALUE_CHARACTERS_MAX:
        return text
    return f"{text[:VALUE_CHARACTERS_MAX]}… ({len(text)} characters)"
