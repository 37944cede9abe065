"""Rules between the fields of a request as JSON Schema, for the description (OpenAPI) of the HTTP
API; the validators of the request check the same. A field that is null is not given.
"""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any]

_NULL: Schema = {"type": "null"}


def exactly_one(*names: str) -> Schema:
    """One of the fields is given."""
    return {"oneOf": [_given(name, set(names) - {name}) for name in names]}


def at_least_one(*names: str) -> Schema:
    """One of the fields is given, or several."""
    return {"anyOf": [_given(name) for name in names]}


def at_most_one(first: str, second: str) -> Schema:
    """Not both fields are given."""
    return {"anyOf": [{"properties": {name: _NULL}} for name in (first, second)]}


def needs(name: str, other: str) -> Schema:
    """With the first field the second is given, too."""
    return {"anyOf": [{"properties": {name: _NULL}}, _given(other)]}


def _given(name: str, absent: set[str] | None = None) -> Schema:
    properties = dict.fromkeys(sorted(absent or ()), _NULL)
    return {"required": [name], "properties": {**properties, name: {"not": _NULL}}}
