"""The `state` file of a data directory: its identity, live fields, commit pages and close pages.

    0        identity   JSON with CRC-32, written once: format, uuid, precision, slots
    4096     live       counters and heartbeats, each an aligned 8-byte store (live_fields.py)
    8192     commit     two alternating pages, written by ingest under engine.lock
    …        close      two alternating pages, written by dequeue under engine.lock

Invariants:

- A batch exists from the moment its commit page is whole; it is *applied* once the page is marked.
- The floor never falls, except in a recovery. It and C, the high-water marks at the moment of
  closing, are in one close page, so no reader has one without the other.
- `damage` is recorded before the boot id is overwritten, and stays until `set_recovered`.

Dequeue's mirror of its progress is a file of its own (progress_mirror.py).
"""

from __future__ import annotations

import json
import mmap
import struct
import zlib
from collections.abc import Callable
from enum import IntEnum
from pathlib import Path
from typing import Any, Self, TypeVar

from duewheel.checkpoints import progress_mirror
from duewheel.checkpoints.checksummed_pages import Page, PagePair
from duewheel.checkpoints.commit_and_close_pages import NO_COMMIT, Close, Commit
from duewheel.checkpoints.fs import HOST_FS, FileSystem
from duewheel.checkpoints.json_fields import MISSHAPEN
from duewheel.checkpoints.live_fields import (
    FILE_NAME,
    LIVE_BYTES,
    LIVE_OFFSET,
    FieldIndex,
    LiveFields,
)
from duewheel.checkpoints.progress_mirror import Mirror
from duewheel.errors import ConfigError, CorruptFile

T = TypeVar("T")

FORMAT = 4

# Room for the most partitions of a shard (partition_limit.py): two offsets of each, deflated.
PAGE_BYTES = 1536 * 1024
_IDENTITY_BYTES = LIVE_OFFSET
_COMMIT = LIVE_OFFSET + LIVE_BYTES
_CLOSE = _COMMIT + 2 * PAGE_BYTES
_FILE_BYTES = _CLOSE + 2 * PAGE_BYTES


class Damage(IntEnum):
    """The damage of the files since the last recovery."""

    NONE = 0
    CACHE_LOST = 1  # a boot without a clean stop, or a lost page: unsynced bytes may be missing
    FILES_LOST = 2  # a file that timers depend on is missing or damaged


class State:
    """The mapped state file. Not thread-safe; the module's head lists the writers."""

    def __init__(self, path: Path, mapped: mmap.mmap, fs: FileSystem) -> None:
        self.path = path
        self._fs = fs
        self._mapped = mapped
        # Native 8-byte items: one aligned store each, so a kill leaves the old or the new value.
        self._words = memoryview(mapped)[LIVE_OFFSET:_COMMIT].cast("q")
        self.identity = _read_identity(path, mapped)
        self._commit = PagePair(mapped, _COMMIT, PAGE_BYTES)
        self._close = PagePair(mapped, _CLOSE, PAGE_BYTES)
        self._parsed: dict[int, tuple[Page, Any]] = {}  # by the place of its pages
        self._mirror = path.with_name(progress_mirror.FILE_NAME)

    @classmethod
    def create(
        cls, directory: Path, precision_ms: int, slots: int, fs: FileSystem = HOST_FS
    ) -> State:
        """Makes the state file of a new data directory; it appears whole or not at all."""
        import uuid  # not at the top: `duewheel health` makes none, and its import takes 8 ms

        identity = {
            "format": FORMAT,
            "uuid": str(uuid.UUID(int=fs.random_bits(128), version=4)),
            "precision_ms": precision_ms,
            "slots": slots,
        }
        text = json.dumps(identity).encode()
        head = struct.pack("<II", len(text), zlib.crc32(text)) + text
        fs.replace_file(directory / FILE_NAME, head.ljust(_FILE_BYTES, b"\0"))
        return cls.open(directory, fs)

    @classmethod
    def open(cls, directory: Path, fs: FileSystem = HOST_FS) -> State:
        """Maps an existing state file.

        Raises:
            FileNotFoundError: the file is missing.
            CorruptFile: its length or identity is wrong.
        """
        path = directory / FILE_NAME
        size = path.stat().st_size
        if size != _FILE_BYTES:
            raise CorruptFile(path, 0, f"{size} bytes long, expected {_FILE_BYTES}")
        fd = fs.open_file(path)
        try:
            return cls(path, fs.map(fd, _FILE_BYTES, writable=True), fs)
        finally:
            fs.close(fd)

    def require(self, precision_ms: int, slots: int) -> None:
        """Refuses another wheel geometry than the directory's.

        Raises:
            ConfigError: with both geometries and the remedy.
        """
        made = (self.identity["precision_ms"], self.identity["slots"])
        if made != (precision_ms, slots):
            way_out = (
                "let pending timers run out and start over, with another app.id and an empty data "
                "directory: the progress counts in slots of that length, too"
                if made[0] != precision_ms
                else "start with an empty data directory and --take-over: pending timers are read "
                "again from Kafka"
            )
            raise ConfigError(
                f"{self.path.parent} was made with precision_ms={made[0]}, slots={made[1]}; the "
                f"configuration says precision_ms={precision_ms}, slots={slots}. Every entry of "
                f"the wheel would be of another time: restore the old values, or {way_out}"
            )

    @property
    def uuid(self) -> str:
        return str(self.identity["uuid"])

    # ---- commit, close, mirror -------------------------------------------------------------

    def commit(self) -> Commit:
        """The newest commit; NO_COMMIT before the first.

        Raises:
            CorruptFile: pages were written, and none is whole or the newest is no commit page.
        """
        found = self._newest(
            self._commit, _COMMIT, lambda raw, page: Commit.from_json(raw, applied=page.marked)
        )
        return found or NO_COMMIT

    @property
    def commits(self) -> int:
        """A number that rises with every commit page; without reading the page."""
        return self._commit.sequence()

    @property
    def applied(self) -> int:
        """`commits` of the newest commit page whose batch is applied; without reading the page."""
        return self._commit.marked()

    def write_commit(self, commit: Commit) -> None:
        """Writes a commit page, not yet applied: the batch exists from here on."""
        assert not commit.applied, "a page is marked once the wheel has its batch"
        self._commit.write(json.dumps(commit.to_json(), separators=(",", ":")).encode())

    def mark_applied(self) -> None:
        """Marks the newest batch as linked into the wheel."""
        page = self._commit.read()
        assert page is not None, "a batch is marked after its page is written"
        # If the flag were set before the wheel has the batch, a kill between the two would lose its
        # runs: no later start would link them again.
        self._commit.mark(page.sequence)

    def close(self) -> Close | None:
        """The newest close page, None before the first.

        Raises:
            CorruptFile: pages were written, and none is whole or the newest is no close page.
        """
        return self._newest(self._close, _CLOSE, lambda raw, _: Close.from_json(raw))

    def write_close(self, close: Close) -> None:
        """Writes a close page: slots up to its floor take no more rows."""
        # A lower floor would reopen delivered slots: rows could be placed there, and never be
        # delivered.
        before = self.close()
        assert before is None or close.floor >= before.floor, "the floor never moves back"
        self.restart_close(close)

    def restart_close(self, close: Close) -> None:
        """Writes a close page whose floor may be lower, or whose range may overlap the last one:
        in a recovery, in a standby, after an accepted loss.
        """
        payload = json.dumps(close.to_json(), separators=(",", ":")).encode()
        page = Page(self._close.write(payload), payload, marked=False)
        self._parsed[_CLOSE] = page, close

    def mirror(self) -> Mirror | None:
        """The mirror of the newest progress; None before the first.

        Raises:
            CorruptFile: the mirror is damaged; or missing although there is a close page, which is
                always written after it.
        """
        found = progress_mirror.read(self._mirror)
        if found is None and self._close.written():
            raise CorruptFile(self._mirror, 0, "it is missing")
        return found

    def write_mirror(self, mirror: Mirror) -> None:
        """Mirrors a progress record that Kafka has committed.

        Raises:
            OSError: the disk is full, or fails; the earlier mirror stays.
        """
        progress_mirror.write(self._mirror, mirror, self._fs)

    def _newest(self, pages: PagePair, at: int, parse: Callable[[Any, Page], T]) -> T | None:
        """The content of the newest page; None before the first. A page is parsed once: dequeue
        reads both kinds at each closing.
        """
        page = pages.read()
        if page is None:
            if pages.written():
                raise CorruptFile(self.path, at, "neither of two alternating pages is whole")
            return None
        known, content = self._parsed.get(at, (None, None))
        if page != known:
            try:
                content = parse(json.loads(page.payload), page)
            except MISSHAPEN as error:
                raise CorruptFile(self.path, at, f"this is no such page: {error!r}") from error
            self._parsed[at] = page, content
        return content

    # ---- live fields -----------------------------------------------------------------------

    @property
    def live(self) -> LiveFields:
        """Made for each use: a stored one would keep the file mapped, in a reference cycle."""
        return LiveFields(self._words, self.sync)

    # ---- starts and stops ------------------------------------------------------------------

    @property
    def boot_id(self) -> str:
        """Of the host, as it is now."""
        return self._fs.boot_id()

    @property
    def starts(self) -> int:
        """The number of processes that have ever opened the directory for work."""
        return self._words[FieldIndex.STARTS]

    def begin(self) -> None:
        """Counts a start, which ends the effect of a clean stop; durable, or a loss of power could
        restore the clean stop. Called under engine.lock.
        """
        # Before the boot id: with the new id the loss of the page cache would no longer show.
        self._words[FieldIndex.DAMAGE] = self.damage
        self._words[FieldIndex.BOOT], self._words[FieldIndex.BOOT + 1] = self._boot_words()
        self._words[FieldIndex.STARTS] += 1
        self.sync()

    def _boot_words(self) -> tuple[int, int]:
        high, low = struct.unpack(">qq", bytes.fromhex(self.boot_id.replace("-", "")))
        return high, low

    @property
    def stopped_cleanly(self) -> bool:
        """Whether all files were synced after the last process stopped."""
        return self._words[FieldIndex.CLEAN] == self.starts

    def set_stopped_cleanly(self) -> None:
        """Called under engine.lock by the last process to stop, after it has synced all files."""
        self._words[FieldIndex.CLEAN] = self.starts
        self.sync()

    @property
    def damage(self) -> Damage:
        """The damage that requires a recovery; it stays until `set_recovered`."""
        value = self._words[FieldIndex.DAMAGE]
        known = Damage(value) if value in tuple(Damage) else Damage.FILES_LOST
        booted = (
            self._words[FieldIndex.BOOT],
            self._words[FieldIndex.BOOT + 1],
        ) != self._boot_words()
        if known is Damage.NONE and self.starts > 0 and booted and not self.stopped_cleanly:
            return Damage.CACHE_LOST
        return known

    def note_damage(self, damage: Damage) -> None:
        """Records damage, durably; the worst stays. Called under engine.lock."""
        self._words[FieldIndex.DAMAGE] = max(self.damage, damage)
        self.sync()

    # ---- recovery: see wheel/recovery/kept_files.py ----------------------------------------

    @property
    def generation(self) -> int:
        """The number of the newest recovery that dequeue has decided on. An ingest that started
        with a lower one stops.
        """
        return self._words[FieldIndex.GENERATION]

    def set_generation(self, generation: int) -> None:
        """Called by dequeue under engine.lock, before the recovery record and the pages of a
        recovery: ingest must not read those with files of an earlier generation.
        """
        self._words[FieldIndex.GENERATION] = generation

    @property
    def needs_recovery(self) -> bool:
        """Whether the files are unreliable until ingest has recovered them."""
        return self.damage is not Damage.NONE or self.generation > self.recovered

    @property
    def recovered(self) -> int:
        """The number of the last recovery that ingest has applied."""
        return self._words[FieldIndex.RECOVERED]

    def set_recovered(self, generation: int) -> None:
        """Records that the files are whole again; durable."""
        self._words[FieldIndex.DAMAGE] = Damage.NONE
        self._words[FieldIndex.RECOVERED] = generation
        self.sync()

    @property
    def incarnations(self) -> tuple[int, int]:
        """The incarnation that this directory's last start found in Kafka, and the one it drew."""
        return self._words[FieldIndex.FOLLOWED], self._words[FieldIndex.CLAIMED]

    def claim(self, followed: int, drawn: int) -> None:
        """Records the incarnation in Kafka and the one drawn by this start. Durable before the
        drawn one is in Kafka: otherwise this directory would not recognise its own progress after a
        loss of power (`is_own` in local_state.py).
        """
        self._words[FieldIndex.FOLLOWED] = followed
        self._words[FieldIndex.CLAIMED] = drawn
        self.sync()

    @property
    def standby(self) -> bool:
        """Whether this directory is a standby (wheel/dequeue/standby.py)."""
        return bool(self._words[FieldIndex.STANDBY])

    def set_standby(self, *, on: bool) -> None:
        """Makes the directory a standby, or ends that for good. Called under engine.lock, which the
        caller keeps until this is durable: later rows must not reach the disk before it.
        """
        self._words[FieldIndex.STANDBY], self._words[FieldIndex.PROMOTION] = int(on), 0
        self.sync()

    @property
    def dequeue_starts(self) -> int:
        """The number of dequeue's starts; the recovery record has the number of its own."""
        return self._words[FieldIndex.DEQUEUE_STARTS]

    def count_dequeue_start(self) -> int:
        """Raises `dequeue_starts`, under dequeue.lock and engine.lock; returns the new value."""
        self._words[FieldIndex.DEQUEUE_STARTS] += 1
        return self.dequeue_starts

    @property
    def linked(self) -> int:
        """The last slot whose rows are in the wheel; later rows are in the logs only."""
        return self._words[FieldIndex.LINKED]

    def set_linked(self, slot: int) -> None:
        """Called under engine.lock, once the wheel has every row up to `slot`."""
        self._words[FieldIndex.LINKED] = slot

    def sync(self) -> None:
        """Makes the file durable, and the mirror."""
        self._fs.msync(self._mapped)
        progress_mirror.sync(self._mirror, self._fs)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def release(self) -> None:
        self._words.release()
        self._mapped.close()


def set_aside(directory: Path, fs: FileSystem) -> Path:
    """Renames a state file that cannot be read; returns its new path."""
    aside = directory / f"{FILE_NAME}.damaged"
    fs.replace(directory / FILE_NAME, aside)
    return aside


def _read_identity(path: Path, mapped: mmap.mmap) -> dict[str, int | str]:
    length, crc = struct.unpack_from("<II", mapped, 0)
    text = mapped[8 : 8 + length] if length <= _IDENTITY_BYTES - 8 else b""
    if not text or zlib.crc32(text) != crc:
        raise CorruptFile(path, 0, "the identity does not match its checksum")
    identity: dict[str, int | str] = json.loads(text)
    if identity["format"] != FORMAT:
        raise ConfigError(
            f"{path} has format {identity['format']}; this version reads {FORMAT}: stop the shard, "
            "move the directory away and start with --take-over, which reads pending timers again "
            "from Kafka"
        )
    return identity
