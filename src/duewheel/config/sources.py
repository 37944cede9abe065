"""The sources of settings: the TOML file and the environment. Imports only the standard library.

`SingleSettings` reads a setting without the check of all: `duewheel health` runs every few
seconds, and the libraries of the check alone cost ten times its processor time.
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
    """Returns the path of the file: as named, else by the environment, else the default if it
    exists.
    """
    named = named or os.environ.get(FILE_VARIABLE)
    if named:
        return Path(named).expanduser()
    return DEFAULT_FILE if DEFAULT_FILE.exists() else None


def read_file(path: Path) -> dict[str, Any]:
    """Reads the file.

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


class SingleSettings:
    """Single settings, neither parsed nor checked, from the sources that have no flags."""

    def __init__(self) -> None:
        """
        Raises:
            ConfigError: the file cannot be read.
        """
        path = find_file()
        self._file: Mapping[str, Any] = {} if path is None else read_file(path)
        # Names of variables count in any case: `load` reads them so.
        self._environment = {name.upper(): value for name, value in os.environ.items()}

    def get(self, section: str, key: str) -> Any:
        """The value as its source has it; None if neither has one."""
        variable = f"{ENV_PREFIX}{section}__{key}".upper()
        if variable in self._environment:
            return self._environment[variable]
        table = self._file.get(section)
        return table.get(key) if isinstance(table, Mapping) else None
