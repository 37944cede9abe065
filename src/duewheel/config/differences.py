"""Lists the settings that differ from the defaults, so that support sees decisions alone."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from duewheel.config.settings import Settings


def differing(settings: Settings) -> dict[str, dict[str, Any]]:
    """By key: `value`, and `from`, its source."""
    rows: dict[str, dict[str, Any]] = {}
    shown = settings.redacted()
    for name in Settings.model_fields:
        section = getattr(settings, name)
        if not isinstance(section, BaseModel):  # [spark], a table without defaults
            for key, value in shown[name].items():
                rows[f"{name}.{key}"] = {"value": value, "from": f"[{name}]"}
            continue
        default = type(section)()
        for key in type(section).model_fields:
            if getattr(section, key) != getattr(default, key):
                source = settings.source(f"{name}.{key}")
                rows[f"{name}.{key}"] = {"value": shown[name][key], "from": f"({source})"}
    return rows
