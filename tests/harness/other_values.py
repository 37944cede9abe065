"""Another valid value of each key of a section than its default: of the field's example, if it has
one. So a test that is about all keys needs no edit for a new one.
"""

from __future__ import annotations

from typing import Any, get_args

from pydantic.fields import FieldInfo

from duewheel.config.keys_and_defaults import Section


def other_values(section: type[Section]) -> dict[str, Any]:
    """As a file would give them."""
    return {key: _other(field) for key, field in section.model_fields.items()}


def _other(field: FieldInfo) -> Any:
    if field.examples:
        return field.examples[0]
    if field.annotation is bool:
        return not field.default
    *_, last = get_args(field.annotation)  # of an enumeration
    return last
