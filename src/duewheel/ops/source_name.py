"""The name of a source that is sent exactly once: of an import, or of a relay."""

from __future__ import annotations

import re

from duewheel.errors import ConfigError

_NAME = re.compile(r"[A-Za-z0-9._-]{1,200}")


def require_source_name(name: str) -> None:
    """Refuses a name that cannot be a part of a key and of a transactional id.

    Raises:
        ConfigError: names it.
    """
    if not _NAME.fullmatch(name):
        raise ConfigError(f"{name!r} is no name: 1 to 200 of a-z A-Z 0-9 . _ -")
