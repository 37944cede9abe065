"""How a start goes on: local files and the progress in Kafka are compared, once, by dequeue.

Dequeue decides and writes the *recovery record*; a starting ingest waits for the record of the
dequeue that lives now. So far there are two cases in which a start goes on:

    new      the data directory is empty and Kafka's progress names it: slots begin at R
    killed   everything local is there (a kill, or a clean stop): go on where the progress says

Everything else is refused with the reason, and changes nothing: another owner, other settings,
files older than the progress, progress older than the files, no progress at all.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from duewheel.checkpoints import files
from duewheel.checkpoints.progress import Progress, config_hash
from duewheel.checkpoints.shapes import MISSHAPEN, integer, name
from duewheel.checkpoints.state import Close, Commit, Marks, State
from duewheel.errors import RecoveryRefused
from duewheel.schemas.timers import TopicPartition

FILE_NAME = "recovery"


@dataclass(frozen=True, slots=True)
class Resumption:
    """Where delivery goes on.

    Attributes:
        case: "new" or "killed".
        close: the closed range in which it goes on, or ended.
        r: last slot delivered in full; close.lower ≤ r ≤ close.floor.
        delivered_below: D of slot r + 1 if that is half delivered, else empty.
    """

    case: str
    close: Close
    r: int
    delivered_below: Marks


@dataclass(frozen=True, slots=True)
class RecoveryRecord:
    """What dequeue tells a starting ingest.

    Attributes:
        case: as in Resumption.
        boot_id: of the host when it was decided.
        dequeue_start: number of the dequeue start that decided it.
    """

    case: str
    boot_id: str
    dequeue_start: int

    def write(self, directory: Path) -> None:
        """Put the record in place, durably."""
        text = json.dumps(
            {
                "case": self.case,
                "boot_id": self.boot_id,
                "dequeue_start": self.dequeue_start,
            }
        ).encode()
        files.replace_file(directory / FILE_NAME, files.checked_line(text))

    @classmethod
    def read(cls, directory: Path) -> RecoveryRecord | None:
        """The record in place; None if there is none or its bytes are not whole."""
        try:
            text = files.checked_text((directory / FILE_NAME).read_bytes())
            if text is None:
                return None
            raw = json.loads(text)
            return cls(name(raw["case"]), name(raw["boot_id"]), integer(raw["dequeue_start"]))
        except (FileNotFoundError, *MISSHAPEN):
            return None


def require_ours(
    progress: Progress, *, uuid: str, shard: int, shards: int, slot_config: Mapping[str, Any]
) -> None:
    """Refuse a progress record that was written for another owner or other settings.

    Raises:
        RecoveryRefused: with both sides.
    """
    if progress.owner != uuid:
        raise RecoveryRefused(
            f"shard {shard} belongs to the data directory {progress.owner}, this one is {uuid}: it "
            "was lost, moved or is in use elsewhere; this version cannot take a shard over"
        )
    if (progress.shard, progress.shards) != (shard, shards):
        raise RecoveryRefused(
            f"the progress was written as shard {progress.shard} of {progress.shards}, the "
            f"configuration says {shard} of {shards}"
        )
    wanted, found = dict(slot_config), dict(progress.slot_config)
    if config_hash(wanted) != config_hash(found):
        keys = sorted(k for k in wanted.keys() | found.keys() if wanted.get(k) != found.get(k))
        sides = "; ".join(f"{k}: was {found.get(k)!r}, is {wanted.get(k)!r}" for k in keys)
        raise RecoveryRefused(
            "settings that decide when a pending timer is due have changed, and this version "
            f"cannot change them on a shard with progress ({sides}): restore the old values"
        )


def resume(
    progress: Progress, close: Close | None, commit: Commit, mirrored: Progress | None
) -> Resumption:
    """Compare a progress record that is ours with the local files.

    Args:
        progress: as read from Kafka.
        close, commit: the newest local pages.
        mirrored: the local copy of a progress record that Kafka had committed.

    Raises:
        RecoveryRefused: they do not fit; nothing has been changed.
    """
    slots = {p.r for p in progress.partitions.values()}
    if len(slots) != 1:
        raise RecoveryRefused(f"the progress names {len(slots)} different last slots, not one")
    (r,) = slots
    c = {partition: p.c for partition, p in progress.partitions.items()}
    half = {p: known.d for p, known in progress.partitions.items() if known.d is not None}
    if close is None:
        if half or commit.batch:
            raise RecoveryRefused("Kafka has progress in slots that this data directory never had")
        return Resumption("new", Close(r, c, r, c), r, {})
    if mirrored is not None:
        _require_not_older(progress, mirrored)
    needed = {
        p: known.c if known.c1 is None else known.c1 for p, known in progress.partitions.items()
    }
    _require_marks({**close.c, **commit.marks}, needed)
    if r > close.floor or (half and not close.lower <= r < close.floor):
        raise RecoveryRefused(
            f"Kafka has delivered up to slot {r}{' and part of the next' if half else ''}, the "
            f"files have closed {close.lower} … {close.floor}: they are older than the progress"
        )
    # Slots between r and close.lower were empty when they were closed, and told no one.
    return Resumption("killed", close, max(r, close.lower), half)


def _require_not_older(progress: Progress, mirrored: Progress) -> None:
    for partition, ours in mirrored.partitions.items():
        found = progress.partitions.get(partition)
        if found is None or (found.r, found.d or 0) < (ours.r, ours.d or 0):
            raise RecoveryRefused(
                f"the progress in Kafka is older than the local copy of it: {partition[0]}-"
                f"{partition[1]} is at {found}, was at {ours}. Kafka has lost committed records, "
                "deliveries perhaps among them; this version cannot tell which"
            )


def _require_marks(local: Marks, needed: Mapping[TopicPartition, int]) -> None:
    behind = {p: (local.get(p, 0), mark) for p, mark in needed.items() if local.get(p, 0) < mark}
    if behind:
        (topic, number), (have, want) = next(iter(behind.items()))
        raise RecoveryRefused(
            f"local files have {topic}-{number} up to offset {have}, but slots were closed at "
            f"{want}: they are older than the progress; this version cannot read them again"
        )


def dequeue_has_decided(state: State, directory: Path) -> bool:
    """Whether the dequeue that lives now has written its recovery record."""
    record = RecoveryRecord.read(directory)
    return (
        record is not None
        and record.dequeue_start == state.dequeue_starts
        and record.boot_id == files.boot_id()
        and files.lock_is_held(directory / "dequeue.lock")
    )
