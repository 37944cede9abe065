"""The option `--set`: the path of a setting in the tables of the configuration.

The types of the sections decide which dots of its name separate tables. The name of a topic has
dots, too, and may be quoted.
"""

from __future__ import annotations

from typing import Any, get_args, get_origin

from duewheel.config.settings import Settings
from duewheel.errors import ConfigError

Tables = dict[str, Any]  # of settings, as deep as they are: config parses the values


def put(tables: Tables, pair: str) -> None:
    """Puts the value of `section.key=value` into its table.

    Raises:
        ConfigError: it has another form, or an earlier `--set` has its table, or a key of it.
    """
    path, given, value = pair.partition("=")
    section, dotted, key = path.partition(".")
    if not given or not dotted:
        raise ConfigError(f"--set {pair}: write it as section.key=value")
    field = Settings.model_fields.get(section)
    names = [section, *([key] if field is None else _names(field.annotation, key))]
    *parents, name = (each.strip('"') for each in names)
    table: Any = tables
    for parent in parents:
        table = table.setdefault(parent, {})
        if not isinstance(table, dict):
            raise ConfigError(f"--set {path}: another --set has the whole of its table")
    if isinstance(table.get(name), dict):
        raise ConfigError(f"--set {path}: another --set has a key of its table")
    table[name] = value


def _names(kind: Any, path: str) -> list[str]:
    """Splits the path of a value in a table of this kind: the names of its tables, and its own."""
    if get_origin(kind) is dict:  # by topic: of sections, or of values
        topic, dotted, key = path.rpartition(".")
        return [topic, key] if dotted and hasattr(get_args(kind)[1], "model_fields") else [path]
    name, dotted, rest = path.partition(".")
    field = kind.model_fields.get(name)
    is_table = field is not None and get_origin(field.annotation) is dict
    return [name, *_names(field.annotation, rest)] if dotted and is_table else [path]
