"""The sources of settings: the TOML file and the environment. Imports only the standard library.

`SingleSettings` reads a setting without a check of all: `duewheel health` runs every few seconds,
and the import of the checker's libraries would cost ten times its processor time.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from duewheel.errors import ConfigError

DEFAULT_FILE = Path("duewheel.toml")
ENV_PREFIX = "DUEWHEEL_"
FILE_VARIABLE = "DUEWHEEL_CONFIG"


def find_file(named: Path | str | None = None) -> Path | None:
    """The path of the file: `named`, else DUEWHEEL_CONFIG, else the default if it exists."""
    named = named or os.environ.get(FILE_VARIABLE)
    if named:
        return Path(named).expanduser()
    return DEFAULT_FILE if DEFAULT_FILE.exists() else None


def read_file(path: Path) -> dict[str, Any]:
    """Reads a TOML file.

    Raises:
        ConfigError: it cannot be read, or is no TOML.
    """
    import tomllib

    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path.absolute()} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:  # no UTF-8, no TOML, or nested too deep
        raise ConfigError(f"{path} is no TOML file: {error}") from error


def read_environment() -> dict[str, Any]:
    """Reads DUEWHEEL_<SECTION>__<KEY>, and variables with more parts, as nested tables in lower
    case. The text of a whole table wins over variables of its keys.
    """
    tables: dict[str, Any] = {}
    for variable, value in os.environ.items():
        if not variable.upper().startswith(ENV_PREFIX):
            continue
        *parents, key = variable[len(ENV_PREFIX) :].lower().split("__")
        table: Any = tables
        for parent in parents:
            table = table.setdefault(parent, {}) if isinstance(table, dict) else None
        if isinstance(table, dict):
            table[key] = value
    return tables


class SingleSettings:
    """Single settings, neither parsed nor checked, without flags."""

    def __init__(self) -> None:
        """Raises ConfigError if the file cannot be read."""
        path = find_file()
        self._sources = (read_environment(), {} if path is None else read_file(path))

    def get(self, section: str, key: str) -> Any:
        """The value as its source has it; None if none has one."""
        tables = (source.get(section) for source in self._sources)
        found = (t[key] for t in tables if isinstance(t, Mapping) and key in t)
        return next(found, None)
