"""Whether the shard's files on this host are the present ones: of its owner, and of the present
assignment of partitions.

After `duewheel reshard` the files of a removed shard, and those of any shard until its next start,
have timers that are other shards' by now; those of a former owner have timers as they were at the
take-over. The progress in Kafka shows both. A thread of the server reads it, so that no read of
files waits for Kafka but those before its first answer, _FIRST_S at most; while Kafka does not
answer, the last read counts. A command that writes records made from files reads it once.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing, suppress
from threading import Event
from typing import NamedTuple

import structlog

from duewheel import factory
from duewheel.checkpoints.ownership import require_not_sealed
from duewheel.checkpoints.progress import NOBODY, Progress
from duewheel.config.settings import Settings
from duewheel.errors import DuewheelError, Fenced, KafkaUnavailable, Reassigned, RecoveryRefused
from duewheel.ops.files import open_state
from duewheel.threads import Worker

_INTERVAL_S = 2.0
_AGAIN_S = 10.0
_FIRST_S = 5.0

log = structlog.get_logger(__name__)


class PresentFilesWatch:
    """See the module's head. Any thread may call those that begin with `require`.

    Attributes:
        removed: why the shard is not ready, if a reshard has removed it: that alone. A shard that
            stays delivers again after its next start, and until then its files' reasons hold.
    """

    _thread: Worker

    def __init__(self, settings: Settings) -> None:
        """Nothing runs before `start`."""
        self._settings = settings
        self._refusal: _Refusal | None = None
        self._was_read = Event()  # or the wait for it is over
        self._has_progress = False
        self.removed: Mapping[str, str] = {}

    def start(self) -> None:
        """Begins to read; may be called again after `stop`."""
        self._thread = Worker("present files", self._run, again_after_s=_AGAIN_S)
        self._thread.start()

    def stop(self) -> None:
        """Reads no more; called after `start`. The thread, which may be in a call of Kafka, is not
        waited for.
        """
        self._thread.ending.set()

    def require(self) -> None:
        """Refuses outdated files.

        Raises:
            Reassigned: they are of another assignment.
            Fenced: another data directory has taken the shard over.
        """
        if self._refusal is not None:
            raise self._refusal.error()

    def require_to_read(self) -> None:
        """As `require`, after the first read: the `run` that replaces files may be yet to come."""
        if not self._was_read.wait(_FIRST_S):
            self._was_read.set()
        self.require()

    def require_to_change(self) -> None:
        """As `require_to_read`, before records are made from the files.

        Raises:
            KafkaUnavailable: no read has succeeded, so they may be outdated.
        """
        self.require_to_read()
        if not self._has_progress:
            raise KafkaUnavailable("nothing was written; the shard's progress cannot be read")

    def _run(self) -> None:
        ending, error_before = self._thread.ending, ""
        with closing(
            factory.progress_reader(self._settings, factory.StoppableClock(ending))
        ) as reader:
            while not ending.is_set():
                try:
                    seen = reader.newest()
                    self._note(None if seen is None else seen.progress)
                    error_before = ""
                except (DuewheelError, OSError) as error:
                    # The last verdict stays: so outdated files are not served meanwhile.
                    if str(error) != error_before and not ending.is_set():
                        error_before = str(error)
                        log.warning("the shard's progress cannot be read", reason=error_before)
                self._was_read.set()
                ending.wait(_INTERVAL_S)

    def _note(self, progress: Progress | None) -> None:
        refusal = None if progress is None else _refusal(self._settings, progress)
        if refusal is not None and refusal != self._refusal:
            log.warning("the files are not served", reason=refusal.reason)
        self._refusal, self._has_progress = refusal, True
        self.removed = {"resharded": refusal.reason} if refusal and refusal.is_removal else {}


def require_present_files(settings: Settings) -> None:
    """Refuses outdated files, from which nothing may be changed, by one read of the progress.

    Raises:
        Reassigned: they are of another assignment.
        Fenced: another data directory has taken the shard over.
        KafkaUnavailable: no answer in time.
    """
    progress = newest_progress(settings)
    refusal = None if progress is None else _refusal(settings, progress)
    if refusal is not None:
        raise refusal.error("nothing was written; ")


def newest_progress(settings: Settings) -> Progress | None:
    """Reads the shard's progress in Kafka once; None before the first.

    Raises:
        KafkaUnavailable: no answer in time.
    """
    with closing(factory.progress_reader(settings, factory.StoppableClock(Event()))) as reader:
        seen = reader.newest()
    return None if seen is None else seen.progress


class _Refusal(NamedTuple):
    """Why files are outdated; `is_removal`: a reshard has removed their shard."""

    kind: type[Reassigned | Fenced]
    reason: str
    is_removal: bool = False

    def error(self, before: str = "") -> Reassigned | Fenced:
        return self.kind(f"{before}{self.reason}")


def _refusal(settings: Settings, progress: Progress) -> _Refusal | None:
    """Compares the files with the progress. Those of a sealed shard that is not removed are the
    present ones until its partitions are reassigned; those of a standby follow the owner's, whose
    progress they mirror.
    """
    if not progress.partitions:
        try:
            require_not_sealed(progress)
        except RecoveryRefused as removed:
            return _Refusal(Reassigned, str(removed), is_removal=True)
    with suppress(DuewheelError), open_state(settings) as state:  # reads have the reason
        mirror = state.mirror()
        if mirror is None:
            return None
        before, shard = mirror.progress, progress.shard
        if before.assignment_epoch < progress.assignment_epoch:
            return _Refusal(
                Reassigned,
                "the files are of an earlier assignment of partitions: the next start of shard "
                f"{shard} of {progress.shards} replaces them",
            )
        if before.owner == state.uuid and progress.owner not in {state.uuid, NOBODY}:
            return _Refusal(
                Fenced,
                f"the data directory {progress.owner} has taken shard {shard} over, this one is "
                f"{state.uuid}: do it where the shard runs",
            )
    return None
