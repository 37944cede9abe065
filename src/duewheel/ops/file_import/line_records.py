"""Parses a line of JSON of a file into the record of a timer.

    {"topic": "orders", "value": "pay", "delay": "15m"}       the fields of NewTimer
    {"record": {"key_base64": "…", "headers": […]}}           a record, written unchanged

The second form is that of `duewheel topic read --for-send`: requests of another service, for a
timer topic that reads that service's headers.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable
from typing import Annotated

from pydantic import AfterValidator, Field, JsonValue

from duewheel.api.model import RequestFields
from duewheel.api.requests import NewTimer, Strict, TimerFields, octets
from duewheel.config.settings import Settings
from duewheel.errors import ConfigError
from duewheel.ops.changes.requests import record_headers
from duewheel.ops.named_timer_topic import timer_topic_of
from duewheel.ops.source_records import TimerRecord
from duewheel.schemas.wire.single_record import Header

LINE_BYTES_MAX = 16 << 20

Fields = dict[str, JsonValue]  # of a line: which models they fit is known once they are parsed


def _name(name: str) -> str:
    name.encode(errors="surrogateescape")  # its error is a ValueError, which names the field
    return name


class CopiedHeader(RequestFields):
    """A header of a record; without a value it is null."""

    name: Annotated[str, AfterValidator(_name)]
    value_base64: str | None = None


class CopiedRecord(RequestFields):
    """A record as it is written; without key or value these are null.

    It keeps its partition if the timer topic has as many `partitions` as the source.
    """

    key_base64: str | None = None
    value_base64: str | None = None
    headers: list[CopiedHeader] = Field(default_factory=list)
    partition: Strict | None = None
    partitions: Strict | None = None

    @classmethod
    def copied(
        cls,
        key: bytes | None,
        value: bytes | None,
        headers: Iterable[Header],
        partition: int,
        partitions: int,
    ) -> CopiedRecord:
        """A record of a source that has so many partitions."""
        return cls(
            key_base64=_encoded(key),
            value_base64=_encoded(value),
            headers=[CopiedHeader(name=n, value_base64=_encoded(each)) for n, each in headers],
            partition=partition,
            partitions=partitions,
        )


class CopiedLine(RequestFields):
    """A line of the second form."""

    record: CopiedRecord
    timer_topic: str | None = None


def _encoded(octets: bytes | None) -> str | None:
    return None if octets is None else base64.b64encode(octets).decode()


def is_copy(fields: Fields) -> bool:
    """Whether a line has the second form."""
    return "record" in fields


def fields_of(line: bytes, defaults: TimerFields, bytes_max: int = LINE_BYTES_MAX) -> Fields:
    """Parses a line, and adds the defaults of the fields that it does not have.

    Raises:
        ConfigError: the line is too long, no JSON object, or a whole record, which takes no
            default but the timer topic.
    """
    if len(line.removesuffix(b"\n")) > bytes_max:
        raise ConfigError(f"the line has more than {bytes_max} bytes: shorten it")
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"this is no JSON: {error}") from error
    if not isinstance(fields, dict):
        raise ConfigError("this is no JSON object")
    given = defaults.model_dump(exclude_none=True, exclude_unset=True)
    if is_copy(fields):
        to = {name: given[name] for name in given.keys() & {"timer_topic"}}
        if unfit := sorted(name for name in given.keys() - to.keys() if given[name]):
            raise ConfigError(f"a whole record takes no {' and no '.join(unfit)} of the options")
        return to | fields
    return _without_alternatives(given, fields) | fields


def record_of(settings: Settings, fields: Fields, name: str, now_ms: int) -> TimerRecord:
    """Makes the record of the fields of a line; its `name` routes a timer without key, id and
    partition.

    Raises:
        ConfigError: no record can be made of it.
    """
    if is_copy(fields):
        line = CopiedLine.of(fields)
        record = line.record
        key = octets("key", None, record.key_base64)
        headers = [(h.name, octets(h.name, None, h.value_base64)) for h in record.headers]
        to, value = timer_topic_of(settings, line.timer_topic), record.value_base64
        numbers = (record.partition, record.partitions)
        return TimerRecord(to, key, octets("value", None, value), headers, *numbers, key or b"")
    timer = NewTimer.of(fields)
    to, request = record_headers(settings, timer, now_ms)
    key = timer.key_octets
    route = key if key is not None else (timer.id or name).encode()
    return TimerRecord(to, key, timer.value_octets, request, timer.partition, None, route)


# Fields that exclude each other.
_ALTERNATIVES = (
    {"deliver_at", "delay", "level"},
    {"value", "value_base64"},
    {"key", "key_base64"},
)


def _without_alternatives(defaults: Fields, fields: Fields) -> Fields:
    """Drops the defaults that a line replaces under another name."""
    dropped = [names for names in _ALTERNATIVES if names & fields.keys()]
    return {name: each for name, each in defaults.items() if not any(name in n for n in dropped)}
