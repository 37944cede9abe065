"""Losses and damage of single files of a data directory without running processes."""

from __future__ import annotations

import mmap
from collections.abc import Callable
from pathlib import Path
from random import Random

from tests.harness.timelines import FILE

from duewheel.checkpoints.live_fields import FILE_NAME as STATE
from duewheel.checkpoints.state_file import PAGE_BYTES

_PAGES = 8192  # in the state file: behind identity and live fields


def spoil(directory: Path, rng: Random) -> str:
    """Spoil one file; says how, "" if there is nothing to spoil."""
    folders = [path for name in ("timerlog", "messages") for path in (directory / name).glob("*")]
    hours = sorted(path for path in folders if path.is_file() and path.stat().st_size)
    timeline = directory / FILE
    parts = sorted(timeline.rglob("*")) if timeline.is_dir() else [timeline]
    named = [
        *[path for path in parts if path.name != "LOCK"][:1],
        *(directory / name for name in ("topics", "durable", "mirror", STATE, STATE)),
    ]
    files = [path for path in [*hours, *named] if path.is_file()]
    if not files:
        return ""
    path = rng.choice(files)
    ways: dict[str, Callable[[], None]] = {"deleted": path.unlink, "cut": lambda: _cut(path, rng)}
    if path.name == STATE:
        # Pages rather than all of it: whoever has lost it has lost the directory.
        ways["page"] = ways["pages"] = lambda: _spoil_pages(path, rng)
    elif path.stat().st_size:
        ways["changed"] = lambda: _change(path, rng)
    how = rng.choice(list(ways))
    ways[how]()
    return f"{path.relative_to(directory)} {how}"


def _cut(path: Path, rng: Random) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: rng.randrange(max(1, len(data)))])


def _change(path: Path, rng: Random) -> None:
    data = bytearray(path.read_bytes())
    for _ in range(rng.choice((1, 1, 10))):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    path.write_bytes(data)


def _spoil_pages(path: Path, rng: Random) -> None:
    """Pages of commit, close and mirror: one, or all."""
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
        for number in range((len(mapped) - _PAGES) // PAGE_BYTES):
            if rng.random() < 0.3:
                at = _PAGES + number * PAGE_BYTES + rng.choice((0, 8, 12, 24, 40))
                mapped[at : at + 8] = rng.randbytes(8)
