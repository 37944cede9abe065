"""A folder that this user may not look into."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

NOBODY = 65534


@contextmanager
def no_rights_on(folder: Path) -> Iterator[None]:
    """A folder without rights for this user: root takes another user's place."""
    usual = os.geteuid()
    folder.chmod(0)
    if usual == 0:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(usual)
        folder.chmod(0o700)
