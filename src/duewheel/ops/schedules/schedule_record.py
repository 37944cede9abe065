"""The record of a schedule, made of a request or of the pending copy. A record that ingest would
refuse is refused here, before anything is written.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from duewheel.api.due_time import NonNullHeader
from duewheel.api.recurring_time import require_name
from duewheel.api.schedules import NewSchedule, ScheduleSummary
from duewheel.client.request_headers import non_null_headers, require_message, target, users
from duewheel.config.instants import utc_text
from duewheel.config.settings import Settings
from duewheel.errors import ConfigError
from duewheel.ops.changes.acceptance import require_accepted
from duewheel.ops.named_timer_topic import timer_topic_of
from duewheel.ops.timers.pending import source_of
from duewheel.schemas import header_names as names
from duewheel.schemas.columns import binary
from duewheel.schemas.hashing import id_hashes
from duewheel.schemas.header_names import NAME_OF, Request
from duewheel.schemas.wire.single_record import Header
from duewheel.wheel.inspect.listing import PendingTimer
from duewheel.wheel.recurrence import HEADERS, Recurrence, numbers_in, parted, recurrence_of

_HEADERS = frozenset(name.decode() for name in HEADERS)


@dataclass(frozen=True, slots=True)
class ScheduleRecord:
    """The parts of a record that a change of its schedule repeats or replaces.

    Attributes:
        headers: the message's own.
        own: those of the recurrence, TIMER_PAUSED included.
        partition: that of the pending copy; None: there is none.
    """

    name: bytes
    timer_topic: str
    target: str
    target_partition: int | None
    key: bytes | None
    value: bytes | None = field(repr=False)
    headers: list[Header] = field(repr=False)
    own: dict[str, bytes]
    recurrence: Recurrence
    partition: int | None = None

    @classmethod
    def of(cls, timer: PendingTimer) -> ScheduleRecord:
        """Makes the record of a pending copy."""
        (record,) = without_messages([timer])
        return replace(
            record,
            target_partition=timer.target_partition,
            key=timer.key,
            value=timer.value,
            headers=[header for header in timer.headers if header[0] not in _HEADERS],
        )

    def beside(self, timer: PendingTimer | None) -> ScheduleRecord:
        """The record for the partition of the pending copy, if there is one."""
        return self if timer is None else replace(self, partition=source_of(timer)[1])

    def with_own(self, own: dict[str, bytes]) -> ScheduleRecord:
        """The record with other headers of the recurrence."""
        return replace(self, own=own, recurrence=recurrence_of(_encoded(own)))

    @property
    def request(self) -> list[NonNullHeader]:
        """All headers. The record replaces all timers of its name in its partition: a command that
        is repeated makes no second timer.

        Raises:
            InvalidTimer: as `writable_headers`.
        """
        return [
            *self.writable_headers,
            *self.own.items(),
            (names.TIMER_ID, self.name),
            (NAME_OF[Request.RESCHEDULE], b"true"),
            *target(self.target, self.target_partition, self.timer_topic),
        ]

    @property
    def writable_headers(self) -> list[NonNullHeader]:
        """The message's headers.

        Raises:
            InvalidTimer: kafka-python cannot write the message: one is null, or key and value are.
        """
        require_message(self.key, self.value)
        return non_null_headers(self.headers)

    def paused(
        self, settings: Settings, note: str, timer: PendingTimer, now_ms: int
    ) -> ScheduleRecord:
        """The record of the paused schedule.

        Raises:
            ConfigError: as `require_accepted`.
        """
        record = self.with_own({**self._in_phase(timer), names.PAUSED: note.encode()})
        record.require_accepted(settings, now_ms, may_have_ended=True)
        return record

    def resumed(self, settings: Settings, timer: PendingTimer, now_ms: int) -> ScheduleRecord:
        """The record of the schedule without its pause, also of one that is not paused: the record
        of a pause may be on its way. Raises as `paused`.
        """
        own = self._in_phase(timer)
        record = self.with_own({k: v for k, v in own.items() if k != names.PAUSED})
        record.require_accepted(settings, now_ms)
        return record

    def _in_phase(self, timer: PendingTimer) -> dict[str, bytes]:
        """The headers with which a new record of the schedule has the instants of the pending copy:
        without `starts`, an interval would count from the record.
        """
        recurrence = self.recurrence
        if recurrence.cron is not None or recurrence.paused or names.STARTS_MS in self.own:
            return self.own
        assert timer.due_ms is not None, "a recurring timer is no dead letter"
        before_ms = 0 if timer.seed else recurrence.interval_ms + recurrence.shift_ms(self._id_hash)
        return {**self.own, names.STARTS_MS: b"%d" % (timer.due_ms - before_ms)}

    def coming_instants(
        self, now_ms: int, timer: PendingTimer | None = None, written_ms: int | None = None
    ) -> Iterator[int]:
        """Yields the instants from the pending one on, pauses aside.

        Args:
            now_ms: epoch ms.
            timer: the pending copy; None: there is none.
            written_ms: the timestamp of the record; None: it is written now.

        Raises:
            ConfigError: expression or zone do not parse.
        """
        recurrence = replace(self.recurrence, paused=False)
        due_ms = None if timer is None else timer.due_ms
        if timer is not None and timer.seed:
            written_ms = due_ms
        if timer is None or timer.seed or self.recurrence.paused:
            written_ms = now_ms if written_ms is None else written_ms
            due_ms = recurrence.first(written_ms, max(now_ms, written_ms), self._id_hash, now_ms)
        while due_ms is not None:
            yield due_ms
            _, due_ms = recurrence.following(due_ms, self._id_hash, due_ms)

    def has_ended(self, now_ms: int) -> bool:
        """Whether all its instants are past. Raises as `coming_instants`."""
        return next(self.coming_instants(now_ms), None) is None

    def require_accepted(
        self, settings: Settings, now_ms: int, *, may_have_ended: bool = False
    ) -> None:
        """Refuses a record that ingest would dead-letter, or that would never fire.

        Raises:
            ConfigError: with the rule and its remedy.
        """
        require_accepted(settings, self.timer_topic, self.key, self.value, self.request, now_ms)
        if self.has_ended(now_ms) and not (may_have_ended and self.recurrence.ends_ms is not None):
            raise ConfigError(self._why_ended(now_ms))

    def summary(
        self,
        now_ms: int,
        timer: PendingTimer | None = None,
        written_ms: int | None = None,
        **others: object,
    ) -> ScheduleSummary:
        """Describes the schedule without its message; the times are those of `coming_instants`."""
        recurrence = self.recurrence
        is_cron = recurrence.cron is not None
        return ScheduleSummary.model_validate(
            {
                "name": self.name.decode(errors="backslashreplace"),
                "state": "paused" if recurrence.paused else "active",
                "cron": recurrence.cron,
                "zone": recurrence.zone if is_cron else None,
                "every_ms": None if is_cron else recurrence.interval_ms,
                "missed": recurrence.missed,
                "starts_ms": recurrence.starts_ms,
                "ends_ms": recurrence.ends_ms,
                "jitter_ms": recurrence.jitter_ms or None,
                "target": self.target,
                "timer_topic": self.timer_topic,
                "note": self.own.get(names.PAUSED, b"").decode(errors="replace") or None,
                "next_due_ms": self._next_due_ms(now_ms, timer, written_ms),
                **others,
            }
        )

    def _why_ended(self, now_ms: int) -> str:
        cron, ends_ms = self.recurrence.cron, self.recurrence.ends_ms
        text = f"{'the interval' if cron is None else repr(cron)} has no instant to come"
        if ends_ms is None:
            return text
        end = f"`ends`, {utc_text(ends_ms)}"
        return f"{text}: {end}, is past" if ends_ms <= now_ms else f"{text} until {end}"

    @property
    def _id_hash(self) -> int:
        return int(id_hashes(binary([self.name]))[0])

    def _next_due_ms(
        self, now_ms: int, timer: PendingTimer | None, written_ms: int | None
    ) -> int | None:
        if self.recurrence.paused:
            return None
        try:
            return next(self.coming_instants(now_ms, timer, written_ms), None)
        except ConfigError:
            return None  # a seed of another program: it becomes a dead letter


def without_messages(timers: Sequence[PendingTimer]) -> list[ScheduleRecord]:
    """Makes the records of pending copies, for summaries and cancels: without their messages, which
    may be large, or have 500,000 headers.
    """
    owns = [parted(timer.encoded_headers, timer.header_count)[0] for timer in timers]
    numbers = numbers_in(owns)
    return [
        ScheduleRecord(
            name=timer.id,
            timer_topic=topic,
            target=timer.target,
            target_partition=None,
            key=None,
            value=None,
            headers=[],
            own={name.decode(): value for name, value in own.items()},
            recurrence=recurrence_of(own, numbers),
            partition=partition,
        )
        for timer, own in zip(timers, owns, strict=True)
        for topic, partition, _ in [source_of(timer)]
    ]


def _encoded(own: Mapping[str, bytes]) -> dict[bytes, bytes]:
    return {name.encode(): value for name, value in own.items()}


def requested(
    settings: Settings,
    name: str,
    new: NewSchedule,
    now_ms: int,
    *,
    may_have_ended: bool = False,
) -> ScheduleRecord:
    """Makes the record of a request.

    Raises:
        ConfigError: ingest would refuse it, or it would never fire.
    """
    own = dict(new.recurring.headers)
    record = ScheduleRecord(
        name=require_name(name).encode(errors="surrogateescape"),
        timer_topic=timer_topic_of(settings, new.timer_topic),
        target=new.target,
        target_partition=None,
        key=new.key_octets,
        value=new.value_octets,
        headers=[*users(new.header_octets)],
        own=own,
        recurrence=recurrence_of(_encoded(own)),
    )
    record.require_accepted(settings, now_ms, may_have_ended=may_have_ended)
    return record
