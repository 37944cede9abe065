"""How a fact of a shard is declared: once, on its field of a view (shard.py, timers.py).

The field has name, type and unit (`_ms`, `_bytes`). A property of the same name measures it: in
runtime/shard_facts.py, in configured_facts.py if it needs settings, or in the part that the view
describes. The declaration adds the rest: JSON, the API's description, metrics, conditions,
`duewheel status` and docs/metrics.md are made from it.

Sentences and phrases have fields of the view in braces, and in a table `key` and `value` of its
entry. {behind_ms:about} is a duration, {floor_ms:instant} an instant,
{copies_held:copy waits|copies wait} a count.
"""

from __future__ import annotations

import string
from collections.abc import Iterator, Mapping
from typing import Any, Literal, NamedTuple, get_args

from pydantic import BaseModel, Field

from duewheel.api.model import is_instant
from duewheel.config.durations import about
from duewheel.config.instants import utc_text

Kind = Literal["bad", "warn", "plain"]


class Gauge(NamedTuple):
    """A metric of a fact: milliseconds in seconds, a condition as 0 or 1."""

    # Who exports it; shard: both processes and `duewheel serve`.
    by: Literal["shard", "ingest", "dequeue"]
    name: str  # after the prefix
    label: str = ""  # its values are the keys of the table that the fact is, or is in
    of: str = ""  # the property that is exported in the place of the fact
    help: str = ""  # empty: the fact's text
    is_counter: bool = False


class Fact(NamedTuple):
    """The declaration of a fact."""

    text: str
    gauges: tuple[Gauge, ...]
    # The conditions while the fact is true, not 0, not empty, or equal to `when`: fact, and
    # consequence for timers.
    sentences: tuple[tuple[Kind, str], ...]
    when: str
    named: str  # the condition's name; empty: the fact's
    says: str  # the phrase of `duewheel status`; not shown while the fact is unknown
    says_zero: bool  # whether it is shown while the fact is 0, false or empty


def fact(
    text: str,
    *gauges: Gauge,
    when: str = "",
    named: str = "",
    says: str = "",
    says_zero: bool = False,
    bad: str = "",
    warn: str = "",
    plain: str = "",
    alias: str | None = None,
) -> Any:  # as pydantic's Field
    """Declares a fact; `alias` is its name in JSON."""
    field = Field(description=text, serialization_alias=alias)
    sentences: tuple[tuple[Kind, str], ...] = (("bad", bad), ("warn", warn), ("plain", plain))
    known = tuple(each for each in sentences if each[1])
    field.metadata.append(Fact(text, gauges, known, when, named, says, says_zero))
    return field


class Exported(NamedTuple):
    """A metric of a fact, and the names of the fields that lead to it."""

    path: tuple[str, ...]
    gauge: Gauge
    help: str

    def value(self, facts: object) -> Any:  # a number, or numbers by key; None: it is unknown
        """Measures it."""
        return self._of(facts, self.path)

    def _of(self, part: object, path: tuple[str, ...]) -> Any:
        if part is None:
            return None
        if isinstance(part, Mapping):
            found = {key: self._of(each, path) for key, each in part.items()}
            return {key: value for key, value in found.items() if value is not None}
        if len(path) > 1:
            return self._of(getattr(part, path[0]), path[1:])
        name = self.gauge.of or path[0]
        value = getattr(part, name)
        return value / 1000 if name.endswith("_ms") and value is not None else value


def exported(view: type[BaseModel], path: tuple[str, ...] = ()) -> Iterator[Exported]:
    """The metrics of a view's facts, and of those in its parts."""
    for name, field in view.model_fields.items():
        is_condition = bool in (field.annotation, *get_args(field.annotation))
        for each in _facts(field.metadata):
            for gauge in each.gauges:
                text = gauge.help or f"{'1 while ' if is_condition else ''}{each.text}"
                yield Exported((*path, name), gauge, f"{text[0].upper()}{text[1:]}.")
        for part in _views(field.annotation):
            yield from exported(part, (*path, name))


def instants(view: type[BaseModel]) -> set[str]:
    """The names in JSON of a view's instants, and of those in its parts; its other fields in `_ms`
    are durations.
    """
    fields = view.model_fields.items()
    names = {field.serialization_alias or name for name, field in fields if is_instant(field)}
    parts = (part for _, field in fields for part in _views(field.annotation))
    return names.union(*map(instants, parts))


def _views(annotation: object) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for each in get_args(annotation):
        yield from _views(each)


def _facts(metadata: list[Any]) -> Iterator[Fact]:
    return (each for each in metadata if isinstance(each, Fact))


def facts_of(view: BaseModel) -> Iterator[tuple[str, Fact, Any]]:
    """Name, declaration and value of each fact of a view that is known."""
    for name, field in type(view).model_fields.items():
        value = getattr(view, name)
        if value is not None:
            yield from ((name, each, value) for each in _facts(field.metadata))


def phrases(view: BaseModel) -> Iterator[str]:
    """The phrases of `duewheel status` for a view, in the order of its fields; of a table one for
    each entry.
    """
    for _, each, value in facts_of(view):
        if each.says and (value or each.says_zero):
            entries = value.items() if isinstance(value, Mapping) else [("", value)]
            yield from (in_words(each.says, view, *entry) for entry in entries)


def in_words(text: str, view: BaseModel, key: str = "", value: object = None) -> str:
    """A sentence or phrase of a view; `key` and `value` are those of an entry."""
    return _Words(view).vformat(text, (), {"key": key, "value": value})


class _Words(string.Formatter):
    def __init__(self, view: BaseModel) -> None:
        self._view = view

    def get_value(self, key: int | str, args: Any, kwargs: Mapping[str, Any]) -> Any:
        return kwargs[str(key)] if key in kwargs else getattr(self._view, str(key))

    def format_field(self, value: Any, format_spec: str) -> str:
        one, is_count, many = format_spec.partition("|")
        if is_count:
            return f"{value:,} {one if value == 1 else many}"
        if format_spec == "instant":
            return utc_text(value)
        return about(value or 0) if format_spec == "about" else str(value)
