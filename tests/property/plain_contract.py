"""A plain implementation of the message contract, one record at a time, to compare with `parse`."""

from __future__ import annotations

import datetime as dt
import fnmatch
import re
from collections.abc import Callable
from dataclasses import dataclass, replace

import pyarrow as pa
from kafka.partitioner.default import murmur2
from tests.harness.source_table import HEADERS

from duewheel.schemas.batches import ANY_TIME, NO_KEY, NO_PARTITION, NO_SLOT, TimerBatch
from duewheel.schemas.columns import binary
from duewheel.schemas.hashing import id_hashes
from duewheel.schemas.header_names import DROP_IN, RECURRENCE, REQUEST, Request
from duewheel.schemas.request.due_times import PRECEDENCE
from duewheel.schemas.request.parser import Contract
from duewheel.schemas.wire.varint import varint

EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
FIRST_OFFSET = 7

Header = tuple[str, bytes | None]
Asked = dict[Request, bytes | None]


@dataclass
class PlainRecord:
    """A record of a timer topic."""

    topic: str
    partition: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: list[Header] | None


@dataclass
class PlainRow:
    """What the contract makes of it; first of all what a rejected record is."""

    code: str | None
    target: str
    headers: list[Header]
    origin: int
    key: bytes | None
    key_hash: int
    due_ms: int = 0
    target_partition: int = NO_PARTITION
    timer_id: bytes = b""
    rolls: int = 0
    not_before_ms: int = ANY_TIME
    retries: int = 0
    is_timer: bool = True
    cancels: bool = False
    keeps: bool = False
    chase_slot: int = NO_SLOT
    chase_flags: int = 0
    recurring: bool = False
    seed: bool = False


# ---- values --------------------------------------------------------------------------------------


def number(value: bytes | None) -> int | None:
    """None if it is none."""
    if value is None or not re.fullmatch(rb"[+-]?[0-9]+", value):
        return None
    limit = 10**15 - 1
    # Python reads no number of more than some thousand digits.
    digits = value.lstrip(b"+-0")
    size = limit if len(digits) > 15 else int(digits or b"0")
    return -size if value.startswith(b"-") else size


def iso(value: bytes, zoned: bool) -> int | None:
    """Epoch ms."""
    match = re.fullmatch(
        rb"(\d{4})-(\d\d)-(\d\d)T(\d\d):(\d\d)(?::(\d\d)(?:\.(\d+))?)?(Z|([+-])(\d\d):(\d\d))?",
        value,
    )
    if match is None or (zoned and match[8] is None):
        return None
    fraction, sign = match[7] or b"", match[9]
    try:
        when = dt.datetime(*(int(match[i] or 0) for i in range(1, 7)), tzinfo=dt.UTC)  # type: ignore[arg-type,misc]
        zone = dt.time(int(match[10] or 0), int(match[11] or 0))
    except ValueError:
        return None
    minutes = (zone.hour * 60 + zone.minute) * (-1 if sign == b"-" else 1)
    seconds = (when - EPOCH) // dt.timedelta(seconds=1) - minutes * 60
    rounded_up: int = -(-int(fraction or b"0") * 1000 // 10 ** len(fraction))
    return seconds * 1000 + rounded_up


def instant(value: bytes) -> int | None:
    """Epoch ms."""
    plain = number(value)
    return iso(value, zoned=True) if plain is None else plain


def after(value: bytes, base_ms: int) -> int | None:
    """What deliverAfter means."""
    plain = number(value)
    return base_ms + plain if plain is not None and plain < 10**12 else instant(value)


def times(value: bytes, unit_ms: int, base_ms: int) -> int | None:
    """So many units after the base."""
    plain = number(value)
    return None if plain is None else base_ms + plain * unit_ms


FORMS = {
    Request.CRON: rb"(?=.{1,250}\Z)[\w*,/#-]+( [\w*,/#-]+){4,5}",
    Request.ZONE: rb"(?=.{1,64}\Z)[\w+-]+(/[\w+-]+)*",
    Request.MISSED: rb"skip|one|all",
    Request.PAUSED: rb"(?s:.{0,255})",
}
UNITS_MS = {b"": 1, b"ms": 1, b"s": 1_000, b"m": 60_000, b"h": 3_600_000, b"d": 86_400_000}


def recurrence_value(request: Request, value: bytes) -> bool:
    """Whether the header of a recurrence is well-formed."""
    if request is Request.EVERY:
        match = re.fullmatch(rb"([0-9]{1,12})(ms|s|m|h|d|)", value)
        return match is not None and 1_000 <= int(match[1]) * UNITS_MS[match[2]] <= 10**12
    if request in {Request.STARTS, Request.ENDS}:
        return instant(value) is not None
    if request is Request.JITTER:
        jitter = number(value)
        return jitter is not None and 0 <= jitter <= 86_400_000
    is_name = request is not Request.CRON or b"_" not in value
    return is_name and re.fullmatch(FORMS[request], value) is not None


# ---- one record ----------------------------------------------------------------------------------


@dataclass
class Reading:
    """A record, its offset, and the contract that it is read under."""

    record: PlainRecord
    offset: int
    contract: Contract

    def __post_init__(self) -> None:
        settings = self.contract.topic(self.record.topic)
        headers = self.record.headers or []
        self.copy = any(name == "TIMER_ORIGIN" for name, _ in headers)
        foreign = DROP_IN.get(settings.headers, {})
        if self.copy:
            foreign = {n: r for n, r in foreign.items() if r is Request.PARTITION_KEY}
        names = REQUEST | foreign
        self.asked: Asked = {names[name]: value for name, value in headers if name in names}
        self.asked = {
            request: value if request is Request.TARGET_KEY else value or b""
            for request, value in self.asked.items()
        }
        taken_out = {n for n, r in names.items() if r is not Request.PARTITION_KEY}
        self.users = [header for header in headers if header[0] not in taken_out]
        self.settings = settings
        own = {Request.EPOCH_SEC, Request.WHEN, Request.TARGET_KEY}
        speaks_so = settings.headers != "native" and not self.copy
        self.foreign = speaks_so and not own.isdisjoint(self.asked)
        self.base_ms = self.record.timestamp_ms

    def text(self, request: Request) -> bytes:
        """The value of a request that is made."""
        return self.asked[request] or b""

    # What is cancelled.

    @property
    def pure(self) -> bytes | None:
        """The id that a pure cancel names."""
        if Request.CANCEL in self.asked:
            return self.text(Request.CANCEL)
        if self.asked.get(Request.SOURCE_TYPE) == b"cancel":
            return self.record.key or b""
        null = self.settings.null_cancels and not self.copy and self.record.value is None
        return self.record.key if null and self.record.key else None

    @property
    def key_id(self) -> bytes | None:
        """The record's key, if that is the timer's id."""
        if not self.settings.key_is_id or self.copy or Request.TIMER_ID in self.asked:
            return None
        return self.record.key or None

    @property
    def timer_id(self) -> bytes | None:
        """None for the default one."""
        given = self.asked.get(Request.TIMER_ID)
        return self.key_id if given is None else given

    @property
    def flag(self) -> bytes:
        """Of a reschedule."""
        return (self.asked.get(Request.RESCHEDULE) or b"").lower()

    def no_timestamp(self) -> str | None:
        """The code of a timer whose record has no time."""
        is_timer = self.pure is None and not self.copy
        return "no_timestamp" if is_timer and self.record.timestamp_ms < 0 else None

    def bad_cancel(self) -> str | None:
        """The code of what is wrong with what is to be cancelled."""
        flagged = Request.RESCHEDULE in self.asked and self.flag != b"false"
        replaces = self.if_pending == b"replace" and self.timer_id is not None
        if self.pure is None and not flagged and self.key_id is None and not replaces:
            return None
        if self.asked.keys() & {Request.NOT_BEFORE, Request.RETRIES}:
            return "bad_cancel"
        if self.copy and not self.is_chase:
            return "bad_cancel"
        if self.pure is not None and (flagged or not 1 <= len(self.pure) <= 255):
            return "bad_cancel"
        if self.pure is None and flagged and (self.flag != b"true" or self.timer_id is None):
            return "bad_reschedule"
        return None

    @property
    def if_pending(self) -> bytes | None:
        """In a copy it has no meaning."""
        return None if self.copy else self.asked.get(Request.IF_PENDING)

    def bad_if_pending(self) -> str | None:
        """The code of a TIMER_IF_PENDING with a defect."""
        if self.if_pending is None:
            return None
        beside = self.pure is not None or Request.RESCHEDULE in self.asked
        beside |= self.if_pending == b"keep" and self.recurs
        good = self.if_pending in {b"keep", b"replace"} and not beside
        return None if good and self.timer_id is not None else "bad_if_pending"

    @property
    def is_chase(self) -> bool:
        """Whether it is a cancel that dequeue has written again."""
        return self.copy and self.pure is not None and Request.CHASE_SLOT in self.asked

    @property
    def named_offset(self) -> int:
        """Of the one timer that is cancelled, -1 for all; that of no timer if it is no offset."""
        given = self.asked.get(Request.CANCEL_OFFSET)
        if given is None:
            return -1
        found = number(given)
        return 10**15 - 1 if found is None or found < 0 else found

    # Whether it recurs.

    @property
    def recurs(self) -> bool:
        """Whether it is a recurring timer."""
        return self.pure is None and bool(self.asked.keys() & {Request.CRON, Request.EVERY})

    @property
    def seed(self) -> bool:
        return self.recurs and not self.copy

    def bad_recurrence(self) -> bool:
        """Whether its recurrence has a defect."""
        given = self.asked.keys() & set(RECURRENCE)
        if not given:
            return False
        due = {*PRECEDENCE} if self.seed else set()
        named = b"x" * 201 if self.timer_id is None else self.timer_id
        return (
            not self.recurs
            or {Request.CRON, Request.EVERY} <= given
            or not all(recurrence_value(request, self.text(request)) for request in given)
            or bool(self.asked.keys() & {*due, Request.WINDOW_MS})
            or len(named) > 200
            or (self.seed and self.is_large())
        )

    def is_large(self) -> bool:
        """Whether it is larger than a recurring timer may be."""
        record = self.record
        headers = [(name.encode(), value) for name, value in record.headers or []]
        texts = [record.key, record.value, *(text for both in headers for text in both)]
        size = sum(len(text or b"") + len(varint(len(text or b""))) for text in texts)
        return len(headers) > 1_000 or size > 64 << 10

    # When it is due.

    def due(self) -> int | str:
        """Epoch ms without the window, or the code of what is wrong."""
        if self.seed:
            return self.base_ms
        level = number(self.asked.get(Request.LEVEL, b"0"))
        ways: list[tuple[Request, Callable[[bytes], int | None]]] = [
            (Request.EPOCH_SEC, lambda value: times(value, 1000, 0)),
            (Request.WHEN, lambda value: iso(value, zoned=False)),
            (Request.LEVEL, lambda _: self.by_level(level)),
            (Request.DELAY_SEC, lambda value: times(value, 1000, self.base_ms)),
            (Request.DELAY_MS, lambda value: times(value, 1, self.base_ms)),
            (Request.DELIVER_AT, instant),
            (Request.DELIVER_AFTER, lambda value: after(value, self.base_ms)),
        ]
        for request, read in ways:
            absent = request is Request.LEVEL and level is not None and level <= 0
            if request in self.asked and not absent:
                when = read(self.text(request))
                return "bad_header" if when is None else when
        if self.settings.delay_ms is not None and not self.copy:
            return self.base_ms + self.settings.delay_ms
        return "no_due_time"

    def by_level(self, level: int | None) -> int | None:
        """Epoch ms."""
        delays = self.contract.levels_ms
        return None if level is None else self.base_ms + delays[min(level, len(delays)) - 1]

    @property
    def window_ms(self) -> int | None:
        """None if it is malformed."""
        if Request.WINDOW_MS not in self.asked:
            return 0
        window = number(self.text(Request.WINDOW_MS))
        return None if window is None or window < 0 or self.copy else window

    # The rest.

    def unsupported(self) -> str | None:
        """The code of what cannot be done."""
        if Request.RECURRING in self.asked:
            return "recurring_not_supported"
        version = self.asked.get(Request.SCHEMA_VERSION, b"1.0.0")
        kind = self.asked.get(Request.SOURCE_TYPE, b"schedule")
        return None if (version, kind) == (b"1.0.0", b"schedule") else "bad_header"

    def first_copy(self) -> tuple[int, int] | None:
        """Offset of the first copy and number of rolls; None if what is said cannot be."""
        if not self.copy:
            return self.offset, 0
        origin = number(self.text(Request.ORIGIN))
        rolled = number(self.asked.get(Request.ROLL_TIMES, b"1"))
        if origin is None or not -1 <= origin < self.offset:
            return None
        rolls = min(rolled, 65_535) if rolled is not None and rolled >= 0 else 1
        return self.offset if origin == -1 else origin, rolls

    def parking(self) -> tuple[int, int] | None:
        """Not before, and how often it was parked; None if what is said cannot be."""
        if not self.asked.keys() & {Request.NOT_BEFORE, Request.RETRIES}:
            return ANY_TIME, 0
        not_before = number(self.asked.get(Request.NOT_BEFORE))
        retries = number(self.asked.get(Request.RETRIES))
        if not_before is None or retries is None or min(not_before, retries) < 1:
            return None
        retries = min(retries, 65_535)
        return (not_before, retries) if self.copy else None

    @property
    def target(self) -> bytes | None:
        """Where the message goes."""
        default = self.settings.target
        return self.asked.get(Request.TARGET_TOPIC, default.encode() if default else None)

    def bad_time(self) -> str | None:
        """The code of what is wrong with the due time."""
        when, window_ms = self.due(), self.window_ms
        max_delay_ms = self.contract.rules.parameters["max_delay_ms"]
        if when == "bad_header":
            return "bad_header"
        if window_ms is None or window_ms > max_delay_ms:
            return "bad_window"
        if isinstance(when, str):
            return when
        delay_ms = when + window_ms - self.base_ms
        if self.settings.max_delay_ms is not None:
            max_delay_ms = min(max_delay_ms, self.settings.max_delay_ms)
        if self.copy or self.seed or 0 < delay_ms <= max_delay_ms:
            return None
        if delay_ms > 0:
            return "delay_too_long"
        return "past_due" if self.settings.past_due == "dead-letter" else None

    def bad_target(self) -> str | None:
        """The code of what is wrong with it."""
        name = self.target
        if name is None:
            return "no_target_topic"
        if not re.fullmatch(rb"[a-zA-Z0-9._-]{1,249}", name) or name in (b".", b".."):
            return "bad_target_topic"
        forbidden = [each.encode() for each in self.contract.rules.parameters["forbidden_targets"]]
        if name in forbidden or name.startswith(b"__"):
            return "forbidden_target"
        opened, topic = self.settings.targets, name.decode()
        if opened is None or topic == self.settings.target:
            return None
        named = any(fnmatch.fnmatchcase(topic, pattern) for pattern in opened)
        return None if named else "target_not_allowed"

    def refusal(self) -> str | None:
        """Why the record is rejected."""
        refusal = self.no_timestamp() or self.bad_cancel() or self.bad_if_pending()
        if refusal or self.pure is not None:
            forged = self.is_chase and self.first_copy() is None
            return refusal or ("bad_origin" if forged else None)
        partition = number(self.asked.get(Request.TARGET_PARTITION, b"0"))
        named = b"x" if self.timer_id is None else self.timer_id
        checks = {
            "bad_target_partition": partition is not None and 0 <= partition < 2**31,
            "bad_timer_id": 1 <= len(named) <= 255,
            "bad_origin": self.first_copy() is not None,
            "bad_retry": self.parking() is not None,
        }
        value = self.record.value
        if self.settings.value_schema == "registry" and not self.copy and value is not None:
            checks["no_schema_number"] = (
                re.match(rb"(?s)\0(?!\0{4})[\0-\x7f].{3}", value) is not None
            )
        rest = next((code for code, good in checks.items() if not good), None)
        repeated = "bad_recurrence" if self.bad_recurrence() else None
        if self.seed and not self.settings.recurring:
            repeated = "recurring_not_allowed"
        return self.unsupported() or repeated or self.bad_time() or self.bad_target() or rest

    def traces(self) -> list[Header]:
        """What is added for consumers of another service."""
        record = self.record
        if self.settings.headers == "etf1":
            return [
                ("scheduler-timestamp", b"%d" % (record.timestamp_ms // 1000)),
                ("scheduler-key", record.key),
                ("scheduler-topic", record.topic.encode()),
            ]
        if self.settings.headers == "karafka":
            place: list[Header] = [
                ("schedule_source_topic", record.topic.encode()),
                ("schedule_source_partition", b"%d" % record.partition),
                ("schedule_source_offset", b"%d" % self.offset),
            ]
            return place if record.key is None else [*place, ("schedule_source_key", record.key)]
        return []

    def row(self) -> PlainRow:
        """What the record becomes."""
        record, dead = self.record, self.contract.dead_letter_topic
        code, key = self.refusal(), record.key
        plain = PlainRow(code, dead, record.headers or [], self.offset, key, placing(key))
        if code is not None:
            return plain
        if self.is_chase:
            plain = self.chase(plain)
        if self.pure is not None:
            return replace(
                plain, headers=self.users, timer_id=self.pure, is_timer=False, cancels=True
            )
        return self.timer(plain)

    def chase(self, plain: PlainRow) -> PlainRow:
        """With what a cancel that was written again says of itself."""
        copy = self.first_copy()
        slot = number(self.asked[Request.CHASE_SLOT])
        flags = number(self.asked.get(Request.CHASE_FLAGS, b"0"))
        assert copy is not None
        return replace(
            plain,
            origin=copy[0],
            rolls=1,
            chase_slot=NO_SLOT if slot is None or slot < 0 else slot,
            chase_flags=0 if flags is None or flags < 0 else min(flags, 3),
        )

    def timer(self, plain: PlainRow) -> PlainRow:
        """What an accepted timer becomes."""
        due_ms, copy, waiting = self.due(), self.first_copy(), self.parking()
        target, window_ms = self.target, self.window_ms
        assert isinstance(due_ms, int) and copy and waiting and target and window_ms is not None
        key = self.asked.get(Request.TARGET_KEY) if self.foreign else plain.key
        placed_by = self.asked.get(Request.PARTITION_KEY, key)
        wanted = self.asked.get(Request.TARGET_PARTITION)
        source = f"{self.record.topic}-{self.record.partition}@{copy[0]}".encode()
        spread_by = (self.timer_id or source) if key is None else key
        own = self.users
        if self.recurs:
            stays = {n for n, r in REQUEST.items() if r in RECURRENCE}
            own = [h for h in self.record.headers or [] if h in self.users or h[0] in stays]
        return replace(
            plain,
            target=target.decode(),
            headers=[*own, *(self.traces() if self.foreign else [])],
            origin=copy[0],
            key=key,
            key_hash=placing(placed_by),
            due_ms=due_ms + int(id_hashes(binary([spread_by]))[0]) % (window_ms + 1),
            target_partition=NO_PARTITION if wanted is None else int(wanted),
            timer_id=self.timer_id or b"",
            rolls=copy[1],
            not_before_ms=waiting[0],
            retries=waiting[1],
            cancels=self.if_pending != b"keep"
            and (self.flag == b"true" or self.key_id is not None or self.if_pending is not None),
            keeps=self.if_pending == b"keep",
            recurring=self.recurs,
            seed=self.seed,
        )


def placing(key: bytes | None) -> int:
    """The hash by which a partition is chosen."""
    return NO_KEY if key is None else murmur2(key) & 0x7FFFFFFF


# ---- encoded parts, and the comparison -----------------------------------------------------------


def framed(value: bytes | None) -> bytes:
    """With its length before it."""
    return varint(-1) if value is None else varint(len(value)) + value


def encoded(headers: list[Header]) -> bytes:
    """As they stand in a record."""
    return b"".join(framed(name.encode()) + framed(value) for name, value in headers)


def check(
    records: list[PlainRecord],
    batch: TimerBatch,
    contract: Contract,
    first_offset: int = FIRST_OFFSET,
) -> None:
    """Every row of the batch is what the record says."""
    assert len(batch) == len(records)
    for i, record in enumerate(records):
        row = Reading(record, i + first_offset, contract).row()
        headers = batch.headers[i].as_py()
        assert batch.rejected[i] == (row.code is not None), (record, row)
        if row.code is not None:
            begin = encoded([*row.headers, ("TIMER_ERROR_CODE", row.code.encode())])
            assert headers.startswith(begin + framed(b"TIMER_ERROR")), (record, row)
            assert batch.header_count[i] == len(row.headers) + 2
        else:
            assert headers == encoded(row.headers), (record, row)
            assert batch.header_count[i] == len(row.headers)
            assert not row.is_timer or batch.due_ms[i] == row.due_ms
        assert batch.partitions[batch.partition[i]] == (record.topic, record.partition)
        assert (batch.timer[i], batch.cancels[i]) == (row.is_timer, row.cancels), (record, row)
        assert batch.keeps[i] == row.keeps, (record, row)
        assert batch.targets[batch.target[i]] == row.target
        assert batch.target_partition[i] == row.target_partition
        assert batch.timer_id[i].as_py() == row.timer_id
        named = Reading(record, i + first_offset, contract).named_offset
        assert not row.cancels or batch.named_offset[i] == named, (record, row)
        chase = (batch.chase_slot[i], batch.chase_flags[i])
        assert not row.cancels or chase == (row.chase_slot, row.chase_flags), (record, row)
        source = f"{record.topic}-{record.partition}@{row.origin}".encode()
        assert batch.id_hash[i] == id_hashes(binary([row.timer_id or source]))[0]
        assert batch.key_value[i].as_py() == framed(row.key) + framed(record.value)
        assert batch.key_hash[i] == row.key_hash
        assert (batch.offset[i], batch.origin_offset[i]) == (i + first_offset, row.origin)
        assert batch.roll_times[i] == row.rolls
        assert (batch.not_before_ms[i], batch.retries[i]) == (row.not_before_ms, row.retries)
        assert batch.timestamp_ms[i] == record.timestamp_ms
        assert (batch.recurring[i], batch.seed[i]) == (row.recurring, row.seed), (record, row)


def table(
    records: list[PlainRecord],
    dictionary: bool = False,
    cuts: tuple[int, ...] = (),
    first_offset: int = FIRST_OFFSET,
) -> pa.Table:
    """The records as Spark gives them, in chunks."""
    text = pa.dictionary(pa.int32(), pa.string()) if dictionary else pa.string()
    offsets = range(first_offset, len(records) + first_offset)
    stamps_us = [r.timestamp_ms * 1000 for r in records]
    headers = [
        None if r.headers is None else [{"key": k, "value": v} for k, v in r.headers]
        for r in records
    ]
    whole = pa.table(
        {
            "topic": pa.array([r.topic for r in records], text),
            "partition": pa.array([r.partition for r in records], pa.int32()),
            "offset": pa.array(offsets, pa.int64()),
            "timestamp": pa.array(stamps_us, pa.timestamp("us", "UTC")),
            "key": pa.array([r.key for r in records], pa.binary()),
            "value": pa.array([r.value for r in records], pa.binary()),
            "headers": pa.array(headers, HEADERS),
        }
    )
    ends = [*sorted(cut % (len(records) + 1) for cut in cuts), len(records)]
    pieces = [whole.slice(a, b - a) for a, b in zip([0, *ends], ends, strict=False)]
    return pa.concat_tables(pieces)
