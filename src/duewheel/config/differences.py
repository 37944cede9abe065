"""Lists the settings that differ from the defaults, so that support sees decisions alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

from duewheel.config.keys_and_defaults import TimerSection
from duewheel.config.settings import Settings


def differing(settings: Settings) -> dict[str, dict[str, Any]]:
    """By key: `value`, and `from`, its source."""
    rows: dict[str, dict[str, Any]] = {}
    shown = settings.redacted()
    for name in Settings.model_fields:
        section = getattr(settings, name)
        if isinstance(section, BaseModel):
            rows |= _of_table(settings, name, section, shown[name])
            continue
        for key, value in shown[name].items():
            if isinstance(section[key], BaseModel):  # [target]
                rows |= _of_table(settings, f"{name}.{key}", section[key], value)
            else:  # [spark], a table without defaults
                rows[f"{name}.{key}"] = {"value": value, "from": f"[{name}]"}
    return rows


def _of_table(
    settings: Settings, name: str, table: BaseModel, shown: Mapping[str, Any]
) -> dict[str, dict[str, Any]]:
    rows: dict[str, dict[str, Any]] = {}
    default = type(table)()
    for key in type(table).model_fields:
        value = getattr(table, key)
        if value == getattr(default, key):
            continue
        if isinstance(table, TimerSection) and key == "topic":
            for topic, own in value.items():
                rows |= _of_table(settings, f"{name}.{key}.{topic}", own, shown[key][topic])
            continue
        source = settings.source(f"{name}.{key}")
        if source == "default":  # another key of the table implies it
            source = settings.source(name)
        rows[f"{name}.{key}"] = {"value": shown[key], "from": f"({source})"}
    return rows
