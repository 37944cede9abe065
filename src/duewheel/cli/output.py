"""The output of results: text for people, JSON for programs."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TypeVar

import click

from duewheel.api.model import Result
from duewheel.config.durations import duration_text
from duewheel.config.instants import utc_text

R = TypeVar("R", bound=Result)

# Fields with an instant in epoch milliseconds; other names in _ms are durations.
_INSTANTS = frozenset(
    [
        "delivered_ms",
        "delivered_until_ms",
        "due_ms",
        "earliest_due_ms",
        "ends_ms",
        "floor_ms",
        "lag_asked_ms",
        "last_due_ms",
        "latest_due_ms",
        "leaves_ms",
        "next_due_ms",
        "next_try_ms",
        "oldest_ms",
        "starts_ms",
        "until_ms",
    ]
)

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


def show(
    result: Result | Mapping[str, object], output: str, *, hidden: Collection[str] = ()
) -> None:
    """Prints one result, which is that of a dry run if it has a true `dry_run`; as text without
    the fields `hidden`.
    """
    fields = _fields(result)
    if output == "json":
        click.echo(json.dumps(fields))
        return
    fields = {name: value for name, value in fields.items() if name not in hidden}
    if fields.get("dry_run"):
        fields = {_WOULD.get(key, key): value for key, value in fields.items()}
    # Names, too: those of a message's headers are its producer's.
    rows = [(printable(key), value) for key, value in flat(fields)]
    width = max((len(key) for key, _ in rows), default=0)
    for key, value in rows:
        click.echo(f"{key:<{width}} {value}")


def _fields(result: Result | Mapping[str, object]) -> Mapping[str, object]:
    return result.as_json() if isinstance(result, Result) else result


def show_rows(rows: Iterable[R], output: str, line: Callable[[R], str]) -> R | None:
    """Prints the results of a list, a line each; returns the last one."""
    last = None
    for last in rows:
        click.echo(json.dumps(last.as_json()) if output == "json" else printable(line(last)))
    return last


def show_row(row: Result | Mapping[str, object], output: str) -> None:
    """Prints one result of a list, with the names of its fields."""
    fields = _fields(row)
    if output == "json":
        click.echo(json.dumps(fields))
    else:
        known = {key: value for key, value in fields.items() if value is not None}
        shown = (f"{_label(key)}={_shown(key, value)}" for key, value in known.items())
        click.echo(printable("  ".join(shown)))


def say(text: str) -> None:
    """Prints a line for people, beside the result: to stderr."""
    click.echo(f"duewheel: {text}", err=True)


def flat(table: Mapping[str, object], prefix: str = "") -> list[tuple[str, str]]:
    """Flattens nested tables to dotted names."""
    rows: list[tuple[str, str]] = []
    for key, value in table.items():
        if isinstance(value, dict) and value.keys() == {"value", "from"}:  # a bound
            rows.append((prefix + key, f"{_shown(key, value['value'])}   {value['from']}"))
        elif isinstance(value, dict):
            rows += flat(value, f"{prefix}{key}.")
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            for number, each in enumerate(value):
                rows += flat(each, f"{prefix}{key}.{number}.")
        else:
            rows.append((prefix + _label(key), _shown(key, value)))
    return rows


def _label(key: str) -> str:
    return key.removesuffix("_ms") if key in _INSTANTS else key


def _shown(key: str, value: object) -> str:
    """A value for people: instants in UTC, durations with their unit."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if key.endswith("_ms") and isinstance(value, int):
        return utc_text(value) if key in _INSTANTS else duration_text(value)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    elif isinstance(value, dict):
        value = [f"{name} {_shown(key, each)}" for name, each in value.items()]
    if isinstance(value, list):
        return ", ".join(_shown(key, each) for each in value) or "-"
    return "-" if value is None else printable(str(value))


def printable(text: str) -> str:
    r"""Escapes characters that a terminal would act on, or not show: an id may have an escape
    sequence that changes the lines above it, a line break that begins a false line, or a change of
    direction.

    >>> print(printable("order 8821\x1b[2J\n"))
    order 8821\x1b[2J\n
    """
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
