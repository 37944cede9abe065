"""A recurring schedule, and the position of its firings: the two kinds of records of the schedules
topic, JSON under the keys `schedule/NAME` and `position/NAME`.

Commands write schedules. The scheduler writes positions, each in the transaction that writes the
firings that it counts. A schedule begins again with each change: a change has a `revision` of its
own, and instants before it do not count.
"""

from __future__ import annotations

import json
import re
from base64 import b64decode, b64encode
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal, cast, get_args

from duewheel.api.due_time import DueTime
from duewheel.checkpoints.json_fields import MISSHAPEN, integer, name
from duewheel.client.request_headers import timer_headers
from duewheel.errors import ConfigError
from duewheel.schemas.name_patterns import may_name_topic
from duewheel.wheel.instants import Cron, Every, Instants

Missed = Literal["skip", "one", "all"]

SCHEDULE_PREFIX = b"schedule/"
POSITION_PREFIX = b"position/"
INTERVAL_MS_MIN = 1_000
VALUE_BYTES_MAX = 256 * 1024
CRON_MAX = 1_000
_SHOWN_MAX = 249
_INSTANTS_END_MS = 10**14  # the year 5138; dates, with which cron computes, end soon after
_NAME = re.compile(r"[A-Za-z0-9._-]{1,200}")


@dataclass(frozen=True, slots=True)
class Schedule:
    """What fires, and when.

    Attributes:
        name: of a-z A-Z 0-9 . _ -.
        revision: random, of this change.
        cron, zone: the expression and its time zone; or
        interval_ms, start_ms: elapsed time, and the instant of its first firing.
        timer_topic: which takes the firings.
        target, key, value, headers: the message.
        missed: which instants fire that were not written in time: none, the latest one, or all.
        paused: no instant fires.
        since_ms: instants after this fire: when the broker took the record. Not part of its value.
    """

    name: str
    revision: str
    timer_topic: str
    target: str
    cron: str | None = None
    zone: str = "UTC"
    interval_ms: int | None = None
    start_ms: int = 0
    key: bytes | None = None
    value: bytes | None = None
    headers: tuple[tuple[str, bytes], ...] = ()
    missed: Missed = "skip"
    paused: bool = False
    since_ms: int = field(default=0, compare=False)

    def __post_init__(self) -> None:
        """Checks all that can be known without Kafka.

        Raises:
            ConfigError: with the reason.
        """
        require_name(self.name)
        if (self.cron is None) == (self.interval_ms is None):
            raise ConfigError("give either a cron expression or an interval")
        if self.interval_ms is not None and self.interval_ms < INTERVAL_MS_MIN:
            raise ConfigError(f"an interval of {self.interval_ms}ms is below a second")
        if self.missed not in get_args(Missed):
            raise ConfigError(f'missed = "{self.missed}" is none of {", ".join(get_args(Missed))}')
        if self.since_ms >= _INSTANTS_END_MS:
            raise ConfigError(f"its record has the timestamp {self.since_ms}")
        if len(self.value or b"") > VALUE_BYTES_MAX:
            raise ConfigError(f"the value has more than {VALUE_BYTES_MAX >> 10} KiB")
        if len(self.cron or "") > CRON_MAX:
            raise ConfigError(f"the cron expression has more than {CRON_MAX} characters")
        for topic in (self.target, self.timer_topic):
            if not may_name_topic(topic):
                raise ConfigError(f"{topic[:_SHOWN_MAX]!r} is no name of a topic")
        self.instants()
        # Found here and not when it fires: the firings of others are in the same transaction.
        self.firing_headers(0)

    def instants(self) -> Instants:
        """When it fires, pauses aside.

        Raises:
            ConfigError: the expression or the zone does not parse.
        """
        if self.interval_ms is not None:
            return Every(self.interval_ms, self.start_ms)
        return Cron(self.cron or "", self.zone)

    def firing_headers(self, instant_ms: int) -> Sequence[tuple[str, bytes]]:
        """The headers of the firing of an instant, a request for a timer.

        Raises:
            InvalidTimer: the client would refuse it.
        """
        return timer_headers(
            self.target,
            DueTime.of(instant_ms),
            self.timer_topic,
            headers=self.headers,
            id=self.timer_id(instant_ms),
        )

    def timer_id(self, instant_ms: int) -> str:
        """The id of a firing. It has the revision: a cancel of an earlier revision's firing, sent
        late by an instance that was replaced, must not match.
        """
        return firing_id(self.name, instant_ms, self.revision)

    def encode(self) -> bytes:
        """The record's value."""
        shown: dict[str, Any] = {each.name: getattr(self, each.name) for each in fields(self)}
        del shown["name"], shown["since_ms"]
        for each in ("key", "value"):
            shown[each] = _to_text(shown[each])
        shown["headers"] = [[header, _to_text(value)] for header, value in self.headers]
        return json.dumps(shown).encode()

    @classmethod
    def decode(cls, schedule: str, value: bytes, since_ms: int) -> Schedule:
        """Reads a record.

        Raises:
            ConfigError: another version or program has written it.
        """
        try:
            found = json.loads(value)
            return cls(
                name=schedule,
                revision=name(found["revision"]),
                timer_topic=name(found["timer_topic"]),
                target=name(found["target"]),
                cron=None if found["cron"] is None else name(found["cron"]),
                zone=name(found["zone"]),
                interval_ms=None if found["interval_ms"] is None else integer(found["interval_ms"]),
                start_ms=integer(found["start_ms"]),
                key=_from_text(found["key"]),
                value=_from_text(found["value"]),
                headers=tuple((name(h), _from_text(v) or b"") for h, v in found["headers"]),
                missed=cast("Missed", name(found["missed"])),
                paused=found["paused"] is True,
                since_ms=since_ms,
            )
        except MISSHAPEN as error:
            if isinstance(error, ConfigError):
                raise
            raise ConfigError(f"the schedule {schedule} cannot be read: {error!r}") from error


@dataclass(frozen=True, slots=True)
class FiringPosition:
    """Which instants of a schedule are written. Each is written once.

    Attributes:
        revision: of the schedule.
        timer_topic: which has the firings ahead.
        done_ms: the last instant that has left, is due, or does not fire.
        ahead: later ones that are written: instant, and partition of the timer topic.
        fired_ms: the last instant that was due before `ahead`, of whichever revision; None: none.
    """

    revision: str
    timer_topic: str
    done_ms: int
    ahead: tuple[tuple[int, int], ...] = ()
    fired_ms: int | None = None

    @property
    def written_ms(self) -> int:
        """No instant up to this is written any more."""
        return self.ahead[-1][0] if self.ahead else self.done_ms

    def fired_by(self, now_ms: int) -> int | None:
        """The last instant that is due and was written; None: there is none."""
        return max((at for at, _ in self.ahead if at <= now_ms), default=self.fired_ms)

    def encode(self) -> bytes:
        """The record's value."""
        return json.dumps({each.name: getattr(self, each.name) for each in fields(self)}).encode()

    @classmethod
    def decode(cls, schedule: str, value: bytes) -> FiringPosition:
        """Reads a record.

        Raises:
            ConfigError: another version or program has written it.
        """
        try:
            found = json.loads(value)
            return cls(
                name(found["revision"]),
                name(found["timer_topic"]),
                _instant(found["done_ms"]),
                tuple((_instant(at), integer(partition)) for at, partition in found["ahead"]),
                None if found.get("fired_ms") is None else _instant(found["fired_ms"]),
            )
        except MISSHAPEN as error:
            raise ConfigError(f"the position of {schedule} cannot be read: {error!r}") from error


def firing_id(schedule: str, instant_ms: int, revision: str) -> str:
    """The timer id of a firing.

    >>> firing_id("daily-report", 1_800_000_000_000, "5f0c")
    'daily-report@1800000000000.5f0c'
    """
    return f"{schedule}@{instant_ms}.{revision}"


def require_name(text: str) -> None:
    """Refuses what is no name of a schedule.

    Raises:
        ConfigError: with the rule.
    """
    if not _NAME.fullmatch(text):
        raise ConfigError(f"{text!r} is no name: 1 to 200 of a-z A-Z 0-9 . _ -")


def _instant(value: object) -> int:
    instant_ms = integer(value)
    if not 0 <= instant_ms < _INSTANTS_END_MS:
        raise ValueError(f"{instant_ms} is no instant of a firing")
    return instant_ms


def _to_text(value: bytes | None) -> str | None:
    return None if value is None else b64encode(value).decode()


def _from_text(text: str | None) -> bytes | None:
    return None if text is None else b64decode(text, validate=True)
