"""The headers by which a message carries its attempts through the timer topic.

They are ordinary headers for the service, which delivers them unchanged. A program that may write
to a consumer's topic can set them, too: a value that does not parse counts as absent, and each
retry counts up from the value, so the worst of it is an early dead letter of that one message.

No header of duewheel's own leaves with a retry or a dead letter: neither those that a delivery has
added, nor requests that a producer has written into a message to have them read at its retry.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

from duewheel.api.due_time import NonNullHeader
from duewheel.schemas.header_names import (
    REQUEST,
    RETRY,
    RETRY_ATTEMPT,
    RETRY_DEADLINE_MS,
    RETRY_FIRST,
    RETRY_HISTORY,
)

HISTORY_MAX = 10  # failures that are kept: the first one, and the last ones
_HISTORY_BYTES_MAX = 16_384  # above what HISTORY_MAX of them can have, escapes included
_CLASS_BYTES_MAX = 100
_TEXT_BYTES_MAX = 200
_NUMBER_END = 10**15  # of attempts and times in a history
_READ_MAX = 4_096  # characters of an error's text that are searched for secrets

_ATTEMPT = re.compile(rb"[1-9][0-9]{0,5}")
_DEADLINE_MS = re.compile(rb"[0-9]{1,15}")
_PLACE = re.compile(rb"[A-Za-z0-9._-]{1,249}-[0-9]{1,10}@[0-9]{1,19}")
_SECRET = re.compile(
    r"((?:password|passwd|secret|token|api[_-]?key|authorization|credential)[\w.-]{0,30}[\"']?"
    r"\s{0,9}[=:]\s{0,9})(?:\"[^\"]*\"?|'[^']*'?|(?:bearer|basic)\s+\S+|[^\s,;&]+)",
    re.IGNORECASE,
)
_USER_OF_URL = re.compile(r"(\w://)[^\s/@]+@")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]+")

_LEFT_OUT = REQUEST.keys() | RETRY


@dataclass(frozen=True, slots=True)
class Failure:
    """One failed attempt.

    Attributes:
        attempt: 1, 2, …
        at_ms: when it failed, epoch ms, by the consumer's clock.
        error: the class of the error.
        text: of the error, shortened, without secrets in forms that are recognized.
    """

    attempt: int
    at_ms: int
    error: str
    text: str

    @classmethod
    def of(
        cls, attempt: int, at_ms: int, error: BaseException, describe: Callable[[Any], str]
    ) -> Self:
        """Describes an error; one whose text cannot be made has none."""
        kind = type(error)
        try:
            text = describe(error)
        except Exception:  # noqa: BLE001 - the message must get its retry all the same
            text = ""
        name = f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins.")
        return cls(attempt, at_ms, *_bounded(name, text))

    @classmethod
    def from_json(cls, entry: Any) -> Self | None:
        """Reads an entry of a history; None if it is none."""
        match entry:
            case {"attempt": int(n), "at_ms": int(at_ms), "error": str(error), "text": str(text)}:
                if max(abs(n), abs(at_ms)) < _NUMBER_END:
                    return cls(n, at_ms, *_bounded(error, text))
        return None

    def as_json(self) -> dict[str, Any]:
        """The entry of a history."""
        return {slot: getattr(self, slot) for slot in ("attempt", "at_ms", "error", "text")}


@dataclass(frozen=True, slots=True)
class Attempts:
    """What a message carries about its attempts.

    Attributes:
        attempt: which one this is: 1, 2, …
        first: topic-partition@offset of the message when it was new.
        deadline_ms: no attempt begins later, epoch ms; None: no deadline yet.
        history: of the failed attempts.
    """

    attempt: int
    first: str
    deadline_ms: int | None
    history: tuple[Failure, ...]

    @classmethod
    def of(cls, record: Any) -> Self:
        """Reads the headers of a consumed record."""
        headers = dict(record.headers or ())  # of several with a name the last one counts
        attempt = headers.get(RETRY_ATTEMPT) or b""
        if not _ATTEMPT.fullmatch(attempt):
            return cls(1, place_of(record), None, ())
        first = headers.get(RETRY_FIRST) or b""
        deadline = headers.get(RETRY_DEADLINE_MS) or b""
        return cls(
            int(attempt),
            (first if _PLACE.fullmatch(first) else b"unknown").decode(),
            int(deadline) if _DEADLINE_MS.fullmatch(deadline) else None,
            _history(headers.get(RETRY_HISTORY) or b""),
        )

    def after(self, failure: Failure, deadline_ms: int | None) -> Attempts:
        """What the message carries to its next attempt."""
        kept = self.history[:1], self.history[1:][-(HISTORY_MAX - 2) :]
        history = (*kept[0], *kept[1], failure)
        return Attempts(self.attempt + 1, self.first, deadline_ms, history)

    def headers(self, attempt: int) -> list[NonNullHeader]:
        """The headers, with this number of the attempt."""
        entries = [failure.as_json() for failure in self.history]
        history = json.dumps(entries, ensure_ascii=False, separators=(",", ":"))
        made = [
            (RETRY_ATTEMPT, b"%d" % attempt),
            (RETRY_FIRST, self.first.encode()),
            (RETRY_HISTORY, history.encode()),
        ]
        if self.deadline_ms is not None:
            made.append((RETRY_DEADLINE_MS, b"%d" % self.deadline_ms))
        return made


def place_of(record: Any) -> str:
    """The topic-partition@offset of a consumed record."""
    return f"{record.topic}-{record.partition}@{record.offset}"


def own_headers(record: Any) -> list[NonNullHeader]:
    """The message's own headers. A null value becomes an empty one: kafka-python writes no null."""
    return [(name, value or b"") for name, value in record.headers or () if name not in _LEFT_OUT]


def error_text(error: BaseException) -> str:
    """An error's text, without passwords and the like where their form shows them.

    >>> error_text(OSError("no login at kafka://ann:pw@host, password = 'x y'; port 9092"))
    'no login at kafka://***@host, password = ***; port 9092'
    """
    text = str(error)[:_READ_MAX]
    return _SECRET.sub(r"\1***", _USER_OF_URL.sub(r"\1***@", text))


def _history(value: bytes) -> tuple[Failure, ...]:
    if len(value) > _HISTORY_BYTES_MAX:
        return ()
    try:
        entries = json.loads(value)
    except (ValueError, RecursionError):
        return ()
    failures = [Failure.from_json(entry) for entry in entries] if isinstance(entries, list) else []
    return tuple(failure for failure in failures if failure is not None)


def _bounded(error: str, text: str) -> tuple[str, str]:
    return _cut(error, _CLASS_BYTES_MAX), _cut(text, _TEXT_BYTES_MAX)


def _cut(text: str, bytes_max: int) -> str:
    """A text on one line, with so many bytes at most."""
    line = _CONTROL.sub(" ", text)[:bytes_max]
    return line.encode(errors="replace")[:bytes_max].decode(errors="ignore")
