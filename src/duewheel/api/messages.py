"""Messages as results show them: bytes that are UTF-8 as text, others in base64."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Mapping
from typing import Self

from pydantic import Field

from duewheel.api.model import Result

KEY_SHOWN_BYTES = 1024  # of a key in a list
KEY_BYTES = "length of a key of which the start is shown; null: it is whole"


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
    value: str | None = None
    value_base64: str | None = None

    @classmethod
    def of(
        cls,
        summary: Result,
        headers: Iterable[tuple[str, bytes | None]],
        value: bytes | None,
        *,
        body: bool,
        decode: Callable[[], Mapping[str, str]],
        **others: object,
    ) -> Self:
        """Adds the message, and `others`, to the summary; without `body` only header names.
        `decode` gives the fields of WithDecoded.
        """
        shown: dict[str, object] = {"header_names": [name for name, _ in headers]}
        if body:
            named = [{"name": name, **octets_shown("value", each)} for name, each in headers]
            shown = {"headers": named, **octets_shown("value", value), **decode()}
        return cls.model_validate(summary.as_json() | others | shown)


def key_in_list(key: bytes | None) -> tuple[bytes | None, int | None]:
    """The part of a key that a list shows, and the key's length if that is only its start: one
    producer's keys of a megabyte would otherwise make each list 100 MB. The part ends with a whole
    character, if the key is UTF-8.
    """
    if key is None or len(key) <= KEY_SHOWN_BYTES:
        return key, None
    start = key[:KEY_SHOWN_BYTES]
    try:
        start.decode()
    except UnicodeDecodeError as error:
        if error.start > KEY_SHOWN_BYTES - 4:
            start = start[: error.start]
    return start, len(key)


def octets_shown(name: str, octets: bytes | None) -> dict[str, str | None]:
    """Shows bytes as text, or in base64 under the name `<name>_base64` if they are no UTF-8."""
    try:
        return {name: None if octets is None else octets.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(octets or b"").decode()}
