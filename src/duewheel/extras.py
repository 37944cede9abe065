"""The libraries that only some commands need, and the extra of the package that installs each.

`pip install duewheel` installs the client: kafka-python and crc32c. A command imports its libraries
where it uses them; the first that is missing ends the command with one line that names the extra.
"""

from __future__ import annotations

import importlib.util
from typing import Literal

from duewheel.errors import ConfigError

Extra = Literal["dequeue", "service", "audit", "serve", "import", "rocksdb", "testing"]

LIBRARIES: dict[Extra, frozenset[str]] = {
    "dequeue": frozenset(
        {
            "click",
            "cronsim",
            "lz4",
            "numpy",
            "prometheus_client",
            "psutil",
            "pyarrow",
            "pydantic",
            "pydantic_settings",
            "rich",
            "snappy",
            "structlog",
            "tzdata",
            "zstandard",
        }
    ),
    "service": frozenset({"py4j", "pyspark"}),
    "audit": frozenset({"great_expectations", "pandas"}),
    "serve": frozenset({"fastapi", "starlette", "uvicorn"}),
    "rocksdb": frozenset({"rocksdict"}),
    "import": frozenset({"psycopg", "redis"}),
    "testing": frozenset({"pytest"}),
}
"""The modules that each extra adds. All but the first include "dequeue"."""

_INSTALL: dict[str, str] = {
    "dequeue": "pip install 'duewheel[service]', or 'duewheel[dequeue]' on a host without ingest",
    "service": "pip install 'duewheel[service]'",
    "audit": "pip install 'duewheel[audit]'",
    "serve": "pip install 'duewheel[serve]'",
    "rocksdb": "pip install 'duewheel[rocksdb]'",
    "import": "pip install 'duewheel[import]'",
    "testing": "pip install 'duewheel[testing]'",
}


def remedy(error: ModuleNotFoundError, command: str = "") -> str | None:
    """One line about a failed import; None if no extra brings the module.

    Args:
        error: of the import.
        command: the one that was started; those with an extra of their own have its name.
    """
    library = (error.name or "").partition(".")[0]
    for extra, libraries in LIBRARIES.items():
        if library in libraries:
            return f"an extra is missing: {_INSTALL.get(command, _INSTALL[extra])}"
    return None


def require(extra: Extra) -> None:
    """Refuses a command whose processes would fail only later, each by itself.

    Raises:
        ConfigError: a library of the extra is not installed.
    """
    for library in sorted(LIBRARIES[extra]):
        if importlib.util.find_spec(library) is None:
            error = ModuleNotFoundError(name=library)
            raise ConfigError(remedy(error))
