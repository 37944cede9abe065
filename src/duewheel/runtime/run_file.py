"""The file `run`: the state of the two processes that `duewheel run` keeps alive.

One page, JSON after its CRC-32, overwritten in place, which works on a full disk, too. A reader
of a half written page sees a wrong CRC, and reads again.

`run` holds `run.lock` for life: only one works in a data directory.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from duewheel.checkpoints import fs
from duewheel.checkpoints.file_lock import lock_is_held
from duewheel.checkpoints.json_fields import MISSHAPEN, from_json, to_json

FILE_NAME, LOCK_NAME = "run", "run.lock"
_PAGE_BYTES = 8192
_READS = 3


class Supervised(NamedTuple):
    """One process, as its supervisor sees it; SupervisedProcess in api/shard.py says more."""

    pid: int | None = None
    restarts: int = 0
    lives: bool = False
    last_exit_code: int | None = None  # None also if it could not be started
    last_reason: str = ""
    next_try_ms: int | None = None

    @property
    def is_failing(self) -> bool:
        """Whether it has ended, and no successor has written a heartbeat yet."""
        return bool(self.last_reason) and not self.lives


def write(fd: int, processes: Mapping[str, Supervised]) -> None:
    """Overwrites the page of an open file."""
    line = fs.checked_line(json.dumps(to_json(processes)).encode())
    fs.HOST_FS.write_at(fd, line.ljust(_PAGE_BYTES, b"\0")[:_PAGE_BYTES], 0)


def read(data_dir: Path) -> dict[str, Supervised] | None:
    """The processes by name; None while no `run` works in the directory."""
    if not lock_is_held(data_dir / LOCK_NAME):
        return None
    for _ in range(_READS):
        try:
            text = fs.checked_text((data_dir / FILE_NAME).read_bytes().partition(b"\n")[0])
            if text is not None:
                processes: dict[str, Supervised] = from_json(
                    Mapping[str, Supervised], json.loads(text)
                )
                return processes
        except (FileNotFoundError, *MISSHAPEN):
            continue
    return None
