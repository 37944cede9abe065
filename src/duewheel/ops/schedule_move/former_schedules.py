"""The records of a former schedules topic: `duewheel recur` fired them until it was replaced by
recurring timers. Only `schedule move` reads them. The values are JSON:

    schedule/NAME    when it fires, and the message; an instant after the record's timestamp fires
    position/NAME    how far its instants are written to the timer topic
    owner            the heartbeat of `recur`; no value after a clean stop
"""

from __future__ import annotations

import json
import re
from base64 import b64decode
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from duewheel.api.due_time import DueTime, NonNullHeader
from duewheel.checkpoints.json_fields import MISSHAPEN, from_json
from duewheel.client.request_headers import target, timer_headers, users
from duewheel.errors import ConfigError
from duewheel.kafka.progress.newest import NewestRecord
from duewheel.schemas import header_names as names
from duewheel.wheel.recurrence import recurrence_of

OWNER_KEY = b"owner"
SCHEDULE, POSITION = b"schedule/", b"position/"
_NAME = re.compile(r"[A-Za-z0-9._-]{1,200}")
_INSTANTS_END_MS = 10**14  # the year 5138; dates, with which cron computes, end soon after


class _Schedule(NamedTuple):
    """The value of `schedule/NAME`."""

    revision: str
    timer_topic: str
    target: str
    cron: str | None
    zone: str
    interval_ms: int | None
    start_ms: int  # from which an interval counts
    key: str | None  # base64, as all bytes
    value: str | None
    headers: tuple[tuple[str, str], ...]
    missed: str
    paused: bool


class _Position(NamedTuple):
    """The value of `position/NAME`."""

    revision: str  # another one than the schedule's: its change was not in effect yet
    done_ms: int
    ahead: tuple[tuple[int, int], ...]  # instants that are written but not due; partition


@dataclass(frozen=True, slots=True)
class FormerSchedule:
    """A schedule, and how far its instants are written.

    Attributes:
        written_ms: no instant up to this is written any more.
    """

    name: str
    written_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[NonNullHeader, ...]
    fields: _Schedule

    def instants(self, now_ms: int, until_ms: int) -> tuple[list[int], int]:
        """Returns the instants up to `until_ms` that fire and are not written, and the one after
        these. Late ones fire by the policy; while it is paused, none fires.

        Raises:
            ConfigError: expression, zone or interval do not parse, or there are no further ones.
        """
        headers = {name.encode(): value for name, value in self._recurrence}
        recurrence, instants = recurrence_of(headers), list[int]()
        due_ms = recurrence.first(self.fields.start_ms, self.written_ms, 0, now_ms)
        while due_ms is not None and due_ms <= until_ms:
            fires, following_ms = recurrence.following(due_ms, 0, now_ms)
            instants += [due_ms] if fires and not self.fields.paused else []
            due_ms = following_ms
        if due_ms is None:
            raise ConfigError("it has no further instant")
        return instants, due_ms

    def firing(self, due_ms: int) -> list[NonNullHeader]:
        """Returns the headers of one firing; raises ConfigError if the message is impossible."""
        aim, to, name = self.fields.target, self.fields.timer_topic, f"{self.name}@{due_ms}"
        return timer_headers(aim, DueTime.of(due_ms), to, headers=self.headers, id=name)

    def seed(self, starts_ms: int) -> list[NonNullHeader]:
        """Returns the headers of a recurring timer from this instant on; raises as `firing`."""
        return [
            *users(self.headers),
            *self._recurrence,
            (names.STARTS_MS, b"%d" % starts_ms),
            *([(names.PAUSED, b"")] if self.fields.paused else []),
            (names.TIMER_ID, self.name.encode()),
            *target(self.fields.target, None, self.fields.timer_topic),
        ]

    def position(self, done_ms: int) -> bytes:
        """Returns the value of its position once its instants are written so far."""
        own = {"revision": self.fields.revision, "timer_topic": self.fields.timer_topic}
        return json.dumps({**own, "done_ms": done_ms, "ahead": [], "fired_ms": None}).encode()

    @property
    def _recurrence(self) -> list[NonNullHeader]:
        fields = self.fields
        missed = (names.MISSED, fields.missed.encode())
        if fields.interval_ms is not None:
            return [(names.EVERY, b"%d" % fields.interval_ms), missed]
        cron = " ".join((fields.cron or "").split()).encode()
        return [(names.CRON, cron), (names.ZONE, fields.zone.encode()), missed]


def read_schedules(newest: Mapping[bytes, NewestRecord]) -> dict[str, FormerSchedule | str]:
    """Returns the schedules by name; a text says why one cannot be read."""
    schedules: dict[str, FormerSchedule | str] = {}
    for key in sorted(key for key, record in newest.items() if record.value):
        if not key.startswith(SCHEDULE):
            continue
        name = key.removeprefix(SCHEDULE).decode(errors="backslashreplace")
        position = newest.get(POSITION + key.removeprefix(SCHEDULE))
        try:
            schedules[name] = _schedule(name, newest[key], position.value if position else b"")
        except MISSHAPEN as error:
            schedules[name] = f"it cannot be read: {error!r}"
    return schedules


def is_alive(newest: Mapping[bytes, NewestRecord], now_ms: int, silence_ms: int) -> bool:
    """Whether `recur` runs: it has written its heartbeat within `silence_ms`."""
    owner = newest.get(OWNER_KEY)
    return owner is not None and bool(owner.value) and now_ms - owner.timestamp_ms <= silence_ms


def _schedule(name: str, record: NewestRecord, position: bytes) -> FormerSchedule:
    if not _NAME.fullmatch(name):
        raise ValueError("the name is none")
    fields: _Schedule = from_json(_Schedule, json.loads(record.value))
    if (fields.cron is None) == (fields.interval_ms is None):
        raise ValueError("it has no cron expression or interval, or both")
    if fields.interval_ms is not None and fields.interval_ms < names.INTERVAL_MS_MIN:
        raise ValueError(f"{fields.interval_ms} is no interval")
    written_ms = record.timestamp_ms
    if position:
        written: _Position = from_json(_Position, json.loads(position))
        since_ms = 0 if written.revision == fields.revision else record.timestamp_ms
        written_ms = max(since_ms, written.done_ms, *(at for at, _ in written.ahead))
    for at_ms in (fields.start_ms, written_ms):
        if not 0 <= at_ms < _INSTANTS_END_MS:
            raise ValueError(f"{at_ms} is no instant")
    headers = tuple((header, _octets(value) or b"") for header, value in fields.headers)
    key, value = _octets(fields.key), _octets(fields.value)
    return FormerSchedule(name, written_ms, key, value, headers, fields)


def _octets(text: str | None) -> bytes | None:
    return None if text is None else b64decode(text, validate=True)
