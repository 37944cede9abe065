"""The alternating pages of a state file, by their places in the format (docs/data-files.md)."""

from __future__ import annotations

from pathlib import Path

from duewheel.checkpoints import live_fields
from duewheel.checkpoints.state_file import PAGE_BYTES

COMMIT = 8192  # behind identity and live fields
CLOSE = COMMIT + 2 * PAGE_BYTES


def damage_newest_commit(directory: Path) -> None:
    """Let the newest commit page of a data directory fail its checksum."""
    _damage_newest(directory, COMMIT)


def damage_newest_close(directory: Path) -> None:
    """The same of the newest close page."""
    _damage_newest(directory, CLOSE)


def _damage_newest(directory: Path, first: int) -> None:
    with (directory / live_fields.FILE_NAME).open("r+b") as file:
        sequences = {}
        for at in (first, first + PAGE_BYTES):
            file.seek(at)
            sequences[int.from_bytes(file.read(8), "little")] = at
        file.seek(sequences[max(sequences)])
        file.write(b"damaged.")


def damage_both_commits(directory: Path) -> None:
    """Let both commit pages fail their checksums."""
    with (directory / live_fields.FILE_NAME).open("r+b") as file:
        for at in (COMMIT, COMMIT + PAGE_BYTES):
            file.seek(at)
            file.write(b"damaged.")
