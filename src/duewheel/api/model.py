"""The bases of all results and requests.

The JSON of a command has the fields that were set when the result was made; that of the HTTP API
has all fields, as its description says. Instants are epoch milliseconds in both.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Self, get_args

from pydantic import BaseModel, ConfigDict, Field, GetJsonSchemaHandler, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import CoreSchema, ErrorDetails

from duewheel.api.field_rules import Schema
from duewheel.errors import ConfigError

_BY_VALIDATOR = "Value error, "  # in front of the text of a validator's error


_INSTANT = "an instant"
InstantMs = Annotated[int, _INSTANT]  # epoch ms; a field in _ms of another type is a duration


class Result(BaseModel):
    """A result: frozen."""

    model_config = ConfigDict(frozen=True, populate_by_name=True)

    def as_json(self) -> dict[str, Any]:  # json.dumps, and tests that look at its fields
        """Returns the JSON object of a command."""
        return self.model_dump(mode="json", by_alias=True, exclude_unset=True)


class RequestFields(BaseModel):
    """A request: frozen. Its fields are options of a command, and the JSON of a line or body."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    rules: ClassVar[Sequence[Schema]] = ()  # between fields, for the description; a subclass adds
    in_records: ClassVar[Sequence[str]] = ()  # fields of no message: a subclass adds

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core: CoreSchema, handler: GetJsonSchemaHandler
    ) -> Schema:
        schema = handler(core)
        if rules := list(cls._of_bases("rules")):
            handler.resolve_ref_schema(schema)["allOf"] = rules
        return schema

    @classmethod
    def _of_bases(cls, name: str) -> Iterator[Any]:
        return chain.from_iterable(vars(base).get(name, ()) for base in cls.__mro__)

    def as_recorded(self) -> dict[str, Any]:
        """Returns the JSON object of a change's record: the given fields, without a message."""
        named = set(self._of_bases("in_records"))
        return self.model_dump(mode="json", by_alias=True, exclude_unset=True, include=named)

    @classmethod
    def of(cls, fields: object, names: Mapping[str, str] = MappingProxyType({})) -> Self:
        """Makes one of parsed JSON.

        Args:
            names: the caller's names of fields, by those in JSON.

        Raises:
            ConfigError: names the fields that are wrong.
        """
        try:
            return cls.model_validate(fields)
        except ValidationError as error:
            raise ConfigError(text_of(error, names)) from None


class DryRunFields(RequestFields):
    """A request for a change, or for its counts alone."""

    in_records: ClassVar[Sequence[str]] = ("dry_run",)

    dry_run: bool = Field(strict=True, description="only count")


def is_instant(field: FieldInfo) -> bool:
    """Whether a result's field is InstantMs, or has some."""
    return _INSTANT in (*field.metadata, *_parts(field.annotation))


def _parts(annotation: object) -> Iterator[object]:
    yield annotation
    for part in get_args(annotation):
        yield from _parts(part)


def problems_of(details: Iterable[ErrorDetails]) -> list[tuple[str, str]]:
    """Field and text of each problem, without the values: they may be secrets. Rules between fields
    have no field.
    """
    return [
        (".".join(map(str, each["loc"])), each["msg"].removeprefix(_BY_VALIDATOR))
        for each in details
    ]


def text_of(error: ValidationError, names: Mapping[str, str] = MappingProxyType({})) -> str:
    """The problems in one line; `names` as of `RequestFields.of`."""
    return "; ".join(
        f"{names.get(field, field)}: {text}" if field else text
        for field, text in problems_of(error.errors())
    )
