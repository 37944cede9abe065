"""Messages as results show them: bytes that are UTF-8 as text, others in base64.

A message may have 40 MiB in a few KiB of a compressed record, and six times as much as JSON. So a
result has the start of a long part, and the length of the whole beside it.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Self

from pydantic import Field

from duewheel.api.model import Result

KEY_SHOWN_BYTES = 1024  # of a key in a list
LONG_KEY_BYTES = 64 << 10  # of the key of one timer or letter
HEADERS_SHOWN = 1_000
NAMES_BYTES = 64 << 10  # of the names of headers
BODY_BYTES = 1 << 20  # of a value, of its JSON, and of all headers
KEY_BYTES = "length of a key of which the start is shown; null: it is whole"

_Header = tuple[str, bytes | None]


class HeaderOfMessage(Result):
    """A header of a message."""

    name: str
    value: str | None = None
    value_base64: str | None = Field(default=None, description="a value that is no UTF-8")


class WithDecoded(Result):
    """The value of a message, decoded by its schema in the registry; without one all are null."""

    decoded: str | None = Field(default=None, description="the value as JSON")
    decoded_by: str | None = Field(default=None, description="kind and number of the schema")
    not_decoded: str | None = Field(default=None, description="why `decoded` is null")


class WithMessage(WithDecoded):
    """The message of a timer or dead letter; a subclass adds it to the summary."""

    header_names: list[str] | None = Field(default=None, description="without serve.show_bodies")
    headers: list[HeaderOfMessage] | None = None
    header_count: int | None = Field(
        default=None, description="number of headers of which the first are shown; null: all are"
    )
    value: str | None = None
    value_base64: str | None = None
    value_shown_bytes: int | None = Field(
        default=None, description="length of the start of a value that is shown; null: it is whole"
    )

    @classmethod
    def of(
        cls,
        summary: Result,
        headers: Iterable[_Header],
        header_count: int,
        value: bytes | None,
        *,
        body: bool,
        decode: Callable[[], Mapping[str, str]],
        **others: object,
    ) -> Self:
        """Adds the message, and `others`, to the summary; without `body` only header names.

        Args:
            headers: read as far as they are shown.
            header_count: the number of all.
            decode: gives the fields of WithDecoded.
        """
        shown: dict[str, object]
        if body:
            first = list(_first(headers, BODY_BYTES))
            named = [{"name": name, **octets_shown("value", each)} for name, each in first]
            start, length = start_of(value, BODY_BYTES)
            shown = {"headers": named, **octets_shown("value", start), **_short(decode())}
            if start is not None and length is not None:
                shown["value_shown_bytes"] = len(start)
        else:
            first = list(_first(((name, None) for name, _ in headers), NAMES_BYTES))
            shown = {"header_names": [name for name, _ in first]}
        if len(first) < header_count:
            shown["header_count"] = header_count
        return cls.model_validate(summary.as_json() | others | shown)


def _first(headers: Iterable[_Header], octets_max: int) -> Iterator[_Header]:
    """Yields the first headers that have no more than so many bytes, names and values."""
    for name, value in islice(headers, HEADERS_SHOWN):
        octets_max -= len(name.encode()) + len(value or b"")
        if octets_max < 0:
            return
        yield name, value


def _short(fields: Mapping[str, str]) -> Mapping[str, str]:
    """The fields of WithDecoded, without a JSON that is too long: its start would be none."""
    if len(fields.get("decoded", "")) <= BODY_BYTES:
        return fields
    return {"not_decoded": f"its JSON has more than {BODY_BYTES >> 20} MiB"}


def start_of(octets: bytes | None, most: int = KEY_SHOWN_BYTES) -> tuple[bytes | None, int | None]:
    """The first bytes, `most` at most, and the length of all if that is only their start: one
    producer's keys of a megabyte would otherwise make each list 100 MB. The part ends with a whole
    character, if the bytes are UTF-8.
    """
    if octets is None or len(octets) <= most:
        return octets, None
    start = octets[:most]
    try:
        start.decode()
    except UnicodeDecodeError as error:
        if error.start > most - 4:
            start = start[: error.start]
    return start, len(octets)


def octets_shown(name: str, octets: bytes | None) -> dict[str, str | None]:
    """Shows bytes as text, or in base64 under the name `<name>_base64` if they are no UTF-8."""
    try:
        return {name: None if octets is None else octets.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(octets or b"").decode()}
