"""The package's extras, and the libraries and commands of each.

`pip install duewheel` installs the client: kafka-python and google-crc32c. A command imports its
libraries where it uses them; the first that is missing ends it with one line that names the extra.
"""

from __future__ import annotations

import importlib.util
from typing import Literal

from duewheel.errors import ConfigError

Extra = Literal[
    "dequeue", "service", "audit", "serve", "rocksdb", "otel", "postgres", "registry", "testing"
]

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
    # fastapi brings the first of them, too: the second decides
    "otel": frozenset({"opentelemetry", "opentelemetry.sdk"}),
    "postgres": frozenset({"psycopg"}),
    "registry": frozenset({"fastavro", "google", "jsonschema"}),
    "testing": frozenset({"pytest"}),
}
"""The modules that each extra adds; the others include those of "dequeue"."""

COMMANDS: dict[str, Extra] = {
    "run": "service",
    "standby": "service",
    "ingest": "service",
    "prove": "service",
    "demo": "service",
    "dev-broker": "service",
    "audit": "audit",
    "serve": "serve",
    "relay": "postgres",
}
"""The extra of each command that needs more than "dequeue"."""


def of_command(command: str) -> Extra:
    """The extra that a command needs."""
    return COMMANDS.get(command, "dequeue")


def _install(extra: Extra) -> str:
    return f"pip install 'duewheel[{extra}]'"


def help_text() -> str:
    """The output of `duewheel --help` where only the client is installed."""
    by_extra: dict[Extra, list[str]] = {}
    for command, extra in COMMANDS.items():
        by_extra.setdefault(extra, []).append(command)
    rows = [(_install(extra), ", ".join(commands)) for extra, commands in by_extra.items()]
    rows.append((_install("dequeue"), "all others, such as status, list, send and cancel"))
    width = max(len(install) for install, _ in rows)
    lines = "\n".join(f"    {install:<{width}}   {commands}" for install, commands in rows)
    return f"""This installation of duewheel is the client for Python alone:

    from duewheel.client import DelayProducer

Commands need an extra of the package; each has the commands of [dequeue], too:

{lines}

In a checkout it is pip install '.[service]'.
"""


def remedy(error: ModuleNotFoundError, wanted: Extra = "dequeue") -> str | None:
    """One line about a failed import of a program that needs the extra `wanted`; None if no extra
    brings the module.
    """
    library = (error.name or "").partition(".")[0]
    for extra, libraries in LIBRARIES.items():
        if library in libraries:
            needed = wanted if extra == "dequeue" else extra
            return f"an extra is missing: {_install(needed)}"
    return None


def require(extra: Extra) -> None:
    """Refuses a command early whose processes would fail later, each by itself.

    Raises:
        ConfigError: a library of the extra is not installed.
    """
    for library in sorted(LIBRARIES[extra]):
        if importlib.util.find_spec(library) is None:
            error = ModuleNotFoundError(name=library)
            raise ConfigError(remedy(error))
