"""Simulates a loss of power: the state of a folder from a shadow of its last syncs, and chance.

The files are real. The shadow has every file's content, and every folder's entries, at the last
sync. A loss of power replaces the folder's files by

    entries    each name that has changed since: old or new, by chance
    content    each block (512 or 4096 bytes) that has changed since: old or new, by chance
    length     old, new, or in between; bytes that were never written are zeros

Renames are atomic and blocks are not torn; no other property holds, not even the order of writes.
In between, `write_back` makes some changes durable earlier, as the kernel does.
"""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import numpy as np

PIECES = (512, 4096)

# Of one thing that has changed since its last sync: whether the new version is on disk.
Choice = Callable[[], bool]


class Disk:
    """The folder `root` and its shadow. Names are relative to it; "" is the folder itself."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._numbers = itertools.count(1)
        self._number_of: dict[int, int] = {}  # inode → number; an inode may be used again
        self._content: dict[int, bytes] = {}  # number → content at its last sync
        self._entries: dict[int, dict[str, int]] = {}  # number of a folder → entries, likewise

    # ---- what happens to files -------------------------------------------------------------

    def made(self, inode: int) -> None:
        """A new file or folder: whatever had this inode before is another one."""
        self._number_of[inode] = next(self._numbers)

    def synced(self, path: Path) -> None:
        """fsync has been called for this file or folder."""
        number = self._number(path)
        if path.is_dir():
            self._entries[number] = self._live_entries(path)
        else:
            self._content[number] = path.read_bytes()

    def write_back(self, rng: Random) -> None:
        """Something becomes durable without anybody's asking."""
        chosen = _by_chance(rng, rng.choice((0.1, 0.5, 1.0)))
        piece = rng.choice(PIECES)
        for folder in self._folders():
            self._entries[self._number(folder)] = self._mixed_entries(folder, chosen)
        for path in self._files():
            number, new = self._number(path), path.read_bytes()
            old = self._content.get(number, b"")
            if old != new and chosen():
                self._content[number] = _mixed(old, new, piece, chosen, rng)

    # ---- a loss of power -------------------------------------------------------------------

    def lose_power(self, rng: Random) -> None:
        """Replace the folder's files by what may be left of them; all of that is durable then."""
        chosen = _by_chance(rng, rng.choice((0.0, 0.2, 0.5, 0.8, 1.0)))
        piece = rng.choice(PIECES)
        live = {self._number(path): path.read_bytes() for path in self._files()}
        folders = {self._number(path): path for path in self._folders()}
        left: dict[str, bytes | None] = {}

        def survive(number: int, name: str) -> None:
            path = folders.get(number)
            entries = (
                self._entries.get(number, {}) if path is None else self._mixed_entries(path, chosen)
            )
            for entry, child in entries.items():
                below = f"{name}/{entry}" if name else entry
                if child in folders or child in self._entries:
                    left[below] = None
                    survive(child, below)
                else:
                    old = self._content.get(child, b"")
                    new = live.get(child, old)
                    left[below] = _mixed(old, new, piece, chosen, rng)

        survive(self._number(self.root), "")
        self.replace(left)

    def replace(self, left: dict[str, bytes | None]) -> None:
        """Put other files in place, all of them durable. A folder's content is None."""
        self.clear()
        for name, content in left.items():
            path = self.root / name
            if content is None:
                path.mkdir(parents=True, exist_ok=True)
            else:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
        self.all_durable()

    def clear(self) -> None:
        """Everything is gone."""
        shutil.rmtree(self.root, ignore_errors=True)
        self.root.mkdir(parents=True)
        self._number_of.clear()
        self.all_durable()

    def all_durable(self) -> None:
        """The files as they are now are what is on disk."""
        self._content.clear()
        self._entries.clear()
        self._make_durable(self.root)

    def copy_folder(self, name: str, copy: str) -> None:
        """A durable copy of a folder, beside it."""
        shutil.copytree(self.root / name, self.root / copy)
        self._make_durable(self.root / copy)
        self.synced(self.root)

    def _make_durable(self, below: Path) -> None:
        for folder in self._folders(below):
            self._entries[self._number(folder)] = self._live_entries(folder)
        for path in self._files(below):
            self._content[self._number(path)] = path.read_bytes()

    def copy(self) -> dict[str, bytes | None]:
        """A backup: what `replace` takes."""
        copied: dict[str, bytes | None] = {}
        for path in sorted(self.root.rglob("*")):
            name = str(path.relative_to(self.root))
            copied[name] = None if path.is_dir() else path.read_bytes()
        return copied

    # ---- names and numbers -----------------------------------------------------------------

    def _number(self, path: Path) -> int:
        inode = path.stat().st_ino
        if inode not in self._number_of:
            self.made(inode)
        return self._number_of[inode]

    def _live_entries(self, folder: Path) -> dict[str, int]:
        return {path.name: self._number(path) for path in sorted(folder.iterdir())}

    def _mixed_entries(self, folder: Path, chosen: Choice) -> dict[str, int]:
        old = self._entries.get(self._number(folder), {})
        new = self._live_entries(folder)
        mixed = {}
        for name in sorted(old.keys() | new.keys()):
            known = new if old.get(name) == new.get(name) or chosen() else old
            if name in known:
                mixed[name] = known[name]
        return mixed

    def _folders(self, below: Path | None = None) -> Iterator[Path]:
        for root, _, _ in sorted(os.walk(below or self.root)):
            yield Path(root)

    def _files(self, below: Path | None = None) -> Iterator[Path]:
        for root, _, names in sorted(os.walk(below or self.root)):
            for name in sorted(names):
                yield Path(root) / name


def _by_chance(rng: Random, probability: float) -> Choice:
    return lambda: rng.random() < probability


def _mixed(old: bytes, new: bytes, piece: int, chosen: Choice, rng: Random) -> bytes:
    """Pieces of two versions of a file."""
    if old == new:
        return old
    sizes = [len(old), len(new)]
    if len(new) > len(old):
        sizes.append(rng.randint(len(old), len(new)))
    size = max(sizes[1:]) if chosen() else rng.choice(sizes)
    before = np.frombuffer(old.ljust(size, b"\0")[:size], np.uint8)
    after = np.frombuffer(new.ljust(size, b"\0")[:size], np.uint8)
    mixed = before.copy()
    for first in np.unique(np.flatnonzero(before != after) // piece).tolist():
        if chosen():
            part = slice(first * piece, (first + 1) * piece)
            mixed[part] = after[part]
    return mixed.tobytes()
