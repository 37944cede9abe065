"""The output of results: text for people, JSON for programs."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

import click

from duewheel.api.model import Result, is_instant
from duewheel.config.durations import duration_text
from duewheel.config.instants import utc_text

Fields = Result | Mapping[str, object]
R = TypeVar("R", bound=Fields)

# The labels of a dry run, as text; JSON has the names of a real run.
_WOULD = {
    "accepted": "would accept",
    "cancelled": "would cancel",
    "dropped": "would drop",
    "key_rotated": "would rotate key",
    "moved": "would move",
    "refused": "would refuse",
    "replayed": "would replay",
    "skipped": "would skip",
    "written": "would write",
}
_NAMES_WIDTH_MAX = 40  # one long name would pad the line of each other


@dataclass(frozen=True, slots=True)
class Printer:
    """Prints the results of a command: text for people, or JSON for programs."""

    is_json: bool
    table_format: str = ""  # "arrow" or "parquet": lists are printed as columns

    def show(
        self,
        result: Fields,
        text: Fields | Iterable[str] | None = None,
        *,
        hidden: Collection[str] = (),
    ) -> None:
        """Prints one result, which is that of a dry run if it has a true `dry_run`; as text these
        lines or fields, by default its own without those that are `hidden`.
        """
        if self.is_json:
            click.echo(_json(result))
            return
        text = result if text is None else text
        if isinstance(text, (Result, Mapping)):
            fields = labelled(text)
            text = _aligned({name: value for name, value in fields.items() if name not in hidden})
        for line in text:
            self.line(line)

    def line(self, text: str = "") -> None:
        """Prints a line for people, which programs do not get."""
        if not self.is_json:
            click.echo(printable(text))

    def rows(self, rows: Iterable[R], text: Callable[[R], str] | None = None) -> R | None:
        """Prints the results of a list, a line each as `row`; returns the last one."""
        last = None
        for last in rows:
            self.row(last, None if self.is_json or text is None else text(last))
        return last

    def row(self, row: Fields, text: str | None = None) -> None:
        """Prints one result of a list; as text by default with the names of its fields."""
        if self.is_json:
            click.echo(_json(row))
        else:
            click.echo(printable(_named(labelled(row)) if text is None else text))


def _json(result: Fields) -> str:
    return json.dumps(result.as_json() if isinstance(result, Result) else result)


def labelled(result: Fields) -> dict[str, object]:
    """The fields of a result as text has them: instants in UTC and durations with their unit, both
    without `_ms` in the name, unless that is another field's. Names that are data, such as those of
    topics, stay.
    """
    if not isinstance(result, Result):
        return dict(result)
    table: dict[str, object] = {}
    kind = type(result)
    for name, field in kind.model_fields.items():
        label, unit = field.serialization_alias or name, None
        if label.endswith("_ms"):
            unit = utc_text if is_instant(field) else duration_text
            label = label if label[:-3] in kind.model_fields else label[:-3]
        if name in result.model_fields_set:
            table[label] = _in_words(getattr(result, name), unit)
    return table | {name: _in_words(getattr(result, name)) for name in kind.model_computed_fields}


def _in_words(value: object, unit: Callable[[int], str] | None = None) -> object:
    if isinstance(value, Result):
        return labelled(value)
    if isinstance(value, Mapping):
        return {key: _in_words(each, unit) for key, each in value.items()}
    if isinstance(value, list):
        return [_in_words(each, unit) for each in value]
    return unit(value) if unit and isinstance(value, int) else value


def with_units(settings: Mapping[str, object]) -> dict[str, object]:
    """Settings or bounds, by name, which has the unit of a number, and stays."""
    return {
        name: duration_text(value) if name.endswith("_ms") and isinstance(value, int) else value
        for name, value in settings.items()
    }


def with_sources(rows: Mapping[str, Mapping[str, object]]) -> dict[str, object]:
    """Settings or bounds, by name, each with `value` and `from` in one text."""
    values = with_units({name: row["value"] for name, row in rows.items()})
    return {name: f"{_shown(values[name])}   {row['from']}" for name, row in rows.items()}


def _aligned(fields: Mapping[str, object]) -> Iterable[str]:
    if fields.get("dry_run"):
        fields = {_WOULD.get(key, key): value for key, value in fields.items()}
    # Before the width is known: names of a message's headers are its producer's.
    rows = [(printable(key), value) for key, value in _flattened(fields)]
    width = min(max((len(key) for key, _ in rows), default=0), _NAMES_WIDTH_MAX)
    return (f"{key:<{width}} {value}" for key, value in rows)


def _named(fields: Mapping[str, object]) -> str:
    known = {key: value for key, value in fields.items() if value is not None}
    return "  ".join(f"{key}={_shown(value)}" for key, value in known.items())


def say(text: str) -> None:
    """Prints lines for people, beside the result: to stderr."""
    click.echo("\n".join(map(printable, f"duewheel: {text}".split("\n"))), err=True)


def _flattened(table: Mapping[str, object], prefix: str = "") -> list[tuple[str, str]]:
    """Flattens nested tables to dotted names."""
    rows: list[tuple[str, str]] = []
    for key, value in table.items():
        if isinstance(value, dict):
            rows += _flattened(value, f"{prefix}{key}.")
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            for number, each in enumerate(value):
                rows += _flattened(each, f"{prefix}{key}.{number}.")
        else:
            rows.append((f"{prefix}{key}", _shown(value)))
    return rows


def _shown(value: object) -> str:
    """Formats a value for people."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    elif isinstance(value, dict):
        value = [f"{name} {_shown(each)}" for name, each in value.items()]
    if isinstance(value, list):
        return ", ".join(map(_shown, value)) or "-"
    return "-" if value is None else str(value)


def key_text(key: str | None, key_base64: str | None, size: int | None = None) -> str:
    """A key in a line, empty without one; `size`: it is the start of so many bytes.

    >>> [key_text("a", None), key_text(None, "/w==", 5_000), key_text(None, None)]
    ['key a', 'key (base64) /w== … of 5000 bytes', '']
    """
    if key is None and key_base64 is None:
        return ""
    text = f"key {key}" if key_base64 is None else f"key (base64) {key_base64}"
    return text if size is None else f"{text} … of {size} bytes"


def printable(text: str) -> str:
    r"""Escapes characters that a terminal would act on, or not show: an id may have an escape
    sequence that changes the lines above it, a line break that begins a false line, or a change of
    direction.

    >>> print(printable("order 8821\x1b[2J\n"))
    order 8821\x1b[2J\n
    """
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
